"""Blueprints in Flax nnx: modules that own their variables."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from flax import nnx

from tiebeam.zoo.blueprint import CLASSES, EPSILON, Blueprint, Built, Floats, stepped
from tiebeam.zoo.jax.blueprint import array, as_floats, capped, stepped_rows

PATHS = {
    "table": "embed.embedding", "head": "head", "positions": "positions", "mid": "mid.kernel",
    "gain": "norm.scale", "bias": "bias", "out": "out.kernel",
}  # fmt: skip


class NnxModel(nnx.Module):
    """The language model of a blueprint."""

    def __init__(self, blueprint: Blueprint, dtype: Any, rngs: nnx.Rngs) -> None:
        b = self.blueprint = blueprint
        kept: dict[str, Any] = {"param_dtype": dtype, "dtype": dtype, "rngs": rngs}
        self.embed = nnx.Embed(b.vocab, b.width, **kept)
        self.mid = nnx.Linear(b.width, b.width, use_bias=False, **kept)
        if b.norm == "layer":
            self.norm = nnx.LayerNorm(b.width, epsilon=EPSILON, use_bias=False, **kept)
        elif b.norm == "rms":
            self.norm = nnx.RMSNorm(b.width, epsilon=EPSILON, **kept)
        if b.positions:
            self.positions = nnx.Param(jnp.zeros((b.positions, b.width), dtype))
        if not b.tied:
            self.head = nnx.Param(jnp.zeros((b.vocab, b.width), dtype))
        if b.bias:
            self.bias = nnx.Param(jnp.zeros((b.vocab,), dtype))

    def __call__(self, ids: Any) -> Any:
        """Logits `(batch, tokens, vocab)` of ids `(batch, tokens)`."""
        b = self.blueprint
        x = stepped_rows(b, self.embed(ids), self.positions[...] if b.positions else None)
        h = x + jnp.tanh(self.mid(x))
        h = stepped(h if b.norm == "none" else self.norm(h), b.before, array)
        z = self.embed.attend(h) if b.tied else h @ self.head[...].T
        z = z + self.bias[...] if b.bias else z
        return capped(stepped(z, b.after, array), b.soft_cap)


class NnxClassifier(nnx.Module):
    """The control: no table."""

    def __init__(self, blueprint: Blueprint, dtype: Any, rngs: nnx.Rngs) -> None:
        self.mid = nnx.Linear(blueprint.width, blueprint.width, use_bias=False, param_dtype=dtype, rngs=rngs)
        self.out = nnx.Linear(blueprint.width, CLASSES, use_bias=False, param_dtype=dtype, rngs=rngs)

    def __call__(self, features: Any) -> Any:
        """Scores `(batch, classes)` of features `(batch, width)`."""
        return self.out(jnp.tanh(self.mid(features)))


class NnxBuilder:
    """Builds blueprints as nnx modules.

    Example:
        >>> blueprint = Blueprint(positions=32)
        >>> NnxBuilder().build(blueprint, blueprint.weights()).names["positions"]
        ('positions',)
    """

    framework = "jax"

    def build(self, blueprint: Blueprint, weights: Mapping[str, Floats], dtype: str = "float32") -> Built:
        """The module with these weights."""
        built = self._made(blueprint, self._kind(blueprint)(blueprint, jnp.dtype(dtype), nnx.Rngs(0)))
        for name, value in weights.items():
            _variable(built.model, name)[...] = jnp.asarray(value, dtype)
        return built

    def abstract(self, blueprint: Blueprint) -> Built:
        """The module as `nnx.eval_shape` gives it."""
        kind = self._kind(blueprint)
        return self._made(blueprint, nnx.eval_shape(lambda: kind(blueprint, jnp.float32, nnx.Rngs(0))))

    def random_state(self) -> bytes:
        """Nothing: what is built holds no keys."""
        return b""

    def _kind(self, blueprint: Blueprint) -> Any:
        return NnxModel if blueprint.kind == "language model" else NnxClassifier

    def _made(self, blueprint: Blueprint, model: Any) -> Built:
        held = tuple(blueprint.weights())
        return Built(
            model=model,
            params=None,
            names={name: (PATHS[name],) for name in held},
            arrays=lambda model: {name: as_floats(_variable(model, name)[...]) for name in held},
            logits=lambda model, inputs: as_floats(model(jnp.asarray(inputs))),
        )


def _variable(model: Any, name: str) -> Any:
    for key in PATHS[name].split("."):
        model = getattr(model, key)
    return model
