"""What a module holds, in a dictionary that tells when an entry becomes another."""

from collections.abc import Callable
from typing import Any

from torch import nn

Tell = Callable[[], None]
HELD = ("_parameters", "_modules")


class Watched(dict[str, Any]):
    """A module's dictionary, telling whoever watches when an entry becomes another; a copy of it is a plain one.

    Attributes:
        plain: The module's own dictionary, which it gets back.
        tell: Who is told.
    """

    def __init__(self, plain: dict[str, Any]) -> None:
        super().__init__(plain)
        self.plain = plain
        self.tell: list[Tell] = []

    def _told(self) -> None:
        for tell in tuple(self.tell):
            tell()

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        self._told()

    def __delitem__(self, key: str) -> None:
        super().__delitem__(key)
        self._told()

    def pop(self, *args: Any) -> Any:
        value = super().pop(*args)
        self._told()
        return value

    def popitem(self) -> tuple[str, Any]:
        item = super().popitem()
        self._told()
        return item

    def setdefault(self, key: str, default: Any = None) -> Any:
        value = super().setdefault(key, default)
        self._told()
        return value

    def update(self, *args: Any, **more: Any) -> None:
        super().update(*args, **more)
        self._told()

    def __ior__(self, other: Any) -> "Watched":  # type: ignore[override,misc]
        self.update(other)
        return self

    def clear(self) -> None:
        super().clear()
        self._told()

    def copy(self) -> dict[str, Any]:
        return dict(self)

    def __reduce_ex__(self, _: Any) -> Any:
        return dict, (dict(self),)


def watch(module: nn.Module, tell: Tell) -> None:
    """Let a module's dictionaries tell; once is enough, and several may be told."""
    for name in HELD:
        held = vars(module)[name]
        if not isinstance(held, Watched):
            vars(module)[name] = held = Watched(held)
        if tell not in held.tell:
            held.tell.append(tell)


def watch_no_more(module: nn.Module, tell: Tell) -> None:
    """Tell no more; who is the last to leave gives the module its own dictionaries back, with what they hold now."""
    for name in HELD:
        held = vars(module)[name]
        if isinstance(held, Watched) and tell in held.tell:
            held.tell.remove(tell)
            if not held.tell:
                held.plain.clear()
                held.plain.update(held)
                vars(module)[name] = held.plain
