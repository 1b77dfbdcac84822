"""Equinox modules: pytrees, so the same array at two leaves is two parameters, and `nn.Shared` is one."""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jax import tree_util

from tiebeam.backends.jax.kinds.scopes import ModuleScopes
from tiebeam.backends.jax.kinds.tree import Slot, Tree, dotted, is_array
from tiebeam.errors import InputError


def modules_of(module: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every path of every module."""
    yield prefix, module
    within = tree_util.tree_flatten_with_path(module, is_leaf=lambda x: isinstance(x, eqx.Module) and x is not module)
    for path, found in within[0]:
        if isinstance(found, eqx.Module):
            yield from modules_of(found, ".".join(filter(None, (prefix, dotted(path)))))


def _first(module: Any) -> tuple[str, Any] | None:
    found = tree_util.tree_flatten_with_path(module)[0]
    return next(((dotted(path), leaf) for path, leaf in found if is_array(leaf)), None)


class HeldEquinox:
    """An Equinox module.

    Args:
        model: The module.
        params: None: the module holds its own.
    """

    def __init__(self, model: Any, params: Any) -> None:
        self.model = model
        self._scopes = ModuleScopes(eqx.Module, _first)
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
        module = self._tree.rebuilt(arrays)
        with self._scopes.opened(modules_of(module)):
            return module(*args, **kwargs)

    def rebuilt(self, arrays: Sequence[Any]) -> Any:
        return self._tree.rebuilt(arrays)

    @property
    def naming(self) -> ModuleScopes:
        return self._scopes

    @property
    def kind(self) -> Hashable:
        return self._tree.kind

    def learn(self, mark: str, names: Sequence[str]) -> bool:
        return self._scopes.learn(mark, names)

    def where(self, stack: str) -> str:
        return self._scopes.where(stack)

    def tie(self, owner: str, other: str) -> str:
        return ""  # `nn.Shared` changes the structure, and with it what the model calls
