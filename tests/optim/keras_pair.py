"""One small Keras model in two parametrisations: scheme C's table U, and D' with `T = c * U` and the logits over c."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import keras
import numpy as np
from tests.keras.models.kit import numbers

import tiebeam
import tiebeam.keras
from tiebeam.zoo.schemes import SCHEMES

VOCAB, WIDTH, C = 61, 64, 8.0  # c = sqrt(width), a power of two: rounding commutes with it
IDS = (np.arange(48).reshape(4, 12) * 7 % VOCAB).astype("int32")
OWNER = "embedding_of_tokens/embeddings"  # a body kernel bears the word too: no name may decide
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def small(name: str, *, positions: bool = False) -> keras.Model:
    """A residual model of one layer."""
    rule = SCHEMES[name]
    table = keras.layers.ReversibleEmbedding(
        VOCAB,
        WIDTH,
        embeddings_initializer=keras.initializers.RandomNormal(stddev=rule.table_std(WIDTH), seed=0),
        name="embedding_of_tokens",
    )
    tokens = keras.Input((None,), dtype="int32")
    x = keras.layers.Rescaling(rule.lookup_factor(WIDTH))(table(tokens))
    if positions:
        first = keras.layers.Lambda(lambda t: keras.ops.cumsum(keras.ops.ones_like(t), axis=1) - 1)(tokens)
        x = x + keras.layers.Embedding(16, WIDTH, name="positions")(first)
    h = keras.layers.Dense(
        WIDTH,
        "tanh",
        use_bias=False,
        kernel_initializer=keras.initializers.RandomNormal(stddev=0.125, seed=1),
        name="embedding_mixer",
    )(x)
    x = keras.layers.RMSNormalization()(keras.layers.Add()([x, h]))
    return keras.Model(tokens, keras.layers.Rescaling(rule.readout_factor(WIDTH))(table(x, reverse=True)))


@cache
def pair() -> tuple[tuple[keras.Model, tiebeam.Report, list[Any]], ...]:
    """The same function twice, the report of each, and where each starts."""
    first, second = small("C"), small("D'")
    start = [numbers(v) for v in first.trainable_variables]
    moved = [w * C if v.path == OWNER else w for v, w in zip(second.trainable_variables, start, strict=True)]
    return (first, tiebeam.inspect(first, IDS), start), (second, tiebeam.inspect(second, IDS), moved)


def put(model: keras.Model, values: list[Any]) -> None:
    for variable, value in zip(model.trainable_variables, values, strict=True):
        variable.assign(value)


def fitted(model: keras.Model, optimizer: Any, epochs: int = 3, **how: Any) -> list[float]:
    """Losses of `model.fit`."""
    model.compile(optimizer, LOSS, jit_compile=False)
    history = model.fit(IDS[:, :-1], IDS[:, 1:], batch_size=2, epochs=epochs, shuffle=False, verbose=0, **how)
    return [float(x) for x in history.history["loss"]]


@contextmanager
def as_written() -> Iterator[None]:
    """TensorFlow rewrites `x / sqrt(y)` with an approximation that does not commute with powers of two."""
    if keras.backend.backend() != "tensorflow":
        yield
        return
    import tensorflow as tf

    before = tf.config.optimizer.get_experimental_options().get("disable_meta_optimizer", False)
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    try:
        yield
    finally:
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": before})


def apart(make: Callable[[keras.Model, tiebeam.Report, dict[str, float]], Any]) -> float:
    """Largest difference of losses and of parameters after training both, tables compared as U."""
    losses, ends = [], []
    for (model, report, start), c in zip(pair(), (1.0, C), strict=True):
        put(model, start)
        with as_written():
            losses.append(fitted(model, make(model, report, {OWNER: c})))
        ends.append([
            numbers(v) / (c if v.path == OWNER else 1.0)
            for v in model.trainable_variables
        ])  # fmt: skip
    assert len(set(losses[0])) == len(losses[0]), "a training that does not move shows nothing"
    worst = max(abs(x - y) for x, y in zip(*losses, strict=True))
    return max(worst, *(float(np.abs(a - b).max()) for a, b in zip(*ends, strict=True)))
