"""A pytree as named arrays and the rest: flags, strings and None stay where they are.

In JAX a parameter is a place in the tree, never the array object: one array at two places is two parameters.
"""

import copy
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import tree_util


@dataclass(frozen=True, slots=True)
class Slot:
    """One array of a model.

    Attributes:
        names: Its paths, joined with dots, owner first.
        array: What lies there: a JAX or NumPy array, or its shape and dtype alone.
        parameter: False for statistics, caches and counters.
        trainable: False for a parameter that the model itself calls frozen.
    """

    names: tuple[str, ...]
    array: Any
    parameter: bool = True
    trainable: bool = True

    @property
    def name(self) -> str:
        return self.names[0]

    @property
    def floating(self) -> bool:
        return jnp.issubdtype(self.array.dtype, np.floating)


def is_array(leaf: Any) -> bool:
    """Whether a leaf of a tree can be an argument of a traced function."""
    if isinstance(leaf, np.ndarray | np.generic):
        return leaf.dtype.kind in "biufcV"
    return isinstance(leaf, jax.Array | jax.ShapeDtypeStruct)


def is_abstract(leaf: Any) -> bool:
    """Whether it has a shape and no values."""
    return isinstance(leaf, jax.ShapeDtypeStruct | jax.core.Tracer)


def is_key(leaf: Any) -> bool:
    """Whether it is a random key."""
    return bool(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key))


def kind_of(array: Any) -> Hashable:
    """An array without its elements."""
    typed: Callable[[Any], Hashable] | None = getattr(jax, "typeof", None)
    if typed is None or is_abstract(array):  # releases without it
        return type(array).__name__, tuple(array.shape), str(array.dtype)
    return typed(array)


def dotted(path: Sequence[Any]) -> str:
    """A path in words: dictionary keys, attributes and positions joined with dots.

    Example:
        >>> [dotted(path) for path, _ in tree_util.tree_flatten_with_path({"wte": {"table": 1.0}})[0]]
        ['wte.table']
    """
    parts = []
    for key in path:
        part = next((getattr(key, n) for n in ("key", "name", "idx") if hasattr(key, n)), key)
        parts.append(str(part))
    if len(path) > 1 and isinstance(path[-1], tree_util.GetAttrKey) and parts[-1] in ("value", "raw_value"):
        parts.pop()  # a box around an array (partitioning metadata, a variable): the array is meant
    return ".".join(parts)


def distinct(paths: Sequence[Sequence[Any]]) -> list[str]:
    """Paths in words; those that would be the same (a key that has a dot in it) as Python indexes them.

    Example:
        >>> found, _ = tree_util.tree_flatten_with_path({"a.b": 1.0, "a": {"b": 2.0}, "c": 3.0})
        >>> distinct([path for path, _ in found])
        ["['a']['b']", "['a.b']", 'c']
    """
    names = [dotted(path) for path in paths]
    counts = Counter(names)
    return [n if counts[n] == 1 else tree_util.keystr(tuple(p)) for n, p in zip(names, paths, strict=True)]


class Tree:
    """A pytree cut into arrays and the rest.

    Args:
        tree: Any pytree.
        is_leaf: As in `jax.tree.flatten`.
    """

    def __init__(self, tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> None:
        found, self._structure = tree_util.tree_flatten_with_path(tree, is_leaf=is_leaf)
        self._leaves = [leaf for _, leaf in found]
        self._places = [i for i, leaf in enumerate(self._leaves) if is_array(leaf)]
        self.names = distinct([found[i][0] for i in self._places])
        self.arrays = [self._leaves[i] for i in self._places]

    @property
    def kind(self) -> Hashable:
        """What a function of the tree is traced for, as `jax.jit` has it: everything but the arrays' elements."""
        places = frozenset(self._places)
        rest = tuple((i, type(leaf), leaf) for i, leaf in enumerate(self._leaves) if i not in places)
        return self._structure, rest, tuple(map(kind_of, self.arrays))

    def emptied(self) -> "Tree":
        """The same without its arrays."""
        twin = copy.copy(self)
        places = frozenset(self._places)
        twin._leaves = [None if i in places else leaf for i, leaf in enumerate(self._leaves)]
        twin.arrays = []
        return twin

    def rebuilt(self, arrays: Sequence[Any]) -> Any:
        """The tree with other arrays in it."""
        leaves = list(self._leaves)
        for i, array in zip(self._places, arrays, strict=True):
            leaves[i] = array
        return tree_util.tree_unflatten(self._structure, leaves)


class Returned:
    """Whatever a model returns, plain objects opened.

    Args:
        result: A pytree, of which leaves may be objects with arrays as attributes.

    Attributes:
        arrays: In order.

    Example:
        >>> found = Returned({"logits": np.ones(2), "name": "a"})
        >>> found.rebuilt([np.zeros(2)])
        {'logits': array([0., 0.]), 'name': 'a'}
    """

    def __init__(self, result: Any, depth: int = 4) -> None:
        leaves, self._structure = jax.tree.flatten(result)
        self.arrays: list[Any] = []
        self._parts: list[Callable[[Iterator[Any]], Any]] = []
        for leaf in leaves:
            if is_array(leaf):
                self.arrays.append(leaf)
                self._parts.append(next)
            elif depth and hasattr(leaf, "__dict__") and not callable(leaf):
                inner = Returned(vars(leaf), depth - 1)
                self.arrays += inner.arrays
                inner.arrays = []
                self._parts.append(partial(_object, type(leaf), inner))
            else:
                self._parts.append(partial(_same, leaf))

    def rebuilt(self, arrays: Sequence[Any]) -> Any:
        """The same with other arrays in it; objects are new ones."""
        return self._made(iter(arrays))

    def _made(self, given: Iterator[Any]) -> Any:
        return tree_util.tree_unflatten(self._structure, [part(given) for part in self._parts])


def _object(kind: type[Any], attributes: Returned, given: Iterator[Any]) -> Any:
    made = object.__new__(kind)
    vars(made).update(attributes._made(given))
    return made


def _same(leaf: Any, given: Iterator[Any]) -> Any:
    return leaf
