"""Flax linen: `Embed.attend`, bare parameters, scanned, checkpointed and jitted modules, several collections."""

import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from tests.jax.models.kit import VOCAB, WIDTH, Case, Truth, case, ids

ROOT = math.sqrt(WIDTH)


class Base(nn.Module):
    """A residual language model in three methods; a case overrides the one it is about."""

    def setup(self) -> None:
        self.embed = self.make_embed()
        self.mid = nn.Dense(WIDTH)
        self.norm = self.make_norm()

    def make_embed(self) -> Any:
        return nn.Embed(VOCAB, WIDTH)

    def make_norm(self) -> Any:
        return nn.LayerNorm()

    def look(self, tokens: Any) -> Any:
        return self.embed(tokens)

    def body(self, x: Any) -> Any:
        return self.norm(x + jnp.tanh(self.mid(x)))

    def read(self, h: Any) -> Any:
        return self.embed.attend(h)

    def __call__(self, tokens: Any) -> Any:
        return self.read(self.body(self.look(tokens)))


def built(
    module: nn.Module, truth: Truth, path: tuple[str, ...] = ("params", "embed", "embedding"), *, staged: bool = True
) -> Case:
    variables = module.init(jax.random.key(0), ids())
    if not staged:
        return Case(module, variables, (ids(),), truth, variables)

    def moved(delta: Any) -> Any:
        def add(keys: Any, leaf: Any) -> Any:
            return leaf + delta if tuple(k.key for k in keys) == path else leaf

        return jax.tree_util.tree_map_with_path(add, variables)

    stages = [lambda w, a, m=m: module.apply(w, a, method=m) for m in ("look", "body", "read")]
    return Case(module, variables, (ids(),), truth, variables, *stages, moved)


def register(
    name: str, made: type[nn.Module], *, staged: bool = True, path: Any = ("params", "embed", "embedding"), **facts: Any
) -> None:
    def build() -> Case:
        return built(made(), Truth((".".join(path),), **facts), path, staged=staged)

    case(build, name, staged=staged)


register("linen_attend", Base)


class Scaled(Base):
    def look(self, tokens: Any) -> Any:
        return self.embed(tokens) * jnp.sqrt(self.embed.features)

    def read(self, h: Any) -> Any:
        return self.embed.attend(h / math.sqrt(WIDTH))


register("linen_scaled", Scaled, lookup_factor=ROOT, readout_factor=1 / ROOT)


class Bare(Base):
    """Its own parameter instead of a module."""

    def setup(self) -> None:
        super().setup()
        self.table = self.param("table", nn.initializers.normal(0.3), (VOCAB, WIDTH))

    def look(self, tokens: Any) -> Any:
        return jnp.take(self.table, tokens, axis=0)

    def read(self, h: Any) -> Any:
        return jnp.einsum("...d,vd->...v", h, self.table) * 0.5


register("linen_self_param", Bare, path=("params", "table"), readout_factor=0.5)


class Capped(Base):
    cap: float = 30.0

    def read(self, h: Any) -> Any:
        return self.cap * jnp.tanh(self.embed.attend(h) / self.cap)


register("linen_capped", Capped, soft_cap=30.0)


class Biased(Base):
    def setup(self) -> None:
        super().setup()
        self.bias = self.param("bias", nn.initializers.normal(1.0), (VOCAB,))

    def read(self, h: Any) -> Any:
        return self.embed.attend(h) + self.bias


register("linen_biased", Biased, readout_bias=True)


class RootMeanSquare(Base):
    def make_norm(self) -> Any:
        return nn.RMSNorm()

    def look(self, tokens: Any) -> Any:
        return self.embed(tokens) * 5.0


register("linen_rms_norm", RootMeanSquare, lookup_factor=5.0)


class Block(nn.Module):
    @nn.compact
    def __call__(self, x: Any, _: Any = None) -> Any:
        return x + jnp.tanh(nn.Dense(WIDTH)(nn.LayerNorm()(x))), None


class ScannedLayers(Base):
    def setup(self) -> None:
        super().setup()
        self.layers = nn.scan(Block, variable_axes={"params": 0}, split_rngs={"params": True}, length=3)()

    def body(self, x: Any) -> Any:
        return self.norm(self.layers(x, None)[0])


