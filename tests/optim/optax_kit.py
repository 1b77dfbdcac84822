"""Small JAX models to train with optax: one function in two parametrisations, and one of each kind."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from flax import linen, nnx

import tiebeam
from tiebeam.zoo.jax.functional import FunctionalGpt, rms_norm
from tiebeam.zoo.schemes import SCHEMES

VOCAB, WIDTH, C = 61, 64, 8.0
IDS = jnp.arange(24).reshape(2, 12) * 7 % VOCAB


class Small:
    """A residual model with one layer: quick to compile, and the zoo's GPT where that is wanted."""

    def __init__(self, scheme: str, *, gpt: bool = False) -> None:
        self.scheme = SCHEMES[scheme]
        self.gpt = FunctionalGpt.of(scheme, vocab=VOCAB, width=WIDTH, layers=1) if gpt else None

    def init(self, key: jax.Array) -> Any:
        if self.gpt is not None:
            return self.gpt.init(key)
        a, b = jax.random.split(key)
        return {
            "table": jax.random.normal(a, (VOCAB, WIDTH)) * self.scheme.table_std(WIDTH),
            "mix": jax.random.normal(b, (WIDTH, WIDTH)) / 8,
            "gain": jnp.ones(WIDTH),
        }

    def __call__(self, params: Any, ids: jax.Array) -> jax.Array:
        if self.gpt is not None:
            return self.gpt(params, ids)
        x = params["table"][ids] * self.scheme.lookup_factor(WIDTH)
        x = rms_norm(x + jnp.tanh(x @ params["mix"]), params["gain"])
        return x @ params["table"].T * self.scheme.readout_factor(WIDTH)


def report_of(scheme: str, **more: bool) -> tiebeam.Report:
    """On shapes alone, where a hidden state behind a norm has size 1 and c is exact."""
    model = Small(scheme, **more)
    return tiebeam.inspect(model, IDS, params=jax.eval_shape(model.init, jax.random.key(0)))


REPORTS = {scheme: report_of(scheme) for scheme in ("C", "D'")}


def start(scheme: str, **more: bool) -> Any:
    params = Small("C", **more).init(jax.random.key(0))
    return params if scheme == "C" else {**params, "table": params["table"] * C}


class Linen(linen.Module):
    """A table called `words`, and positions called `embedding`."""

    @linen.compact
    def __call__(self, ids: jax.Array) -> jax.Array:
        words = linen.Embed(300, 16, name="words")
        x = words(ids) + self.param("embedding", linen.initializers.normal(0.02), (12, 16))[: ids.shape[1]]
        x = x + linen.Dense(16)(x)
        return words.attend(linen.LayerNorm()(x)) * 0.25


class Nnx(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.words = nnx.Embed(300, 16, rngs=rngs)
        self.embedding = nnx.Param(jnp.zeros((12, 16)))
        self.mid, self.norm = nnx.Linear(16, 16, rngs=rngs), nnx.LayerNorm(16, rngs=rngs)

    def __call__(self, ids: jax.Array) -> jax.Array:
        x = self.words(ids) + self.embedding[: ids.shape[1]]
        return self.words.attend(self.norm(x + self.mid(x))) * 0.25


class Eqx(eqx.Module):
    words: eqx.nn.Embedding
    embedding: jax.Array
    mid: eqx.nn.Linear
    norm: eqx.nn.LayerNorm

    def __init__(self, key: jax.Array) -> None:
        self.words = eqx.nn.Embedding(300, 16, key=key)
        self.embedding = jnp.zeros((12, 16))
        self.mid, self.norm = eqx.nn.Linear(16, 16, key=key), eqx.nn.LayerNorm(16)

    def __call__(self, ids: jax.Array) -> jax.Array:
        x = jax.vmap(self.words)(ids) + self.embedding[: ids.shape[0]]
        return 0.25 * jax.vmap(self.norm)(x + jax.vmap(self.mid)(x)) @ self.words.weight.T


TOKENS = jnp.arange(8)[None] * 7
