"""Flax linen modules: stateless, their variables beside them."""

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Any

from tiebeam.backends.jax.kinds.held import no_variables
from tiebeam.backends.jax.kinds.scopes import scopes
from tiebeam.backends.jax.kinds.tree import Slot, Tree
from tiebeam.errors import InputError


class LinenScopes:
    """Name stacks of linen.

    Args:
        modules: Every path that variables lie under.
    """

    def __init__(self, modules: Collection[str]) -> None:
        self._modules = modules

    def where(self, stack: str) -> str:
        """Linen names a scope after the module, and after its method where that is not `__call__`.

        A module that calls a method of its own opens a second scope, which is no second module.
        """
        root, *inner = scopes(stack) or [""]
        path, last = "", root.partition(".")[0]
        for scope in inner:
            name, _, method = scope.partition(".")
            below = f"{path}.{name}" if path else name
            if method and name == last and below not in self._modules:
                continue
            path, last = below, name
        return path


class HeldLinen:
    """A linen module and its variables.

    Args:
        model: The module.
        params: The variables that `init` returned (real, or shapes by `jax.eval_shape`), or their collection "params".
    """

    def __init__(self, model: Any, params: Any) -> None:
        self.model = model
        if params is None:
            bound = getattr(model, "scope", None) is not None
            raise InputError(
                f"{self.name} is a linen module, which holds no variables",
                got="a module that is bound to some" if bound else "no params",
                expected="the variables that init returned",
                hint="module, variables = model.unbind(); then the module, and params=variables"
                if bound
                else "pass params=model.init(key, inputs), or params=jax.eval_shape(model.init, key, inputs)",
            )
        if not isinstance(params, Mapping):
            raise no_variables(self.name, params, "the variables that init returned, a dictionary")
        self._bare = "params" not in params
        self._tree = Tree({"params": params} if self._bare else params)
        self.slots = [
            Slot((self._own(n),), a, parameter=n.startswith("params."))
            for n, a in zip(self._tree.names, self._tree.arrays, strict=True)
        ]
        # Collections aside, every path that variables lie under.
        paths = [n.split(".")[1:-1] for n in self._tree.names]
        self._scopes = LinenScopes({".".join(parts[: i + 1]) for parts in paths for i in range(len(parts))})

    def _own(self, name: str) -> str:
        """The path in the tree that the caller passed."""
        return name.removeprefix("params.") if self._bare else name

    @property
    def name(self) -> str:
        return type(self.model).__name__

    @property
    def forward(self) -> Callable[..., Any]:
        """What the inputs go to."""
        return self.model.__call__  # type: ignore[no-any-return]

    def call(self, arrays: Sequence[Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return self.model.apply(self._tree.rebuilt(arrays), *args, **kwargs)

    def rebuilt(self, arrays: Sequence[Any]) -> Any:
        tree = self._tree.rebuilt(arrays)
        return tree["params"] if self._bare else tree

    @property
    def naming(self) -> "LinenScopes":
        return self._scopes

    @property
    def kind(self) -> Hashable:
        return self.model, self._bare, self._tree.kind

    def where(self, stack: str) -> str:
        return self._scopes.where(stack)

    def tie(self, owner: str, other: str) -> str:
        return ""
