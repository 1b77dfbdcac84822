"""Plain Python that a callable depends on beside its arguments: who keeps what it was traced to has to compare it."""

from collections.abc import Callable, Iterator
from functools import partial
from types import FunctionType
from typing import Any

Plain = tuple[str, type, object]

_PLAIN = (bool, int, float, complex, str, bytes)


def plain_in(names: dict[str, Any]) -> tuple[Plain, ...]:
    """The numbers, strings and flags among named values; 1 and True are two.

    Example:
        >>> plain_in({"scale": 2.0, "layer": object()})
        (('scale', <class 'float'>, 2.0),)
    """
    return tuple((name, type(v), v) for name, v in names.items() if isinstance(v, _PLAIN))


def closed_over(called: Callable[..., Any]) -> tuple[Plain, ...]:
    """Numbers, strings and flags that a callable finds outside of its arguments.

    Those are what a function closes over and the globals that it names, what its object holds as attributes, and the
    same of functions of its module that it names. What stands deeper is not seen.

    Args:
        called: A function, a bound method, an object that can be called, or a `functools.partial` of one.

    Example:
        >>> class Scaled:
        ...     factor = 1
        ...     def __call__(self, x):
        ...         return self.factor * x
        >>> model = Scaled()
        >>> before, model.factor = closed_over(model), 2.0
        >>> before == closed_over(model)
        False
    """
    return tuple(fact for names in _surroundings(called, set()) for fact in plain_in(names))


def _surroundings(called: Any, seen: set[int]) -> Iterator[dict[str, Any]]:
    """What surrounds a callable, by name."""
    while isinstance(called, partial):
        called = called.func
    owner, function = getattr(called, "__self__", None), getattr(called, "__func__", called)
    if owner is None and not isinstance(function, FunctionType):
        owner, function = called, vars(type(called)).get("__call__")
    if owner is not None:
        yield dict(getattr(owner, "__dict__", {}))
    if isinstance(function, FunctionType) and id(function) not in seen:
        seen.add(id(function))
        around = {**_globals(function), **_cells(function)}
        yield around
        for value in around.values():
            if isinstance(value, FunctionType) and value.__globals__ is function.__globals__:
                yield from _surroundings(value, seen)


def _globals(function: FunctionType) -> dict[str, Any]:
    return {n: function.__globals__[n] for n in function.__code__.co_names if n in function.__globals__}


def _cells(function: FunctionType) -> dict[str, Any]:
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    return found
