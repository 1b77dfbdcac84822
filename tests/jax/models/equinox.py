"""Equinox: pytrees whose leaves are the parameters, `nn.Shared`, and arrays that only look shared."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from tests.jax.models.kit import LENGTH, VOCAB, WIDTH, Case, Truth, case, ids


def tokens() -> Any:
    return ids(1, LENGTH)[0]


class Base(eqx.Module):
    embed: eqx.nn.Embedding
    mid: eqx.nn.Linear
    norm: eqx.nn.LayerNorm
    name: str = "base"  # a leaf that is no array

    def __init__(self, key: Any) -> None:
        a, b = jax.random.split(key)
        self.embed = eqx.nn.Embedding(VOCAB, WIDTH, key=a)
        self.mid = eqx.nn.Linear(WIDTH, WIDTH, key=b)
        self.norm = eqx.nn.LayerNorm(WIDTH)

    def look(self, t: Any) -> Any:
        return jax.vmap(self.embed)(t)

    def body(self, x: Any) -> Any:
        return jax.vmap(self.norm)(x + jnp.tanh(jax.vmap(self.mid)(x)))

    def read(self, h: Any) -> Any:
        return h @ self.embed.weight.T

    def __call__(self, t: Any) -> Any:
        return self.read(self.body(self.look(t)))


def register(
    name: str,
    made: Callable[[Any], Any],
    table: Any,
    *,
    staged: bool = True,
    names: tuple[str, ...] = ("embed.weight",),
    **facts: Any,
) -> None:
    def build() -> Case:
        model = made(jax.random.key(0))

        def moved(delta: Any) -> Any:
            return eqx.tree_at(table, model, table(model) + delta)

        stages: list[Any] = [lambda w, a, m=m: getattr(w, m)(a) for m in ("look", "body", "read")] if staged else []
        return Case(model, None, (tokens(),), Truth(names, **facts), model, *stages, moved=moved if staged else None)

    case(build, name, staged=staged)


def embedding(m: Any) -> Any:
    return m.embed.weight


register("eqx_by_hand", Base, embedding)


class Scaled(Base):
    def look(self, t: Any) -> Any:
        return jax.vmap(self.embed)(t) * WIDTH**0.5

    def read(self, h: Any) -> Any:
        return jax.vmap(lambda v: self.embed.weight @ v)(h) * 0.5


register("eqx_scaled", Scaled, embedding, lookup_factor=WIDTH**0.5, readout_factor=0.5)


class Shared(eqx.Module):
    """`nn.Shared` keeps one leaf for the two places."""

    both: eqx.nn.Shared
    norm: eqx.nn.RMSNorm

    def __init__(self, key: Any) -> None:
        a, b = jax.random.split(key)
        pair = eqx.nn.Embedding(VOCAB, WIDTH, key=a), eqx.nn.Linear(WIDTH, VOCAB, use_bias=False, key=b)
        self.both = eqx.nn.Shared(pair, lambda p: p[1].weight, lambda p: p[0].weight)
        self.norm = eqx.nn.RMSNorm(WIDTH)

    def look(self, t: Any) -> Any:
        return jax.vmap(self.both()[0])(t) * 2.0

    def body(self, x: Any) -> Any:
        return jax.vmap(self.norm)(x)

    def read(self, h: Any) -> Any:
        return jax.vmap(self.both()[1])(h)

    def __call__(self, t: Any) -> Any:
        return self.read(self.body(self.look(t)))


register(
    "eqx_shared",
    Shared,
    lambda m: m.both.pytree[0].weight,
    names=("both.pytree.0.weight",),
    lookup_factor=2.0,
    norm_after_lookup=True,
)


class OwnHead(Base):
    head: eqx.nn.Linear

    def __init__(self, key: Any) -> None:
        a, b = jax.random.split(key)
        super().__init__(a)
        self.head = eqx.nn.Linear(WIDTH, VOCAB, use_bias=False, key=b)

    def read(self, h: Any) -> Any:
        return jax.vmap(self.head)(h)


ONE_ROLE: dict[str, Any] = {"staged": False, "readout_factor": None, "counts": (1, 0, 0), "normalized": False}

register("eqx_untied", OwnHead, embedding, state="untied", **ONE_ROLE)


def same_array(key: Any) -> Any:
    """`a is b` holds at two leaves, and the first step of training parts them."""
    model = OwnHead(key)
    return eqx.tree_at(lambda m: m.head.weight, model, model.embed.weight)


register("eqx_same_array_at_two_leaves", same_array, embedding, state="copy", **ONE_ROLE)


class Dropping(Base):
    drop: eqx.nn.Dropout

    def __init__(self, key: Any) -> None:
        super().__init__(key)
        self.drop = eqx.nn.Dropout(0.2)

    def __call__(self, t: Any, *, key: Any) -> Any:
        return self.read(self.body(self.drop(self.look(t) * 3.0, key=key)))


@case
def eqx_dropout() -> Case:
    model = Dropping(jax.random.key(0))
    truth = Truth(("embed.weight",), lookup_factor=3.0)
    return Case(model, None, {"t": tokens(), "key": jax.random.key(2)}, truth, model)


class Batched(Base):
    """vmapped over the batch from outside, and jitted by Equinox."""

    @eqx.filter_jit
    def __call__(self, t: Any) -> Any:
        return jax.vmap(super().__call__)(t) / 4


@case
def eqx_filter_jit() -> Case:
    model = Batched(jax.random.key(0))
    return Case(model, None, (ids(),), Truth(("embed.weight",), readout_factor=0.25), model)


@case
def eqx_abstract() -> Case:
    model = eqx.filter_eval_shape(Scaled, jax.random.key(0))
    truth = Truth(("embed.weight",), lookup_factor=WIDTH**0.5, readout_factor=0.5)
    return Case(model, None, (tokens(),), truth, model)
