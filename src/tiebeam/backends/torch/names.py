"""Naming tensors: which parameter, buffer or attribute of the model a tensor object is."""

from collections.abc import Iterator

import torch
from torch import nn


def named_tensors(model: nn.Module) -> Iterator[tuple[str, torch.Tensor, bool]]:
    """Every path of every parameter and buffer (name, tensor, is a parameter), aliases included."""
    for name, p in model.named_parameters(remove_duplicate=False):
        yield name, p, True
    for name, b in model.named_buffers(remove_duplicate=False):
        yield name, b, False


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
        self.residents = frozenset(self.paths)  # objects that were there before the pass
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
        """Search the model as it is now, plain tensor attributes included."""
        self.index()
        if id(tensor) not in self.paths:
            for path, module in self.model.named_modules(remove_duplicate=False):
                for attribute, value in vars(module).items():
                    if value is tensor:
                        self._add(f"{path}.{attribute}" if path else attribute, tensor)
        return self.of(tensor)
