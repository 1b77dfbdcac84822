"""Small real models in three stages, whose truth was worked out by hand; one file a kind.

`look` gives the rows as the body gets them, `body` the hidden state, `read` what comes out. Whoever holds a truth
against numbers runs the stages one by one, each with a table of its own: that is what moving one role alone means.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

VOCAB, WIDTH, BATCH, LENGTH = 37, 8, 2, 5


@dataclass(frozen=True)
class Truth:
    """What is so, by hand. `counts`: lookup records, readout records, executions of the first readout."""

    names: tuple[str, ...] = ("table",)
    state: str = "tied"
    lookup_factor: float | None = 1.0
    readout_factor: float | None = 1.0
    soft_cap: float | None = None
    readout_bias: bool = False
    norm_after_lookup: bool | None = False  # None: not said
    partner: str | None = None
    counts: tuple[int, int, int] | None = (1, 1, 1)
    vocab: int = VOCAB
    width: int = WIDTH
    vocab_axis: int = 0
    normalized: bool = True
    rel: float = 1e-6


Stage = Callable[[Any, Any], Any]


@dataclass(frozen=True)
class Case:
    """A model, what it takes, and its stages.

    Attributes:
        weights: What the stages take first: params, or the module itself.
        params: For `inspect`: None where the module holds its own.
        moved: The weights with something added to the table.
    """

    model: Any
    params: Any
    inputs: Any
    truth: Truth
    weights: Any
    look: Stage | None = None
    body: Stage | None = None
    read: Stage | None = None
    moved: Callable[[Any], Any] | None = None


CASES: dict[str, Callable[[], Case]] = {}
STAGED: set[str] = set()  # those whose stages establish the factors: no random numbers, constants there are


def case(build: Callable[[], Case], name: str = "", *, staged: bool = False) -> Callable[[], Case]:
    """Register a builder."""
    name = name or build.__name__
    assert name not in CASES, name
    CASES[name] = build
    if staged:
        STAGED.add(name)
    return build


def ids(batch: int = BATCH, length: int = LENGTH, vocab: int = VOCAB) -> jax.Array:
    return jax.random.randint(jax.random.key(3), (batch, length), 0, vocab)


def normal(seed: int, *shape: int, std: float = 0.3) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), shape) * std


def layer_norm(x: jax.Array) -> jax.Array:
    mean = x.mean(-1, keepdims=True)
    return (x - mean) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-6)


def rms_norm(x: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)


def load() -> dict[str, Callable[[], Case]]:
    """Import every kind."""
    from tests.jax.models import codebases, equinox, functions, linen, nnx, odd, odd_modules, programs  # noqa: F401

    return CASES
