"""Small real models in three stages, whose truth was worked out by hand; one file a kind.

`look` gives the rows as the body gets them, `body` the hidden state, `read` what comes out; a model is the three one
after the other, whether drawn as a graph or written as a class. Whoever holds a truth against numbers runs the stages
one by one, and moves the table for one of them alone.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from keras import ops

VOCAB, WIDTH, BATCH, LENGTH = 37, 8, 2, 5


@dataclass(frozen=True)
class Truth:
    """What is so, by hand. `counts`: lookup records, readout records, executions of the first readout."""

    names: tuple[str, ...] = ("embedding/embeddings",)
    state: str = "tied"
    lookup_factor: float | None = 1.0
    readout_factor: float | None = 1.0
    soft_cap: float | None = None
    readout_bias: bool = False
    norm_after_lookup: bool = False
    partner: str | None = None
    counts: tuple[int, int, int] | None = (1, 1, 1)
    vocab_axis: int = 0
    normalized: bool = True
    rel: float = 1e-6  # of the factors
    noise: float = 1e-4  # of what a stage computes


Stage = Callable[[Any], Any]


@dataclass(frozen=True)
class Case:
    """A model, what it takes, the table that the truth is about, and the stages."""

    model: Any
    inputs: Any
    truth: Truth
    table: Any = None
    look: Stage | None = None
    body: Stage | None = None
    read: Stage | None = None

    @contextmanager
    def moved(self, delta: Any) -> Iterator[None]:
        """The table with something added to it."""
        before = numbers(self.table)
        self.table.assign(before + delta)
        try:
            yield
        finally:
            self.table.assign(before)


CASES: dict[str, Callable[[], Case]] = {}
STAGED: set[str] = set()  # those whose stages establish the factors


def case(name: str, *, staged: bool = True) -> Callable[[Callable[[], Case]], Callable[[], Case]]:
    """Register a builder; names of layers start anew in each."""

    def register(build: Callable[[], Case]) -> Callable[[], Case]:
        def fresh() -> Case:
            keras.backend.clear_session(free_memory=False)
            keras.utils.set_random_seed(0)
            return build()

        assert name not in CASES, name
        CASES[name] = fresh
        if staged:
            STAGED.add(name)
        return build

    return register


def numbers(x: Any) -> Any:
    """A tensor or variable in NumPy, in float32."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Keras' own way into NumPy
        return np.asarray(ops.convert_to_numpy(ops.cast(x, "float32")))


def ids(batch: int = BATCH, length: int = LENGTH, vocab: int = VOCAB) -> Any:
    return np.random.default_rng(3).integers(1, vocab, (batch, length)).astype("int32")


def embedding(**options: Any) -> keras.layers.Embedding:
    return keras.layers.Embedding(VOCAB, WIDTH, embeddings_initializer=normal(), **options)


def reversible(**options: Any) -> keras.layers.ReversibleEmbedding:
    return keras.layers.ReversibleEmbedding(VOCAB, WIDTH, embeddings_initializer=normal(), **options)


def normal(std: float = 0.3) -> keras.initializers.Initializer:
    return keras.initializers.RandomNormal(stddev=std, seed=1)


def residual() -> Stage:
    """A block and a normalisation behind it."""
    dense, add = keras.layers.Dense(WIDTH, activation="tanh"), keras.layers.Add()
    norm = keras.layers.LayerNormalization()
    return lambda x: norm(add([x, dense(x)]))


def drawn(look: Stage, body: Stage, read: Stage, **inputs: Any) -> keras.Model:
    """A functional model of three stages."""
    tokens = keras.Input((None,), dtype="int32", name="tokens", **inputs)
    return keras.Model(tokens, read(body(look(tokens))))


def functional(table: keras.layers.Layer, look: Stage, read: Stage, body: Stage | None = None, **facts: Any) -> Case:
    """A functional model whose table is the embeddings of a layer."""
    body = body or residual()
    model = drawn(look, body, read)
    variable = table._embeddings
    facts.setdefault("names", (variable.path,))
    return Case(model, ids(), Truth(**facts), variable, look, body, read)


class Written(keras.Model):
    """A subclassed model in three methods; a case overrides the one that it is about."""

    def __init__(self, **options: Any) -> None:
        super().__init__(name="lm", **options)
        self.embed = self.make_embed()
        self.norm = keras.layers.LayerNormalization()
        self.make_body()

    def make_embed(self) -> Any:
        return embedding()

    def make_body(self) -> None:
        self.mid = keras.layers.Dense(WIDTH, activation="tanh")

    def look(self, tokens: Any) -> Any:
        return self.embed(tokens)

    def body(self, x: Any) -> Any:
        return self.norm(x + self.mid(x))

    def read(self, h: Any) -> Any:
        return ops.matmul(h, ops.transpose(self.embed.embeddings))

    def call(self, tokens: Any) -> Any:
        return self.read(self.body(self.look(tokens)))


def written(made: type[Written], table: Callable[[Any], Any] = lambda m: m.embed._embeddings, **facts: Any) -> Case:
    """A subclassed model, built by being called."""
    model = made()
    model(ids())
    facts.setdefault("names", ("lm/embedding/embeddings",))
    return Case(model, ids(), Truth(**facts), table(model), model.look, model.body, model.read)


def load() -> dict[str, Callable[[], Case]]:
    """Import every kind."""
    from tests.keras.models import functional, precision, states, subclassed  # noqa: F401

    return CASES
