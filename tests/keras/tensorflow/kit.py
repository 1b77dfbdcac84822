"""A model of one function: a table, a normalisation, and what stands between."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tiebeam

VOCAB, WIDTH = 37, 8
Look = Callable[[Any, Any], Any]
Read = Callable[[Any, Any], Any]


def values(seed: int = 0, shape: tuple[int, ...] = (VOCAB, WIDTH), std: float = 0.3) -> Any:
    return (np.random.default_rng(seed).standard_normal(shape) * std).astype("float32")


def tokens(batch: int = 2, length: int = 5) -> Any:
    return np.random.default_rng(3).integers(1, VOCAB, (batch, length)).astype("int32")


class Between(keras.Model):
    """Rows by `look`, a residual block and a normalisation, logits by `read`; `table` is a plain variable.

    Args:
        look: From the model and the tokens to the rows.
        read: From the model and the hidden state to what comes out.
        hold: Puts further variables on the model.
    """

    def __init__(self, look: Look, read: Read, hold: Callable[[Any], None] | None = None, **options: Any) -> None:
        super().__init__(name="lm", **options)
        self.look, self.read = look, read
        self.table = self.add_weight((VOCAB, WIDTH), name="table", initializer=lambda s, dtype=None: values())
        self.mid = keras.layers.Dense(WIDTH, activation="tanh")
        self.norm = keras.layers.LayerNormalization()
        if hold is not None:
            hold(self)

    def body(self, x: Any) -> Any:
        return self.norm(x + self.mid(x))

    def call(self, ids: Any) -> Any:
        return self.read(self, self.body(self.look(self, ids)))


def plain_look(model: Any, ids: Any) -> Any:
    return tf.gather(model.table, ids)


def plain_read(model: Any, h: Any) -> Any:
    return tf.matmul(h, model.table, transpose_b=True)


def built(
    look: Look = plain_look, read: Read = plain_read, hold: Callable[[Any], None] | None = None, **options: Any
) -> Between:
    keras.backend.clear_session(free_memory=False)
    keras.utils.set_random_seed(0)
    model = Between(look, read, hold, **options)
    model(tokens())
    return model


def seen(model: Any, inputs: Any = None) -> tiebeam.Report:
    return tiebeam.inspect(model, tokens() if inputs is None else inputs)


def table_of(report: tiebeam.Report, name: str = "lm/table") -> Any:
    found = [t for t in report.tables if name in t.names]
    assert len(found) == 1, [t.names for t in report.tables]
    return found[0]
