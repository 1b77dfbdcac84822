"""Which module runs, for frameworks that leave no scopes of their own: marks in the traced program.

While a model is traced, every method of its modules' classes opens a named scope and shows one array of the module.
That array is a leaf of the model, whose path says which module it is: also where a transformation has handed the
module on as a copy. What this does not settle is not guessed: the enclosing module is named instead.
"""

import functools
import itertools
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import jax
from jax.ad_checkpoint import checkpoint_name

_SCOPE = "tiebeam-"
_MARK = re.compile(r"tiebeam-(?P<number>\d+) (?P<kind>\S+) (?P<place>\S*)")
_NUMBERS = itertools.count()  # of the process: compiled functions keep the marks of an earlier pass
_PATCHING = threading.RLock()  # classes are everyone's


def scopes(stack: str) -> list[str]:
    """The named scopes of a name stack, transformations opened, the subscripts of an einsum left out.

    Example:
        >>> scopes("/LM/vmap(embed.attend)/transpose(jvp(head))/td,vd->tv")
        ['LM', 'embed.attend', 'head']
    """
    before = None
    while before != stack:
        before, stack = stack, re.sub(r"\w+\(([^()]*)\)", r"\1", stack)
    return [part for part in stack.split("/") if part and "->" not in part]


class ModuleScopes:
    """Scopes for the modules of one model.

    Args:
        base: The framework's class of modules.
        first: The first array of a module and its place in there, or None.
    """

    def __init__(self, base: type[Any], first: Callable[[Any], tuple[str, Any] | None]) -> None:
        self._base, self._first = base, first
        self._kinds: dict[str, str] = {}
        self._by_identity: dict[str, str] = {}
        self._known: dict[str, str] = {}

    @contextmanager
    def opened(self, modules: Iterable[tuple[str, Any]]) -> Iterator[None]:
        """Scopes while the block runs; the classes are as before afterwards.

        Args:
            modules: Every module of the model that is about to run, with its path.
        """
        paths: dict[int, list[str]] = {}
        held = list(modules)
        for path, module in held:
            paths.setdefault(id(module), []).append(path)
            self._kinds[path] = _kind(module)
        methods = {(cls, n): m for _, module in held for cls, n, m in _methods(type(module), self._base)}
        with _PATCHING:
            try:
                for (cls, name), method in methods.items():
                    setattr(cls, name, self._scoped(method, paths))
                yield
            finally:
                for (cls, name), method in methods.items():
                    setattr(cls, name, method)

    def _scoped(self, method: Any, paths: Mapping[int, list[str]]) -> Any:
        def run(module: Any, *args: Any, **kwargs: Any) -> Any:
            scope = f"{_SCOPE}{next(_NUMBERS)}"
            if id(module) in paths:
                self._by_identity[scope] = paths[id(module)][0]
            with jax.named_scope(scope):
                found = self._first(module)
                if found is not None and isinstance(found[1], jax.core.Tracer):
                    named: Callable[[Any, str], Any] = checkpoint_name  # which has no annotations
                    named(found[1], f"{scope} {_kind(module)} {found[0]}")
                return method.__get__(module, type(module))(*args, **kwargs)

        return functools.wraps(method)(run) if hasattr(method, "__name__") else run

    def learn(self, mark: str, names: Sequence[str]) -> bool:
        """Take in that a mark shows the leaf of these names; False where it is none of our marks."""
        found = _MARK.fullmatch(mark)
        if found is None:
            return False
        scope, kind, place = f"{_SCOPE}{found['number']}", found["kind"], found["place"]
        owners = {n.removesuffix(place).removesuffix(".") for n in names if n == place or n.endswith(f".{place}")}
        fitting = [path for path in sorted(owners) if self._kinds.get(path) == kind]
        if len(fitting) == 1:
            self._known[scope] = fitting[0]
        return True

    def where(self, stack: str) -> str:
        """The path of the innermost module that is known."""
        for scope in reversed(scopes(stack)):
            path = self._by_identity.get(scope, self._known.get(scope))
            if path is not None:
                return path
        return ""


def _kind(module: Any) -> str:
    return f"{type(module).__module__}.{type(module).__qualname__}".replace(" ", "")


def _methods(cls: type[Any], base: type[Any]) -> Iterator[tuple[type[Any], str, Any]]:
    """What can be called on a module by its class: functions, and what stands in their place (compiled ones)."""
    for owner in cls.__mro__:
        if owner is base or not issubclass(owner, base):
            continue
        for name, found in list(vars(owner).items()):
            usual = not name.startswith("_") or name == "__call__"
            plain = not isinstance(found, staticmethod | classmethod | property | type)
            if usual and plain and callable(found) and hasattr(found, "__get__"):
                yield owner, name, found
