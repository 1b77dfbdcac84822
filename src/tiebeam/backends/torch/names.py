"""Naming tensors: which parameter, buffer or attribute of the model a tensor object is."""

from collections.abc import Iterator

import torch
from torch import nn

_OF_EVERY_MODULE = frozenset(vars(nn.Module()))  # registries and hooks
_NEVER = frozenset((bool, int, float, str, type(None)))  # most other attributes

Paths = list[tuple[str, nn.Module]]


class StandIn(nn.Module):
    """A module in the place of another library's model, which says itself what that is made of."""

    def module_paths(self) -> Paths:
        """Every path of every module."""
        raise NotImplementedError

    def tensor_paths(self) -> Iterator[tuple[str, torch.Tensor, bool]]:
        """Every path of every parameter and buffer (name, tensor, is a parameter)."""
        raise NotImplementedError


def module_tree(model: nn.Module) -> Paths:
    """Every path of every module in the order of `named_modules`, aliases included; none through itself.

    Looking at a model walks it before and after each pass: `named_modules` goes through a generator a level.
    """
    if isinstance(model, StandIn):
        return model.module_paths()
    paths: Paths = []
    _visit("", model, paths, set())
    return paths


def _visit(path: str, module: nn.Module, paths: Paths, above: set[int]) -> None:
    """Add a module and what is in it; `above` are those that it is part of, for a module may hold one of them."""
    paths.append((path, module))
    above.add(id(module))
    front = f"{path}." if path else ""
    for name, child in module._modules.items():
        if child is not None and id(child) not in above:
            _visit(front + name, child, paths, above)
    above.remove(id(module))


def first_paths(tree: Paths) -> Paths:
    """Each module once."""
    once: dict[int, tuple[str, nn.Module]] = {}
    for path, module in tree:
        once.setdefault(id(module), (path, module))
    return list(once.values())


def named_tensors(model: nn.Module, paths: Paths | None = None) -> Iterator[tuple[str, torch.Tensor, bool]]:
    """Every path of every parameter and buffer (name, tensor, is a parameter), aliases included."""
    if isinstance(model, StandIn):
        yield from model.tensor_paths()
        return
    for path, module in module_tree(model) if paths is None else paths:
        front = f"{path}." if path else ""
        for registry, is_parameter in ((module._parameters, True), (module._buffers, False)):
            for name, tensor in registry.items():
                if tensor is not None:
                    yield front + name, tensor, is_parameter


def all_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Every parameter by every path of it."""
    return {path: t for path, t, is_parameter in named_tensors(model) if is_parameter}  # type: ignore[misc]


def loose_tensors(model: nn.Module, paths: Paths | None = None) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors in plain attributes of modules, and in lists, tuples and dictionaries there, by path."""
    for path, module in module_tree(model) if paths is None else paths:
        own = vars(module).copy()  # another thread may be running the model, and note something there
        for attribute in [a for a in own if a not in _OF_EVERY_MODULE]:
            held = own[attribute]
            kind = type(held)
            if kind in _NEVER:
                continue
            if isinstance(held, torch.Tensor):
                yield f"{path}.{attribute}" if path else attribute, held
            elif kind in (list, tuple, dict) and held:
                name = f"{path}.{attribute}" if path else attribute
                entries = held.items() if isinstance(held, dict) else enumerate(held)
                yield from ((f"{name}.{key}", t) for key, t in list(entries) if isinstance(t, torch.Tensor))


class Names:
    """Paths by tensor object; objects are held, so an id is never reused.

    Parameters that wrappers swap in while the model runs (offloading, sharding, functional calls) are
    found by a second look at the moment of use.

    Args:
        paths: `module_tree(model)`, where the caller has it.
    """

    def __init__(self, model: nn.Module, paths: Paths | None = None) -> None:
        self.model = model
        self.held: dict[int, torch.Tensor] = {}
        self.paths: dict[int, list[str]] = {}
        self.parameters: set[int] = set()
        now = module_tree(model) if paths is None else paths
        self.index(now)
        self.loose = [t for _, t in loose_tensors(model, now)]
        self.residents = frozenset([*self.paths, *map(id, self.loose)])  # objects that were there before the pass
        self.before = {n: self.held[i] for i, paths in self.paths.items() for n in paths}

    def index(self, paths: Paths | None = None) -> None:
        for name, tensor, is_parameter in named_tensors(self.model, paths):
            self._add(name, tensor)
            if is_parameter:
                self.parameters.add(id(tensor))

    def _add(self, name: str, tensor: torch.Tensor) -> None:
        self.held[id(tensor)] = tensor
        paths = self.paths.setdefault(id(tensor), [])
        if name not in paths:
            paths.append(name)

    def owned(self) -> list[nn.Parameter]:
        """Each parameter once, in order."""
        return [t for i, t in self.held.items() if i in self.parameters]  # type: ignore[misc]

    def of(self, tensor: torch.Tensor) -> tuple[str, ...]:
        return tuple(self.paths.get(id(tensor), ()))

    def look_again(self, tensor: torch.Tensor) -> tuple[str, ...]:
        """Search the model as it is now, plain attributes included."""
        self.index()
        if id(tensor) not in self.paths:
            for name, loose in loose_tensors(self.model):
                if loose is tensor:
                    self._add(name, tensor)
        return self.of(tensor)
