"""Flax nnx: modules that own their variables; a variable at two places is one."""

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from flax import nnx
from tests.jax.models.kit import VOCAB, WIDTH, Case, Truth, case, ids

ROOT = math.sqrt(WIDTH)


class Base(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.embed = nnx.Embed(VOCAB, WIDTH, rngs=rngs)
        self.mid = nnx.Linear(WIDTH, WIDTH, rngs=rngs)
        self.norm = nnx.LayerNorm(WIDTH, rngs=rngs)

    def look(self, tokens: Any) -> Any:
        return self.embed(tokens)

    def body(self, x: Any) -> Any:
        return self.norm(x + jnp.tanh(self.mid(x)))

    def read(self, h: Any) -> Any:
        return self.embed.attend(h)

    def __call__(self, tokens: Any) -> Any:
        return self.read(self.body(self.look(tokens)))


def register(
    name: str,
    made: Callable[[nnx.Rngs], Any],
    *,
    staged: bool = True,
    names: tuple[str, ...] = ("embed.embedding",),
    **facts: Any,
) -> None:
    def build() -> Case:
        model = made(nnx.Rngs(0))

        def moved(delta: Any) -> Any:
            other = nnx.clone(model)
            other.embed.embedding[...] = other.embed.embedding[...] + delta
            return other

        stages: list[Any] = [lambda w, a, m=m: getattr(w, m)(a) for m in ("look", "body", "read")] if staged else []
        return Case(model, None, (ids(),), Truth(names, **facts), model, *stages, moved=moved if staged else None)

    case(build, name, staged=staged)


register("nnx_attend", Base)


class Scaled(Base):
    def look(self, tokens: Any) -> Any:
        return self.embed(tokens) * jnp.sqrt(jnp.array(WIDTH, jnp.float32))

    def read(self, h: Any) -> Any:
        return 15.0 * jnp.tanh(self.embed.attend(h) * 0.25 / 15.0)


register("nnx_scaled_and_capped", Scaled, lookup_factor=ROOT, readout_factor=0.25, soft_cap=15.0)


class SharedParam(Base):
    """One `Param` under two paths."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        super().__init__(rngs)
        self.head = nnx.Embed(VOCAB, WIDTH, rngs=rngs)
        self.head.embedding = self.embed.embedding

    def read(self, h: Any) -> Any:
        return self.head.attend(h)


register("nnx_shared_param", SharedParam, names=("embed.embedding", "head.embedding"))


class SharedModule(Base):
    def __init__(self, rngs: nnx.Rngs) -> None:
        super().__init__(rngs)
        self.decoder = nnx.Dict({"head": self.embed})

    def read(self, h: Any) -> Any:
        return self.decoder["head"].attend(h)


register("nnx_shared_module", SharedModule, names=("decoder.head.embedding", "embed.embedding"))


class BareParam(Base):
    def read(self, h: Any) -> Any:
        return h @ self.embed.embedding[...].T / 4


register("nnx_bare_param", BareParam, readout_factor=0.25)


class OwnHead(Base):
    def __init__(self, rngs: nnx.Rngs) -> None:
        super().__init__(rngs)
        self.head = nnx.Linear(WIDTH, VOCAB, use_bias=False, rngs=rngs)

    def read(self, h: Any) -> Any:
        return self.head(h)


register("nnx_untied", OwnHead, staged=False, state="untied", readout_factor=None, counts=(1, 0, 0), normalized=False)


class EqualValues(OwnHead):
    def __init__(self, rngs: nnx.Rngs) -> None:
        super().__init__(rngs)
        self.head.kernel[...] = self.embed.embedding[...].T


register(
    "nnx_equal_values", EqualValues, staged=False, state="copy", readout_factor=None, counts=(1, 0, 0), normalized=False
)


class Layered(Base):
    """A list of layers, checkpointed, with dropout that holds its own keys."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        super().__init__(rngs)
        self.layers = nnx.List([nnx.Linear(WIDTH, WIDTH, rngs=rngs) for _ in range(2)])
        self.drop = nnx.Dropout(0.1, rngs=rngs)

    def body(self, x: Any) -> Any:
        x = self.drop(x * 3.0)
        for layer in self.layers:
            x = x + nnx.remat(lambda m, v: jnp.tanh(m(v)))(layer, x)
        return self.norm(x)


register("nnx_layers_and_dropout", Layered, staged=False, lookup_factor=3.0)


class ScannedLayers(Base):
    """Layers made by vmap and run by scan: their parameters are stacked."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        super().__init__(rngs)
        self.layers = nnx.vmap(lambda r: nnx.Linear(WIDTH, WIDTH, rngs=r), in_axes=0, out_axes=0)(rngs.split(3))

    def body(self, x: Any) -> Any:
        step = nnx.scan(lambda x, layer: x + jnp.tanh(layer(x)), in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
        return self.norm(step(x, self.layers))


register("nnx_scanned_layers", ScannedLayers)


@case
def nnx_abstract() -> Case:
    model = nnx.eval_shape(lambda: Scaled(nnx.Rngs(0)))
    truth = Truth(("embed.embedding",), lookup_factor=ROOT, readout_factor=0.25, soft_cap=15.0)
    return Case(model, None, (ids(),), truth, model)
