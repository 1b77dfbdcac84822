"""A config as a tree of scopes, read as data: no property, method or hook of it is ever run.

A scope is one level of a nested config ("" is the whole, "text_config" its text part). Configs are
mappings, dataclasses or plain objects; what a level holds is its instance and class attributes.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from types import FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

MAX_DEPTH = 5
MAX_SCOPES = 64
MAX_FIELDS = 2000

_PLAIN = (str, bytes, int, float, complex, list, tuple, set, frozenset, type(None))
_CODE = (type, FunctionType, MethodType, ModuleType)


class _Absent:
    """The type of `ABSENT`."""

    def __repr__(self) -> str:
        return "ABSENT"

    def __bool__(self) -> bool:
        return False


ABSENT = _Absent()
"""A field that the config does not have (`None` is a value)."""


def fields(scope: object) -> dict[str, Any]:
    """The fields of one scope that it holds itself, in their order.

    Args:
        scope: A mapping, or an object with instance attributes or slots.

    Returns:
        A new dictionary of at most `MAX_FIELDS` entries; empty for anything else.

    Example:
        >>> from types import SimpleNamespace
        >>> fields(SimpleNamespace(vocab_size=64))
        {'vocab_size': 64}
    """
    if isinstance(scope, Mapping):
        held: Any = scope.items()
    elif isinstance(scope, _PLAIN + _CODE):
        return {}
    else:
        held = [*_attributes(scope).items(), *_slots(scope)]
    return {str(k): v for k, v in list(held)[:MAX_FIELDS]}


def read(scope: object, name: str) -> Any:
    """One field of a scope: its own, or a constant of its class, or `ABSENT`.

    The renaming table that some config classes carry (`attribute_map`) is followed.

    Example:
        >>> read({"vocab_size": 64}, "vocab_size"), read({}, "vocab_size")
        (64, ABSENT)
    """
    own = fields(scope)
    if not isinstance(scope, Mapping):
        renamed = class_constant(type(scope), "attribute_map")
        if isinstance(renamed, Mapping) and isinstance(renamed.get(name), str):
            name = renamed[name]
    if name in own:
        return own[name]
    return ABSENT if isinstance(scope, Mapping) else class_constant(type(scope), name)


def class_constant(cls: type, name: str) -> Any:
    """A class attribute that is plain data; properties, methods and descriptors are `ABSENT`."""
    for base in cls.__mro__:
        if name in vars(base):
            value = vars(base)[name]
            return value if isinstance(value, (*_PLAIN, Mapping)) else ABSENT
    return ABSENT


def walk(config: object) -> Iterator[tuple[str, object]]:
    """Every scope of a config, outermost first: (path, scope).

    Bounded: at most `MAX_DEPTH` levels and `MAX_SCOPES` scopes; a scope met twice counts once.

    Example:
        >>> [path for path, _ in walk({"text_config": {"vocab_size": 64}, "depth": 2})]
        ['', 'text_config']
    """
    level: list[tuple[str, object]] = [("", config)]
    seen: set[int] = set()
    for _ in range(MAX_DEPTH):
        below: list[tuple[str, object]] = []
        for path, scope in level:
            if id(scope) in seen or len(seen) >= MAX_SCOPES:
                continue
            seen.add(id(scope))
            yield path, scope
            below += [
                (f"{path}.{name}" if path else name, value) for name, value in fields(scope).items() if _is_scope(value)
            ]
        level = below


def known_names(scope: object) -> frozenset[str]:
    """The field names that a scope's class itself spells out; empty for a mapping."""
    if isinstance(scope, Mapping):
        return frozenset()
    names: set[str] = set()
    for base in type(scope).__mro__[:-1]:
        names |= set(vars(base)) | set(vars(base).get("__annotations__", {}))
        code = getattr(vars(base).get("__init__"), "__code__", None)
        if code is not None:
            names |= set(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])
    return frozenset(names)


def _is_scope(value: object) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(k, str) for k in list(value)[:MAX_FIELDS])
    if isinstance(value, _PLAIN + _CODE):
        return False
    return dataclasses.is_dataclass(value) or bool(_attributes(value))


def _attributes(scope: object) -> dict[str, Any]:
    try:
        held = object.__getattribute__(scope, "__dict__")
    except AttributeError:
        return {}
    return held if isinstance(held, dict) else {}


def _slots(scope: object) -> Iterator[tuple[str, Any]]:
    for base in type(scope).__mro__:
        for name, slot in vars(base).items():
            if isinstance(slot, MemberDescriptorType) and not name.startswith("__"):
                try:
                    yield name, slot.__get__(scope)
                except AttributeError:
                    continue
