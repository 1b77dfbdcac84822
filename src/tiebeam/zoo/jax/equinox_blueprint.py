"""Blueprints in Equinox: pytrees whose leaves are the weights."""

from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from tiebeam.zoo.blueprint import EPSILON, Blueprint, Built, Floats, stepped
from tiebeam.zoo.jax.blueprint import array, as_floats, capped, stepped_rows

PATHS = {
    "table": "embed.weight", "head": "head", "positions": "positions", "mid": "mid", "gain": "norm.weight",
    "bias": "bias", "out": "out",
}  # fmt: skip


class EquinoxModel(eqx.Module):
    """The language model of a blueprint."""

    blueprint: Blueprint = eqx.field(static=True)
    embed: eqx.nn.Embedding
    mid: jax.Array
    norm: Any
    head: jax.Array | None
    positions: jax.Array | None
    bias: jax.Array | None

    def __init__(self, blueprint: Blueprint, weights: Mapping[str, Any]) -> None:
        self.blueprint = blueprint
        self.embed = eqx.nn.Embedding(weight=weights["table"])
        self.mid = weights["mid"]
        norms = {"layer": eqx.nn.LayerNorm, "rms": eqx.nn.RMSNorm}
        norm = None
        if blueprint.norm in norms:
            norm = norms[blueprint.norm](blueprint.width, eps=EPSILON, use_bias=False)
            norm = eqx.tree_at(lambda n: n.weight, norm, weights["gain"])
        self.norm = norm
        self.head, self.positions, self.bias = (weights.get(name) for name in ("head", "positions", "bias"))

    def __call__(self, ids: Any) -> Any:
        """Logits `(batch, tokens, vocab)` of ids `(batch, tokens)`."""
        b = self.blueprint
        x = stepped_rows(b, jax.vmap(jax.vmap(self.embed))(ids), self.positions)
        h = x + jnp.tanh(x @ self.mid)
        h = stepped(h if self.norm is None else jax.vmap(jax.vmap(self.norm))(h), b.before, array)
        z = h @ (self.embed.weight if self.head is None else self.head).T
        z = z if self.bias is None else z + self.bias
        return capped(stepped(z, b.after, array), b.soft_cap)


class EquinoxClassifier(eqx.Module):
    """The control: no table."""

    mid: jax.Array
    out: jax.Array

    def __init__(self, blueprint: Blueprint, weights: Mapping[str, Any]) -> None:
        self.mid, self.out = weights["mid"], weights["out"]

    def __call__(self, features: Any) -> Any:
        """Scores `(batch, classes)` of features `(batch, width)`."""
        return jnp.tanh(features @ self.mid) @ self.out


class EquinoxBuilder:
    """Builds blueprints as Equinox modules.

    Example:
        >>> blueprint = Blueprint(bias=True)
        >>> EquinoxBuilder().build(blueprint, blueprint.weights()).names["table"]
        ('embed.weight',)
    """

    framework = "jax"

    def build(self, blueprint: Blueprint, weights: Mapping[str, Floats], dtype: str = "float32") -> Built:
        """The module with these weights."""
        held = {name: jnp.asarray(value, dtype) for name, value in weights.items()}
        return self._made(blueprint, self._kind(blueprint)(blueprint, held))

    def abstract(self, blueprint: Blueprint) -> Built:
        """The module as `eqx.filter_eval_shape` gives it."""
        held = {name: jnp.asarray(value) for name, value in blueprint.weights().items()}
        return self._made(blueprint, eqx.filter_eval_shape(self._kind(blueprint), blueprint, held))

    def random_state(self) -> bytes:
        """Nothing: in JAX keys are arguments."""
        return b""

    def _kind(self, blueprint: Blueprint) -> Any:
        return EquinoxModel if blueprint.kind == "language model" else EquinoxClassifier

    def _made(self, blueprint: Blueprint, model: Any) -> Built:
        held = tuple(blueprint.weights())
        return Built(
            model=model,
            params=None,
            names={name: (PATHS[name],) for name in held},
            arrays=lambda model: {name: as_floats(_leaf(model, name)) for name in held},
            logits=lambda model, inputs: as_floats(model(jnp.asarray(inputs))),
        )


def _leaf(model: Any, name: str) -> Any:
    for key in PATHS[name].split("."):
        model = getattr(model, key)
    return model