register("linen_scanned_layers", ScannedLayers)


class Checkpointed(Base):
    def setup(self) -> None:
        super().setup()
        self.layers = [nn.remat(Block)() for _ in range(2)]

    def body(self, x: Any) -> Any:
        for layer in self.layers:
            x, _ = layer(x)
        return self.norm(x)


register("linen_remat", Checkpointed)


class Jitted(Base):
    def setup(self) -> None:
        super().setup()
        self.block = nn.jit(Block)()

    def make_embed(self) -> Any:
        return nn.jit(nn.Embed)(VOCAB, WIDTH)

    def body(self, x: Any) -> Any:
        return self.norm(self.block(x)[0])


register("linen_jit", Jitted)


class HalfPrecision(Base):
    def make_embed(self) -> Any:
        return nn.Embed(VOCAB, WIDTH, dtype=jnp.bfloat16)

    def look(self, tokens: Any) -> Any:
        return self.embed(tokens).astype(jnp.float32) * 2.0


register("linen_half_precision", HalfPrecision, lookup_factor=2.0, rel=1e-2)


class Partitioned(Base):
    """The parameter lies in a box with names for its axes."""

    def make_embed(self) -> Any:
        boxed = nn.with_partitioning(nn.initializers.normal(0.3), ("vocab", "embed"))
        return nn.Embed(VOCAB, WIDTH, embedding_init=boxed)


register("linen_partitioned", Partitioned, staged=False)


class OwnHead(Base):
    def setup(self) -> None:
        super().setup()
        self.head = nn.Dense(VOCAB, use_bias=False)

    def read(self, h: Any) -> Any:
        return self.head(h)


register("linen_untied", OwnHead, staged=False, state="untied", readout_factor=None, counts=(1, 0, 0), normalized=False)


@case
def linen_copied_kernel() -> Case:
    """Equal at the start, two leaves for ever."""
    module = OwnHead()
    variables = module.init(jax.random.key(0), ids())
    variables["params"]["head"]["kernel"] = variables["params"]["embed"]["embedding"].T
    truth = Truth(("params.embed.embedding",), state="copy", readout_factor=None, counts=(1, 0, 0), normalized=False)
    return Case(module, variables, (ids(),), truth, variables)


class Dropping(Base):
    """Takes a flag and random keys."""

    def setup(self) -> None:
        super().setup()
        self.drop = nn.Dropout(0.1)

    def __call__(self, tokens: Any, train: bool = False) -> Any:
        x = self.drop(self.look(tokens) * 3.0, deterministic=not train)
        return self.read(self.body(x))


@case
def linen_dropout() -> Case:
    module = Dropping()
    variables = module.init(jax.random.key(0), ids())
    inputs = {"tokens": ids(), "train": True, "rngs": {"dropout": jax.random.key(1)}}
    return Case(module, variables, inputs, Truth(("params.embed.embedding",), lookup_factor=3.0), variables)


@case
def linen_params_alone() -> Case:
    """The collection "params" without its name around it."""
    module = Base()
    variables = module.init(jax.random.key(0), ids())["params"]
    return Case(module, variables, (ids(),), Truth(("embed.embedding",)), variables)


@case
def linen_abstract() -> Case:
    module = Scaled()
    shapes = jax.eval_shape(module.init, jax.random.key(0), ids())
    truth = Truth(("params.embed.embedding",), lookup_factor=ROOT, readout_factor=1 / ROOT)
    return Case(module, shapes, (ids(),), truth, shapes)


class Counting(Base):
    """Running statistics, a collection of their own, multiply each feature by a number of its own."""

    def setup(self) -> None:
        super().setup()
        self.batch_norm = nn.BatchNorm(use_running_average=True)

    def body(self, x: Any) -> Any:
        return self.norm(self.batch_norm(x))


register("linen_batch_stats", Counting, staged=False, lookup_factor=None, norm_after_lookup=True)


class Encoder(Base):
    """Read out twice, at two places, with one factor."""

    def __call__(self, tokens: Any) -> Any:
        h = self.body(self.look(tokens))
        return self.read(h), self.read(self.body(h))


register("linen_read_twice", Encoder, staged=False, counts=(1, 1, 2))
