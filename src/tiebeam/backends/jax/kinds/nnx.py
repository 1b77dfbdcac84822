"""Flax nnx modules: one object that owns its variables; a variable at two places is one leaf."""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

from flax import nnx

from tiebeam.backends.jax.kinds.scopes import ModuleScopes
from tiebeam.backends.jax.kinds.tree import Slot, Tree
from tiebeam.errors import InputError


def nodes_of(node: Any, prefix: str = "", open_above: tuple[int, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Every path of every module and variable, shared ones once for each place.

    A module inside itself is not entered again.
    """
    if isinstance(node, nnx.Variable):
        yield prefix, node
        return
    if id(node) in open_above:
        return
    children: Iterator[tuple[Any, Any]]
    if isinstance(node, nnx.Module):
        yield prefix, node
    if isinstance(node, Mapping):
        children = iter(node.items())
    elif isinstance(node, list | tuple) or type(node).__name__ == "List":
        children = iter(enumerate(node))
    elif isinstance(node, nnx.Module) or type(node).__module__.startswith("flax.nnx"):
        children = ((k, v) for k, v in vars(node).items() if not k.startswith("_pytree"))
    else:
        return
    for key, child in children:
        yield from nodes_of(child, f"{prefix}.{key}" if prefix else str(key), (*open_above, id(node)))


def paths_of(node: Any) -> Iterator[tuple[str, Any]]:
    """Every path of every variable."""
    return ((path, n) for path, n in nodes_of(node) if isinstance(n, nnx.Variable))


def modules_of(node: Any) -> Iterator[tuple[str, Any]]:
    """Every path of every module."""
    return ((path, n) for path, n in nodes_of(node) if isinstance(n, nnx.Module))


def _first(module: Any) -> tuple[str, Any] | None:
    found = next(paths_of(module), None)
    return None if found is None else (found[0], found[1].get_raw_value())


class HeldNnx:
    """An nnx module, split into structure and state.

    Args:
        model: The module.
        params: None: the module holds its own; or a state that fits it (shapes will do).
    """

    def __init__(self, model: Any, params: Any) -> None:
        self.model, self._params = model, params
        self._scopes = ModuleScopes(nnx.Module, _first)
        self._structure, state = nnx.split(model)
        self._tree = Tree(state if params is None else params)
        own = Tree(state).names
        if len(own) != len(self._tree.names):
            raise InputError(
                f"the params do not fit {self.name}",
                got=f"{len(self._tree.names)} arrays",
                expected=f"{len(own)}, as nnx.state(model) holds",
                hint="pass nnx.state(model), or leave params out: the module holds its own",
            )
        groups: dict[int, list[str]] = {}
        variables: dict[str, Any] = {}
        for path, variable in paths_of(model):
            groups.setdefault(id(variable), []).append(path)
            variables[path] = variable
        self.slots = []
        for name, array in zip(own, self._tree.arrays, strict=True):
            found = variables.get(name)
            others = [n for n in groups.get(id(found), ()) if n != name]
            parameter = found is None or isinstance(found, nnx.Param)
            self.slots.append(Slot((name, *others), array, parameter=parameter))

    @property
    def name(self) -> str:
        return type(self.model).__name__

    @property
    def forward(self) -> Callable[..., Any]:
        """What the inputs go to."""
        return self.model.__call__  # type: ignore[no-any-return]

    def call(self, arrays: Sequence[Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        module = nnx.merge(self._structure, self._tree.rebuilt(arrays))
        with self._scopes.opened(modules_of(module)):
            return module(*args, **kwargs)

    def rebuilt(self, arrays: Sequence[Any]) -> Any:
        state = self._tree.rebuilt(arrays)
        return nnx.merge(self._structure, state) if self._params is None else state

    @property
    def naming(self) -> ModuleScopes:
        return self._scopes

    @property
    def kind(self) -> Hashable:
        return self._structure, self._tree.kind

    def learn(self, mark: str, names: Sequence[str]) -> bool:
        return self._scopes.learn(mark, names)

    def where(self, stack: str) -> str:
        return self._scopes.where(stack)

    def tie(self, owner: str, other: str) -> str:
        """Give both places one variable, where it serves both as it stands."""
        slots = {n: s.array for s in self.slots for n in s.names}
        a, b = slots.get(owner), slots.get(other)
        if self._params is not None or a is None or b is None or (a.shape, a.dtype) != (b.shape, b.dtype):
            return ""
        plain = all(part.isidentifier() for n in (owner, other) for part in n.split("."))
        return f"model.{other} = model.{owner}" if plain else ""
