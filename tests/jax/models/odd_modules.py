"""Modules that are seldom written so and right all the same: transformed, passed down, split and merged."""

import math
from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import nnx
from flax.nnx import bridge
from tests.jax.models.kit import VOCAB, WIDTH, Case, Truth, case, ids, rms_norm

ROOT = math.sqrt(WIDTH)


# -- linen --
class Step(nn.Module):
    """Looks up and reads out, one position at a time."""

    @nn.compact
    def __call__(self, carry: Any, token: Any) -> Any:
        embed = nn.Embed(VOCAB, WIDTH, name="e")
        return carry, embed.attend(nn.RMSNorm()(embed(token) * 2.0)) * 0.5


class OverPositions(nn.Module):
    @nn.compact
    def __call__(self, tokens: Any) -> Any:
        shared = {"variable_broadcast": "params", "split_rngs": {"params": False}}
        return nn.scan(Step, in_axes=1, out_axes=1, **shared)(name="s")(jnp.zeros(()), tokens)[1]


class OverTheBatch(nn.Module):
    @nn.compact
    def __call__(self, tokens: Any) -> Any:
        shared = {"variable_axes": {"params": None}, "split_rngs": {"params": False}}
        return nn.vmap(Step, in_axes=(None, 0), **shared)(name="s")(jnp.zeros(()), tokens)[1]


class Head(nn.Module):
    """A head that was given the embedding."""

    embed: nn.Module

    @nn.compact
    def __call__(self, x: Any) -> Any:
        return self.embed.attend(nn.LayerNorm()(x))


class PassedDown(nn.Module):
    def setup(self) -> None:
        self.embed = nn.Embed(VOCAB, WIDTH)
        self.head = Head(self.embed)

    def __call__(self, tokens: Any) -> Any:
        return self.head(self.embed(tokens) * 3.0)


class Compiled(nn.Module):
    @nn.jit
    @nn.compact
    def __call__(self, tokens: Any) -> Any:
        embed = nn.Embed(VOCAB, WIDTH, name="e")
        return embed.attend(nn.RMSNorm()(embed(tokens) * jnp.sqrt(WIDTH))) / jnp.sqrt(jnp.float32(WIDTH))


class Recomputed(nn.Module):
    @nn.remat
    @nn.compact
    def __call__(self, tokens: Any) -> Any:
        embed = nn.Embed(VOCAB, WIDTH, name="e")
        return embed.attend(nn.RMSNorm()(embed(tokens)))


class Looping(nn.Module):
    @nn.compact
    def __call__(self, tokens: Any) -> Any:
        embed, layer = nn.Embed(VOCAB, WIDTH, name="e"), nn.Dense(WIDTH)
        x = embed(tokens) * 2.0
        if self.is_mutable_collection("params"):
            layer(x)
        else:
            state = (0, x)
            x = nn.while_loop(
                lambda _, s: s[0] < 2, lambda _, s: (s[0] + 1, s[1] + jnp.tanh(layer(s[1]))), self, state
            )[1]
        return embed.attend(nn.RMSNorm()(x))


def linen(name: str, module: nn.Module, path: str, **facts: Any) -> None:
    def build() -> Case:
        variables = module.init(jax.random.key(0), ids())
        return Case(module, variables, (ids(),), Truth((path,), **facts), variables)

    case(build, name)


NORMED: dict[str, Any] = {"norm_after_lookup": True}
linen(
    "linen_scan_over_positions",
    OverPositions(),
    "params.s.e.embedding",
    lookup_factor=2.0,
    readout_factor=0.5,
    **NORMED,
)
linen(
    "linen_vmap_over_the_batch", OverTheBatch(), "params.s.e.embedding", lookup_factor=2.0, readout_factor=0.5, **NORMED
)
linen("linen_module_passed_down", PassedDown(), "params.embed.embedding", lookup_factor=3.0, **NORMED)
linen("linen_jit_of_all", Compiled(), "params.e.embedding", lookup_factor=ROOT, readout_factor=1 / ROOT, **NORMED)
linen("linen_remat_of_all", Recomputed(), "params.e.embedding", **NORMED)
linen("linen_while_loop", Looping(), "params.e.embedding", lookup_factor=2.0)


