"""Naming tensors: which parameter, buffer or attribute of the model a tensor object is."""

from collections.abc import Iterator

import torch
from torch import nn

_REGISTRIES = frozenset(("_parameters", "_buffers", "_modules"))


def named_tensors(model: nn.Module) -> Iterator[tuple[str, torch.Tensor, bool]]:
    """Every path of every parameter and buffer (name, tensor, is a parameter), aliases included."""
    for path, module in model.named_modules(remove_duplicate=False):
        for name, p in module.named_parameters(path, recurse=False, remove_duplicate=False):
            yield name, p, True
        for name, b in module.named_buffers(path, recurse=False, remove_duplicate=False):
            yield name, b, False


def loose_tensors(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors in plain attributes of modules, and in lists, tuples and dictionaries there, by path."""
    for path, module in model.named_modules(remove_duplicate=False):
        for attribute, held in vars(module).items():
            name = f"{path}.{attribute}" if path else attribute
            if isinstance(held, torch.Tensor):
                yield name, held
            elif type(held) in (list, tuple, dict) and attribute not in _REGISTRIES:
                entries = held.items() if isinstance(held, dict) else enumerate(held)
                yield from ((f"{name}.{key}", t) for key, t in list(entries) if isinstance(t, torch.Tensor))


class Names:
    """Paths by tensor object; objects are held, so an id is never reused.

    Parameters that wrappers swap in while the model runs (offloading, sharding, functional calls) are
    found by a second look at the moment of use.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.held: dict[int, torch.Tensor] = {}
        self.paths: dict[int, list[str]] = {}
        self.parameters: set[int] = set()
        self.index()
        loose = (id(t) for _, t in loose_tensors(model))
        self.residents = frozenset([*self.paths, *loose])  # objects that were there before the pass
        self.before = {n: self.held[i] for i, paths in self.paths.items() for n in paths}

    def index(self) -> None:
        for name, tensor, is_parameter in named_tensors(self.model):
            self._add(name, tensor)
            if is_parameter:
                self.parameters.add(id(tensor))

    def _add(self, name: str, tensor: torch.Tensor) -> None:
        self.held[id(tensor)] = tensor
        paths = self.paths.setdefault(id(tensor), [])
        if name not in paths:
            paths.append(name)

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
