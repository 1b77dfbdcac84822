"""Blueprints as functions of a params tree: what the Flax and Equinox builders share with them too."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tiebeam.zoo.blueprint import EPSILON, Blueprint, Built, Floats, stepped


def array(by: float) -> jax.Array:
    """A float32 array of no axes."""
    return jnp.asarray(by, jnp.float32)


def normalised(x: jax.Array, norm: str) -> jax.Array:
    """`x` over its own size, along its last axis."""
    if norm == "none":
        return x
    centred = x - x.mean(-1, keepdims=True) if norm == "layer" else x
    return centred * jax.lax.rsqrt(jnp.mean(jnp.square(centred), -1, keepdims=True) + EPSILON)


def capped(logits: jax.Array, soft_cap: float | None) -> jax.Array:
    """The logits behind a soft cap, if there is one."""
    return logits if soft_cap is None else soft_cap * jnp.tanh(logits / soft_cap)


def stepped_rows(blueprint: Blueprint, rows: jax.Array, positions: jax.Array | None) -> jax.Array:
    """Rows as the body gets them."""
    x = stepped(rows, blueprint.lookup, array)
    x = x if positions is None else x + positions[: x.shape[-2]]
    return normalised(x, "layer") if blueprint.norm_rows else x


def apply_of(blueprint: Blueprint) -> Callable[[Any, jax.Array], jax.Array]:
    """The language model or classifier as `apply(params, inputs)`."""

    def language_model(params: Any, ids: jax.Array) -> jax.Array:
        x = stepped_rows(blueprint, params["table"][ids], params.get("positions"))
        h = normalised(x + jnp.tanh(x @ params["mid"]), blueprint.norm) * params.get("gain", 1.0)
        z = stepped(h, blueprint.before, array) @ params["table" if blueprint.tied else "head"].T
        z = stepped(z + params["bias"] if blueprint.bias else z, blueprint.after, array)
        return capped(z, blueprint.soft_cap)

    def classifier(params: Any, features: jax.Array) -> jax.Array:
        scores: jax.Array = jnp.tanh(features @ params["mid"]) @ params["out"]
        return scores

    return language_model if blueprint.kind == "language model" else classifier


def as_floats(value: Any) -> Floats:
    """A float32 array of NumPy's own."""
    return np.array(jnp.asarray(value, jnp.float32))


class FunctionBuilder:
    """Builds blueprints as functions of a dictionary of arrays.

    Example:
        >>> blueprint = Blueprint(soft_cap=30.0)
        >>> built = FunctionBuilder().build(blueprint, blueprint.weights())
        >>> built.logits(built.params, blueprint.inputs()).shape
        (4, 24, 300)
    """

    framework = "jax"

    def build(self, blueprint: Blueprint, weights: Mapping[str, Floats], dtype: str = "float32") -> Built:
        """The function beside its params."""
        params = {name: jnp.asarray(value, dtype) for name, value in weights.items()}
        return self._made(blueprint, params)

    def abstract(self, blueprint: Blueprint) -> Built:
        """The function beside shapes."""
        shapes = {name: jax.ShapeDtypeStruct(value.shape, value.dtype) for name, value in blueprint.weights().items()}
        return self._made(blueprint, shapes)

    def random_state(self) -> bytes:
        """Nothing: in JAX keys are arguments."""
        return b""

    def _made(self, blueprint: Blueprint, params: Mapping[str, Any]) -> Built:
        apply = apply_of(blueprint)
        return Built(
            model=apply,
            params=params,
            names={name: (name,) for name in params},
            arrays=lambda tree: {name: as_floats(value) for name, value in tree.items()},
            logits=lambda tree, inputs: as_floats(apply(tree, jnp.asarray(inputs))),
        )