# -- nnx --
class Plain(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.e = nnx.Embed(VOCAB, WIDTH, rngs=rngs)
        self.n = nnx.RMSNorm(WIDTH, rngs=rngs)

    def __call__(self, tokens: Any) -> Any:
        return self.e.attend(self.n(self.e(tokens) * 2.0))


class MethodsTransformed(Plain):
    @nnx.remat
    def body(self, x: Any) -> Any:
        return self.n(x + jnp.tanh(x))

    @nnx.jit
    def __call__(self, tokens: Any) -> Any:
        return self.e.attend(self.body(self.e(tokens) * 3.0))


class SplitInside(Plain):
    def __call__(self, tokens: Any) -> Any:
        other = nnx.merge(*nnx.split(self))
        return other.e.attend(other.n(other.e(tokens) * 2.0))


class VmappedWhole(Plain):
    def __call__(self, tokens: Any) -> Any:
        return nnx.vmap(lambda m, t: m.e.attend(m.n(m.e(t) * 2.0)), in_axes=(None, 0))(self, tokens)


class BranchOverTheModule(Plain):
    def __call__(self, tokens: Any) -> Any:
        h = self.n(self.e(tokens) * 2.0)
        return nnx.cond(tokens[0, 0] > 1, lambda e, x: e.attend(x) * 2.0, lambda e, x: e.attend(x) * 2.0, self.e, h)


class Counts(Plain):
    """State that changes in the pass, and a factor that is learned."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        super().__init__(rngs)
        self.calls, self.by = nnx.Variable(jnp.int32(0)), nnx.Param(jnp.float32(0.25))

    def __call__(self, tokens: Any) -> Any:
        self.calls[...] = self.calls[...] + 1
        return super().__call__(tokens) * self.by[...]


def of_nnx(name: str, made: Any, **facts: Any) -> None:
    def build() -> Case:
        model = made(nnx.Rngs(0))
        return Case(model, None, (ids(),), Truth(("e.embedding",), **{"lookup_factor": 2.0, **facts}), model)

    case(build, name)


of_nnx("nnx_methods_transformed", MethodsTransformed, lookup_factor=3.0)
of_nnx("nnx_split_and_merge_inside", SplitInside, **NORMED)
of_nnx("nnx_vmap_of_all", VmappedWhole, **NORMED)
of_nnx("nnx_cond_over_the_module", BranchOverTheModule, readout_factor=2.0, counts=(1, 1, 2), **NORMED)
of_nnx("nnx_counter_and_learned_factor", Counts, readout_factor=0.25, **NORMED)


@case
def nnx_split_outside() -> Case:
    """Structure closed over, params an argument."""
    structure, params, rest = nnx.split(Plain(nnx.Rngs(0)), nnx.Param, ...)

    def model(p: Any, tokens: Any) -> Any:
        return nnx.merge(structure, p, rest)(tokens)

    truth = Truth(("e.embedding",), lookup_factor=2.0, norm_after_lookup=True)
    return Case(model, params, (ids(),), truth, params)


class LinenPlain(nn.Module):
    @nn.compact
    def __call__(self, tokens: Any) -> Any:
        embed = nn.Embed(VOCAB, WIDTH, name="e")
        return embed.attend(nn.RMSNorm()(embed(tokens) * 2.0))


@case
def nnx_around_linen() -> Case:
    model = bridge.ToNNX(LinenPlain(), rngs=nnx.Rngs(0)).lazy_init(ids())
    truth = Truth(("e.embedding",), lookup_factor=2.0, norm_after_lookup=True)
    return Case(model, None, (ids(),), truth, model)


# -- Equinox --
class Fields(eqx.Module):
    """A number and a function among the fields; layers checkpointed."""

    e: eqx.nn.Embedding
    n: eqx.nn.RMSNorm
    layers: list[eqx.nn.Linear]
    by: float
    act: Any

    def __init__(self, key: Any) -> None:
        self.e = eqx.nn.Embedding(VOCAB, WIDTH, key=key)
        self.n = eqx.nn.RMSNorm(WIDTH)
        self.layers = [eqx.nn.Linear(WIDTH, WIDTH, key=key) for _ in range(2)]
        self.by, self.act = 3.0, jax.nn.gelu

    def __call__(self, tokens: Any) -> Any:
        x = jax.vmap(self.e)(tokens) * self.by
        for layer in self.layers:
            x = x + self.act(eqx.filter_checkpoint(lambda m, v: jax.vmap(m)(v))(layer, x))
        return jax.vmap(self.n)(x) @ self.e.weight.T


class Stacked(eqx.Module):
    """Layers made by vmap and run by scan."""

    e: eqx.nn.Embedding
    n: eqx.nn.RMSNorm
    layers: eqx.nn.Linear

    def __init__(self, key: Any) -> None:
        self.e = eqx.nn.Embedding(VOCAB, WIDTH, key=key)
        self.n = eqx.nn.RMSNorm(WIDTH)
        self.layers = eqx.filter_vmap(lambda k: eqx.nn.Linear(WIDTH, WIDTH, key=k))(jax.random.split(key, 3))

    def __call__(self, tokens: Any) -> Any:
        arrays, rest = eqx.partition(self.layers, eqx.is_array)

        def step(x: Any, layer: Any) -> Any:
            return x + jnp.tanh(jax.vmap(eqx.combine(layer, rest))(x)), None

        x = jax.lax.scan(step, jax.vmap(self.e)(tokens) * 3.0, arrays)[0]
        return jax.vmap(self.n)(x) @ self.e.weight.T


class SharedAndCompiled(eqx.Module):
    both: eqx.nn.Shared
    n: eqx.nn.LayerNorm

    def __init__(self, key: Any) -> None:
        pair = eqx.nn.Embedding(VOCAB, WIDTH, key=key), eqx.nn.Linear(WIDTH, VOCAB, use_bias=False, key=key)
        self.both = eqx.nn.Shared(pair, lambda p: p[1].weight, lambda p: p[0].weight)
        self.n = eqx.nn.LayerNorm(WIDTH)

    @eqx.filter_jit
    def __call__(self, tokens: Any) -> Any:
        embed, head = self.both()
        return jax.vmap(head)(jax.vmap(self.n)(jax.vmap(embed)(tokens) * 3.0))


class OneModuleTwice(eqx.Module):
    """`model.a is model.b`, and yet each is a leaf of its own: training parts them."""

    a: eqx.nn.Embedding
    b: eqx.nn.Embedding

    def __init__(self, key: Any) -> None:
        self.a = self.b = eqx.nn.Embedding(VOCAB, WIDTH, key=key)

    def __call__(self, tokens: Any) -> Any:
        return rms_norm(jax.vmap(self.a)(tokens) * 3.0) @ self.b.weight.T


def of_equinox(name: str, made: Any, leaf: str, **facts: Any) -> None:
    def build() -> Case:
        model = made(jax.random.key(0))
        return Case(model, None, (ids(1)[0],), Truth((leaf,), **{"lookup_factor": 3.0, **facts}), model)

    case(build, name)


of_equinox("eqx_number_among_the_fields", Fields, "e.weight")
of_equinox("eqx_scanned_layers", Stacked, "e.weight")
of_equinox("eqx_shared_and_compiled", SharedAndCompiled, "both.pytree.0.weight", **NORMED)
of_equinox(
    "eqx_one_module_twice",
    OneModuleTwice,
    "a.weight",
    state="copy",
    partner="b.weight",
    readout_factor=None,
    counts=(1, 0, 0),
    normalized=False,
    **NORMED,
)


@case
def eqx_as_the_params_of_a_function() -> Case:
    model = Stacked(jax.random.key(0))
    truth = Truth(("e.weight",), lookup_factor=3.0)
    return Case(lambda p, tokens: jax.vmap(p)(tokens), model, (ids(),), truth, model)
