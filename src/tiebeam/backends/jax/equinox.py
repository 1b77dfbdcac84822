"""Equinox modules: pytrees, so the same array at two leaves is two parameters, and `nn.Shared` is one."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp

from tiebeam.backends.jax.held import scopes
from tiebeam.backends.jax.tree import Slot, Tree
from tiebeam.errors import InputError


class HeldEquinox:
    """An Equinox module.

    Args:
        model: The module.
        params: None: the module holds its own.
    """

    def __init__(self, model: Any, params: Any) -> None:
        self.model = model
        if params is not None:
            raise InputError(
                f"{self.name} is an Equinox module, which holds its own arrays",
                got="params as well",
                expected="the module alone",
                hint="pass the module alone; for abstract ones, eqx.filter_eval_shape(make_model, key)",
            )
        self._tree = Tree(model)
        self.slots = [
            Slot((n,), a, parameter=bool(jnp.issubdtype(a.dtype, jnp.inexact)))  # as eqx.is_inexact_array has it
            for n, a in zip(self._tree.names, self._tree.arrays, strict=True)
        ]

    @property
    def name(self) -> str:
        return type(self.model).__name__

    @property
    def forward(self) -> Callable[..., Any]:
        """What the inputs go to."""
        return self.model.__call__  # type: ignore[no-any-return]

    def call(self, arrays: Sequence[Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return self._tree.rebuilt(arrays)(*args, **kwargs)

    def rebuilt(self, arrays: Sequence[Any]) -> Any:
        return self._tree.rebuilt(arrays)

    def where(self, stack: str) -> str:
        """Equinox's own layers name their class, which is no place in the model."""
        return ".".join(s for s in scopes(stack) if not s.startswith("eqx."))

    def tie(self, owner: str, other: str) -> str:
        return ""  # `nn.Shared` changes the structure, and with it what the model calls
