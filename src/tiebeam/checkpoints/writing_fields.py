"""Setting a field of a live config, whatever the config is made of, and undoing it."""

import dataclasses
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

from tiebeam.checkpoints.declared import attribute, parts
from tiebeam.checkpoints.scopes import ABSENT, fields, read, walk

CONFIGS = ("config", "cfg", "args", "hparams", "settings")
"""What models call the settings that they were built from."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One field to set.

    Attributes:
        where: Path of the field, for people.
        put: Sets it, and returns what undoes that.
    """

    where: str
    before: Any
    after: Any
    put: Callable[[], Callable[[], None]]

    def __str__(self) -> str:
        return f"{self.where}: {_said(self.before)} -> {_said(self.after)}"


def _said(value: Any) -> str:
    return "absent" if value is ABSENT else repr(value)


class Fields:
    """Fields of the configs of one model; of one that cannot be changed, each follows on the copy that the last made.

    Args:
        model: Whose parts hold the configs.

    Example:
        >>> from types import SimpleNamespace
        >>> Config = dataclasses.make_dataclass("Config", ["vocab", "tie"], frozen=True)
        >>> model = SimpleNamespace(config=Config(9, True))
        >>> put = Fields(model)
        >>> for one in (put.field(model.config, "vocab", 12, "vocab"), put.field(model.config, "tie", False, "tie")):
        ...     undo = one.put()
        >>> model.config
        Config(vocab=12, tie=False)
    """

    def __init__(self, model: object) -> None:
        self.model = model
        self._now: dict[int, Any] = {}

    def field(self, scope: object, name: str, value: Any, where: str) -> Setting:
        """One field to set.

        Args:
            scope: A mapping, a dataclass or an object that holds it, or whose class has it.
            where: Its path, for people.
        """
        return Setting(where, read(scope, name), value, lambda: self._put(scope, name, value))

    def _put(self, scope: Any, name: str, value: Any) -> Callable[[], None]:
        if isinstance(scope, MutableMapping):
            held = dict(scope)
            scope[name] = value
            return lambda: _restore_mapping(scope, held)
        if _frozen(scope):
            return self._put_frozen(scope, name, value)
        own = name in fields(scope)
        before = read(scope, name)
        setattr(scope, name, value)
        return (lambda: setattr(scope, name, before)) if own or before is not ABSENT else (lambda: delattr(scope, name))

    def _put_frozen(self, scope: Any, name: str, value: Any) -> Callable[[], None]:
        before = self._now.get(id(scope), scope)
        after = dataclasses.replace(before, **{name: value})
        undo = self._replace(before, after)
        self._now[id(scope)] = after

        def back() -> None:
            for one in reversed(undo):
                one()
            self._now[id(scope)] = before

        return back

    def _replace(self, old: object, new: object) -> list[Callable[[], None]]:
        """Put another config where one that cannot be changed is held; one that holds it may be such a one itself."""
        undo: list[Callable[[], None]] = []
        for part, name in _holders(self.model, old):
            setattr(part, name, new)
            undo.append(lambda part=part, name=name: setattr(part, name, old))  # type: ignore[misc]
        for scope, name in _around(self.model, old):
            if _frozen(scope):
                undo += self._replace(scope, dataclasses.replace(scope, **{name: new}))
            else:
                undo.append(self._put(scope, name, new))
        return undo


def _frozen(scope: Any) -> bool:
    of = getattr(type(scope), "__dataclass_params__", None)
    return dataclasses.is_dataclass(scope) and bool(of is not None and of.frozen)


def _holders(model: object, held: object) -> list[tuple[Any, str]]:
    return [
        (part, name)
        for _, part in parts(model)
        if hasattr(part, "__dict__")
        for name, value in vars(part).items()
        if value is held
    ]


def _around(model: object, held: object) -> list[tuple[Any, str]]:
    """Scopes of configs that hold a scope, and what they call it."""
    found: dict[int, tuple[Any, list[str]]] = {}
    for _, part in parts(model):
        for home in CONFIGS:
            config = attribute(part, home)
            for _, scope in walk(config) if config is not ABSENT else ():
                names = [name for name, value in fields(scope).items() if value is held]
                if names:
                    found[id(scope)] = (scope, names)
    return [(scope, name) for scope, names in found.values() for name in names]


def _restore_mapping(scope: MutableMapping[str, Any], held: Mapping[str, Any]) -> None:
    scope.clear()
    scope.update(held)
