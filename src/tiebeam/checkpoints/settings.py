"""Keeping a live model's config true: which fields say that it is tied and how many rows its table has, set and undone.

Names of fields stand here as data. What is set is what was there: a field that a config does not have is added only
where the model's class reads it.
"""

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from tiebeam.checkpoints.declared import FLAG, Declared, attribute, declared_by, parts
from tiebeam.checkpoints.scopes import ABSENT, fields, read, walk

FLAGS = (FLAG, "tie_embeddings", "tie_weights", "share_embeddings", "tie")
"""Fields that say whether lookup and readout are one table."""

SIZES = ("vocab_size", "padded_vocab_size", "n_vocab", "vocab")
"""Fields that say how many rows it has."""

LIVE_KEYS = "all_tied_weights_keys"
"""What a live transformers model takes for tied, target -> source; saving and moving go by it."""


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


def tie_settings(
    model: object, tied: bool, vocab: int | None = None, readout: Collection[str] = ()
) -> tuple[Setting, ...]:
    """Say that a model's lookup and readout are one table, or are not.

    Of a nested config it is the scope that the owning class reads, those around it, and those of the same vocabulary.

    Args:
        model: A live model; one without a config needs no settings.
        tied: What is true now.
        vocab: Rows of the table.
        readout: Names of the readout's parameter.

    Example:
        >>> from types import SimpleNamespace
        >>> model = SimpleNamespace(config=SimpleNamespace(tie_word_embeddings=True, vocab_size=9))
        >>> [setting] = tie_settings(model, tied=False)
        >>> undo = setting.put()
        >>> str(setting), model.config.tie_word_embeddings
        ('config.tie_word_embeddings: True -> False', False)
        >>> undo()
    """
    declared = declared_by(model)
    found: list[Setting] = []
    for where, path, scope in _scopes(model):
        if not _concerned(path, scope, declared, vocab):
            continue
        flags = [(name, value) for name in FLAGS if isinstance(value := read(scope, name), bool)]
        found += [_field(model, scope, name, tied, f"{where}.{name}") for name, value in flags if value is not tied]
        absent = declared is not None and declared.keys and path == declared.flag_path and not declared.flag_present
        if absent and not flags:
            found.append(_field(model, scope, FLAG, tied, f"{where}.{FLAG}"))
    return (*found, *(() if tied else _live_keys(model, readout)))


def vocab_settings(model: object, before: int, after: int) -> tuple[Setting, ...]:
    """Say how many rows the table has: wherever the config or a module says the old number under such a name."""
    if before == after:
        return ()
    found = [
        _field(model, scope, name, after, f"{where}.{name}")
        for where, _, scope in _scopes(model)
        for name in SIZES
        if type(value := read(scope, name)) is int and value == before
    ]
    for path, part in parts(model):
        held = vars(part) if hasattr(part, "__dict__") else {}
        found += [
            _field(model, part, name, after, f"{path}.{name}" if path else name)
            for name in SIZES
            if type(held.get(name)) is int and held[name] == before
        ]
    return tuple(found)


def _scopes(model: object) -> Iterator[tuple[str, str, object]]:
    """Every scope of every config that a model and its parts hold, once: its path for people, and in its config."""
    seen: set[int] = set()
    for path, part in parts(model):
        config = attribute(part, "config")
        if config is ABSENT:
            continue
        home = f"{path}.config" if path else "config"
        for inner, scope in walk(config):
            if id(scope) not in seen and not isinstance(scope, list | tuple):
                seen.add(id(scope))
                yield f"{home}.{inner}" if inner else home, inner, scope


def _concerned(path: str, scope: object, declared: Declared | None, vocab: int | None) -> bool:
    owner = "" if declared is None else declared.flag_path
    around = path == owner or not path or owner.startswith(f"{path}.")
    sizes = [v for name in SIZES if type(v := read(scope, name)) is int]
    return vocab in sizes if vocab is not None and sizes else around


def _field(model: object, scope: object, name: str, value: Any, where: str) -> Setting:
    return Setting(where, read(scope, name), value, lambda: _put(model, scope, name, value))


def _put(model: object, scope: Any, name: str, value: Any) -> Callable[[], None]:
    if isinstance(scope, MutableMapping):
        held = dict(scope)
        scope[name] = value
        return lambda: _restore_mapping(scope, held)
    if dataclasses.is_dataclass(scope) and getattr(scope, "__dataclass_params__").frozen:  # noqa: B009
        return _replace(model, scope, dataclasses.replace(scope, **{name: value}))  # type: ignore[type-var]
    own = name in fields(scope)
    before = read(scope, name)
    setattr(scope, name, value)
    return (lambda: setattr(scope, name, before)) if own or before is not ABSENT else (lambda: delattr(scope, name))


def _restore_mapping(scope: MutableMapping[str, Any], held: Mapping[str, Any]) -> None:
    scope.clear()
    scope.update(held)


def _replace(model: object, old: object, new: object) -> Callable[[], None]:
    """Put another config where one that cannot be changed is held."""
    holders = [
        (part, name)
        for _, part in parts(model)
        if hasattr(part, "__dict__")
        for name, value in vars(part).items()
        if value is old
    ]
    for part, name in holders:
        setattr(part, name, new)

    def back() -> None:
        for part, name in holders:
            setattr(part, name, old)

    return back


def left_shared(model: object, shared: Collection[Collection[str]]) -> tuple[str, ...]:
    """Names that are shared still, though what declares it is switched off: a reload would not share them.

    Args:
        model: A live model.
        shared: Groups of paths that are one parameter.
    """
    declared = declared_by(model)
    if declared is None or declared.tied is not False:
        return ()
    pairs = [(a, b) for names in shared for a in names for b in names if a != b]
    return tuple(dict.fromkeys(a for a, b in pairs if any(_names(declared, a, b))))


def _names(declared: Declared, target: str, source: str) -> Iterator[bool]:
    for (_, of), (t, s) in zip(declared.keys, declared._patterns, strict=True):
        yield bool(t.match(target)) and (not of or bool(s.match(source)))


def _live_keys(model: object, readout: Collection[str]) -> Iterator[Setting]:
    for path, part in parts(model):
        held = vars(part).get(LIVE_KEYS) if hasattr(part, "__dict__") else None
        if not isinstance(held, dict):
            continue
        prefix = f"{path}." if path else ""
        left = {t: s for t, s in held.items() if f"{prefix}{t}" not in readout and f"{prefix}{s}" not in readout}
        if len(left) < len(held):
            yield Setting(f"{prefix}{LIVE_KEYS}", held, left, partial(_put_keys, part, held, left))


def _put_keys(part: Any, held: dict[str, str], left: dict[str, str]) -> Callable[[], None]:
    setattr(part, LIVE_KEYS, left)
    return lambda: setattr(part, LIVE_KEYS, held)
