"""The reference model as a function, in linen, nnx and Equinox; with plain operations and with the building blocks."""

from collections.abc import Mapping
from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from tests.measure.contract import REFERENCE, VOCAB, WIDTH, Built, MeasureContract, settings, single

import tiebeam.equinox
import tiebeam.linen
import tiebeam.nnx

BODY = ("w_in", "b_in", "w_out", "b_out")


def weights() -> dict[str, jax.Array]:
    return {name: jnp.asarray(single(array)) for name, array in REFERENCE.parameters.items()}


def body(p: Any, x: jax.Array) -> jax.Array:
    get = p.__getitem__ if isinstance(p, dict) else lambda name: getattr(p, name)
    w_in, b_in, w_out, b_out = (get(name) for name in BODY)
    return REFERENCE.res * x + jnp.tanh(x @ w_in + b_in) @ w_out + b_out


class Arrays(MeasureContract):
    """Arrays of a JAX model by their place."""

    def arrays(self, built: Built) -> Mapping[str, np.ndarray]:
        tree = built.params if built.params is not None else built.model
        if isinstance(tree, nnx.Module):
            tree = nnx.state(tree)
        found, _ = jax.tree_util.tree_flatten_with_path(tree)
        return {jax.tree_util.keystr(path): np.array(leaf) for path, leaf in found if eqx.is_array(leaf)}


def function(p: Any, ids: jax.Array) -> jax.Array:
    h = body(p, jnp.take(p["table"], ids, axis=0) * REFERENCE.lookup_factor)
    return h @ p["table"].T * REFERENCE.readout_factor


class TestFunction(Arrays):
    def build(self) -> Built:
        return Built(function, weights())


class LinenPlain(nn.Module):
    def setup(self) -> None:
        self.embed = nn.Embed(VOCAB, WIDTH)
        for name in BODY:
            setattr(self, name, self.param(f"own_{name}", lambda key, name=name: weights()[name]))

    def __call__(self, ids: jax.Array) -> jax.Array:
        h = body(self, self.embed(ids) * REFERENCE.lookup_factor)
        return self.embed.attend(h) * REFERENCE.readout_factor


class TestLinen(Arrays):
    def build(self) -> Built:
        model = LinenPlain()
        variables = model.init(jax.random.key(0), jnp.zeros((1, 2), int))
        return Built(model, {"params": {**variables["params"], "embed": {"embedding": weights()["table"]}}})


class LinenBlock(nn.Module):
    def setup(self) -> None:
        self.embed = tiebeam.linen.TiedEmbedding(VOCAB, WIDTH, **settings())  # type: ignore[arg-type]
        for name in BODY:
            setattr(self, name, self.param(f"own_{name}", lambda key, name=name: weights()[name]))

    def __call__(self, ids: jax.Array) -> jax.Array:
        return self.embed.attend(body(self, self.embed(ids)))


class TestLinenBlock(Arrays):
    def build(self) -> Built:
        model = LinenBlock()
        variables = model.init(jax.random.key(0), jnp.zeros((1, 2), int))
        return Built(model, {"params": {**variables["params"], "embed": {"embedding": weights()["table"]}}})


class NnxPlain(nnx.Module):
    def __init__(self) -> None:
        self.embed = nnx.Embed(VOCAB, WIDTH, rngs=nnx.Rngs(0))
        self.embed.embedding[...] = weights()["table"]
        for name in BODY:
            setattr(self, name, nnx.Param(weights()[name]))

    def __call__(self, ids: jax.Array) -> jax.Array:
        h = body(self, self.embed(ids) * REFERENCE.lookup_factor)
        return self.embed.attend(h) * REFERENCE.readout_factor


class NnxBlock(NnxPlain):
    def __init__(self) -> None:
        super().__init__()
        self.embed = tiebeam.nnx.TiedEmbedding(VOCAB, WIDTH, **settings(), rngs=nnx.Rngs(0))  # type: ignore[arg-type]
        self.embed.embedding[...] = weights()["table"]

    def __call__(self, ids: jax.Array) -> jax.Array:
        return self.embed.attend(body(self, self.embed(ids)))


class TestNnx(Arrays):
    def build(self) -> Built:
        return Built(NnxPlain())


class TestNnxBlock(Arrays):
    def build(self) -> Built:
        return Built(NnxBlock())


class EquinoxPlain(eqx.Module):
    table: jax.Array
    w_in: jax.Array
    b_in: jax.Array
    w_out: jax.Array
    b_out: jax.Array

    def __call__(self, ids: jax.Array) -> jax.Array:
        h = body(self, self.table[ids] * REFERENCE.lookup_factor)
        return jnp.einsum("btd,vd->btv", h, self.table) * REFERENCE.readout_factor


class EquinoxBlock(eqx.Module):
    embed: tiebeam.equinox.TiedEmbedding
    rest: dict[str, jax.Array]

    def __init__(self) -> None:
        block = tiebeam.equinox.TiedEmbedding(VOCAB, WIDTH, **settings(), key=jax.random.key(0))  # type: ignore[arg-type]
        table = weights()
        self.embed = eqx.tree_at(lambda b: b.weight, block, table.pop("table"))
        self.rest = table

    def __call__(self, ids: jax.Array) -> jax.Array:
        return self.embed.attend(body(self.rest, self.embed(ids)))


class TestEquinox(Arrays):
    def build(self) -> Built:
        return Built(EquinoxPlain(**weights()))


class TestEquinoxBlock(Arrays):
    def build(self) -> Built:
        return Built(EquinoxBlock())
