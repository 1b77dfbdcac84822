"""Blueprints in Flax linen: `Embed.attend` where tied, a bare parameter where not."""

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from tiebeam.zoo.blueprint import CLASSES, EPSILON, Blueprint, Built, Floats, stepped
from tiebeam.zoo.jax.blueprint import array, as_floats, capped, stepped_rows

PATHS = {
    "table": ("embed", "embedding"), "head": ("head",), "positions": ("positions",), "mid": ("mid", "kernel"),
    "gain": ("norm", "scale"), "bias": ("bias",), "out": ("out", "kernel"),
}  # fmt: skip


class LinenModel(nn.Module):
    """The language model of a blueprint."""

    blueprint: Blueprint
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, ids: Any) -> Any:
        """Logits `(batch, tokens, vocab)` of ids `(batch, tokens)`."""
        b, normal = self.blueprint, nn.initializers.normal()
        embed = nn.Embed(b.vocab, b.width, dtype=self.dtype, name="embed")
        positions = self.param("positions", normal, (b.positions, b.width)) if b.positions else None
        x = stepped_rows(b, embed(ids), positions)
        h = x + jnp.tanh(nn.Dense(b.width, use_bias=False, dtype=self.dtype, name="mid")(x))
        if b.norm == "layer":
            h = nn.LayerNorm(epsilon=EPSILON, use_bias=False, dtype=self.dtype, name="norm")(h)
        elif b.norm == "rms":
            h = nn.RMSNorm(epsilon=EPSILON, dtype=self.dtype, name="norm")(h)
        h = stepped(h, b.before, array)
        z = embed.attend(h) if b.tied else h @ self.param("head", normal, (b.vocab, b.width)).T
        z = z + self.param("bias", normal, (b.vocab,)) if b.bias else z
        return capped(stepped(z, b.after, array), b.soft_cap)


class LinenClassifier(nn.Module):
    """The control: no table."""

    blueprint: Blueprint

    @nn.compact
    def __call__(self, features: Any) -> Any:
        """Scores `(batch, classes)` of features `(batch, width)`."""
        h = jnp.tanh(nn.Dense(self.blueprint.width, use_bias=False, name="mid")(features))
        return nn.Dense(CLASSES, use_bias=False, name="out")(h)


class LinenBuilder:
    """Builds blueprints as linen modules beside their variables.

    Example:
        >>> blueprint = Blueprint(norm="rms")
        >>> built = LinenBuilder().build(blueprint, blueprint.weights())
        >>> built.names["table"]
        ('params.embed.embedding',)
    """

    framework = "jax"

    def build(self, blueprint: Blueprint, weights: Mapping[str, Floats], dtype: str = "float32") -> Built:
        """The module beside variables with these weights."""
        return self._made(blueprint, {n: jnp.asarray(value, dtype) for n, value in weights.items()}, dtype)

    def abstract(self, blueprint: Blueprint) -> Built:
        """The module beside shapes."""
        weights = blueprint.weights()
        return self._made(blueprint, {n: jax.ShapeDtypeStruct(a.shape, a.dtype) for n, a in weights.items()}, "float32")

    def random_state(self) -> bytes:
        """Nothing: in JAX keys are arguments."""
        return b""

    def _made(self, blueprint: Blueprint, weights: Mapping[str, Any], dtype: str) -> Built:
        tree: dict[str, Any] = {}
        for name, value in weights.items():
            *above, last = PATHS[name]
            place = tree
            for key in above:
                place = place.setdefault(key, {})
            place[last] = value
        language_model = blueprint.kind == "language model"
        model: Any = LinenModel(blueprint, jnp.dtype(dtype)) if language_model else LinenClassifier(blueprint)

        def at(variables: Any, name: str) -> Any:
            for key in ("params", *PATHS[name]):
                variables = variables[key]
            return variables

        return Built(
            model=model,
            params={"params": tree},
            names={name: (".".join(("params", *PATHS[name])),) for name in weights},
            arrays=lambda variables: {name: as_floats(at(variables, name)) for name in weights},
            logits=lambda variables, inputs: as_floats(model.apply(variables, jnp.asarray(inputs))),
        )
