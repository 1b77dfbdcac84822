"""Tensors in whatever a model takes or returns: containers are looked into, and built anew around other tensors.

Models take batches as dictionaries, lists, dataclasses and objects of their own, and write into them: a cache
grows, a key is popped. So each pass gets containers of its own.
"""

import copy
import enum
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import is_dataclass
from types import MethodType, ModuleType
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

DEPTH = 8  # of containers in containers: a batch, or a cache of layers of states, is half as deep

Entries = list[tuple[Any, Any]]
Change = Callable[[torch.Tensor, bool], Any]

_WHOLE = (str, bytes, enum.Enum, type, ModuleType, MethodType, torch.Generator, torch.device, torch.dtype)
_OF_A_MODULE = ("_parameters", "_buffers", "_modules")  # what a module is made of, rather than what it was given


def tensors_of(tree: Any, *, modules: bool = False) -> Iterator[torch.Tensor]:
    """Tensors in nested containers and objects, in order.

    Args:
        tree: Whatever a model takes or returns.
        modules: Look at the plain attributes of modules as well.
    """
    return _tensors(tree, DEPTH, set(), modules)


def _tensors(tree: Any, depth: int, seen: set[int], modules: bool) -> Iterator[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        yield tree
    elif depth and id(tree) not in seen:
        seen.add(id(tree))
        for _, value in _items(tree) or _attributes(tree, modules) or _parts(tree):
            yield from _tensors(value, depth - 1, seen, modules)


def rebuilt(tree: Any, change: Change) -> Any:
    """`tree` in containers of its own, each tensor replaced by `change(tensor, data)`.

    What is shared within the tree stays shared; an object that cannot be copied is handed on itself.

    Args:
        tree: Whatever a model takes.
        change: What becomes of a tensor. `data` is False within an object of a class that is no container: floats
            that lie there are a state of the model's own (a cache) rather than a batch.

    Example:
        >>> batch = {"ids": torch.zeros(2, 8), "more": [torch.ones(1)]}
        >>> other = rebuilt(batch, lambda t, data: t[..., :1])
        >>> other["ids"].shape, other["more"] is batch["more"]
        (torch.Size([2, 1]), False)
    """
    return _Rebuilder(change).of(tree, DEPTH, True)


class _Rebuilder:
    def __init__(self, change: Change) -> None:
        self.change = change
        self.made: dict[int, Any] = {}

    def of(self, tree: Any, depth: int, data: bool) -> Any:
        if depth and id(tree) not in self.made:
            self.made[id(tree)] = tree  # until there is more: an object may hold itself
            if isinstance(tree, torch.Tensor):
                self.made[id(tree)] = self.change(tree, data)
            else:
                self.made[id(tree)] = self._container(tree, depth - 1, data)
        return self.made.get(id(tree), tree)

    def _container(self, tree: Any, depth: int, data: bool) -> Any:
        if isinstance(tree, tuple):
            items = [self.of(item, depth, data) for item in tree]
            return tree._make(items) if hasattr(tree, "_make") else type(tree)(items)
        entries, attributes = _items(tree), _attributes(tree)
        if entries is None and not attributes:
            return self._of_parts(tree, depth, data)
        other = _shallow(tree)
        if other is tree or (entries and not hasattr(tree, "__setitem__")):
            return tree
        self.made[id(tree)] = other
        for key, value in entries or ():
            other[key] = self.of(value, depth, data)
        for key, value in attributes:
            new = self.of(value, depth, data and (entries is not None or is_dataclass(tree)))
            if new is not value:
                object.__setattr__(other, key, new)  # also where the class refuses it: a frozen dataclass
        return other

    def _of_parts(self, tree: Any, depth: int, data: bool) -> Any:
        parts = _parts(tree)
        if not parts:
            return tree
        node = pytree.SUPPORTED_NODES[type(tree)]
        return node.unflatten_fn([self.of(part, depth, data) for _, part in parts], node.flatten_fn(tree)[1])


def _shallow(tree: Any) -> Any:
    try:
        return copy.copy(tree)
    except (TypeError, ValueError, AttributeError, RuntimeError, copy.Error):  # holds a lock, a file, a stream
        return tree


def _items(tree: Any) -> Entries | None:
    """Entries of a mapping, list or tuple; None for what is none."""
    if isinstance(tree, Mapping):
        return list(tree.items())
    return list(enumerate(tree)) if isinstance(tree, (list, tuple)) else None


def _attributes(tree: Any, modules: bool = False) -> Entries:
    """Attributes of an object, kept in a dictionary or in slots."""
    module = isinstance(tree, nn.Module)
    if isinstance(tree, _WHOLE) or inspect.isroutine(tree) or (callable(tree) and not (modules and module)):
        return []
    held: Mapping[str, Any] = getattr(tree, "__dict__", {})
    slots = [s for c in type(tree).__mro__ for s in _names(vars(c).get("__slots__", ()))]
    inside = [(s, getattr(tree, s)) for s in slots if s not in held and hasattr(tree, s)]
    return [*((k, v) for k, v in held.items() if not module or k not in _OF_A_MODULE), *inside]


def _names(slots: Any) -> list[str]:
    return [n for n in ((slots,) if isinstance(slots, str) else slots) if n not in ("__dict__", "__weakref__")]


def _parts(tree: Any) -> Entries:
    """Parts of an object that shows none of them, but has told PyTorch how it is taken apart."""
    node = pytree.SUPPORTED_NODES.get(type(tree))
    return [] if node is None else list(enumerate(node.flatten_fn(tree)[0]))
