"""Keeping a live model's config true: which fields say that it is tied and how many rows its table has, set and undone.

Names of fields stand here as data. What is set is what was there: a field that a config does not have is added only
where the model's class reads it.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Any

from tiebeam.checkpoints.declared import FLAG, Declared, attribute, declared_by, parts
from tiebeam.checkpoints.scopes import ABSENT, fields, read, walk
from tiebeam.checkpoints.writing_fields import CONFIGS, Fields, Setting

FLAGS = (FLAG, "tie_embeddings", "tie_weights", "share_embeddings", "tie")
"""Fields that say whether lookup and readout are one table."""

SIZES = ("vocab_size", "padded_vocab_size", "vocabulary_size", "n_vocab", "vocab")
"""Fields that say how many rows it has."""

ID_CONFIGS = (*CONFIGS, "generation_config")
ID_ENDINGS = ("_token_id", "_token_ids")
IDS = ("padding_idx", "pad_id", "bos_id", "eos_id", "suppress_tokens", "begin_suppress_tokens")
"""Fields that hold token ids."""

LIVE_KEYS = "all_tied_weights_keys"
"""What a live transformers model takes for tied, target -> source; saving and moving go by it."""


def tie_settings(
    model: object, tied: bool, vocab: int | None = None, names: Collection[str] = ()
) -> tuple[Setting, ...]:
    """Say that a model's lookup and readout are one table, or are not.

    Of a nested config it is the scope that the owning class reads, those around it, and those of the same vocabulary.

    Args:
        model: A live model; one without a config needs no settings.
        tied: What is true now.
        vocab: Rows of the table.
        names: Of the readout's parameter where it is one of its own now, of the table where it is tied.

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
    put = Fields(model)
    for where, path, scope in _scopes(model, CONFIGS):
        if not _concerned(path, scope, declared, vocab):
            continue
        flags = [(name, value) for name in FLAGS if isinstance(value := read(scope, name), bool)]
        found += [put.field(scope, name, tied, f"{where}.{name}") for name, value in flags if value is not tied]
        absent = declared is not None and declared.keys and path == declared.flag_path and not declared.flag_present
        if absent and not flags:
            found.append(put.field(scope, FLAG, tied, f"{where}.{FLAG}"))
    return (*found, *(_live_keys_with(model, declared, names) if tied else _live_keys_without(model, names)))


def vocab_settings(model: object, before: int, after: int, put: Fields | None = None) -> tuple[Setting, ...]:
    """Say how many rows the table has: wherever the config or a module says the old number under such a name.

    Args:
        put: What sets other fields of the model along with these.
    """
    if before == after:
        return ()
    put = put or Fields(model)
    found = [
        put.field(scope, name, after, f"{where}.{name}")
        for where, _, scope in _scopes(model, CONFIGS)
        for name in SIZES
        if type(value := read(scope, name)) is int and value == before
    ]
    for path, part in parts(model):
        held = vars(part) if hasattr(part, "__dict__") else {}
        found += [
            put.field(part, name, after, f"{path}.{name}" if path else name)
            for name in SIZES
            if type(held.get(name)) is int and held[name] == before
        ]
    return tuple(found)


def id_settings(
    model: object, before: int, moved: Callable[[int], int | None], put: Fields | None = None
) -> tuple[tuple[Setting, ...], tuple[str, ...]]:
    """Let fields that hold token ids follow their rows.

    Args:
        model: A live model.
        before: Rows that the table had.
        moved: The new id of an old one, or None where its row is gone.
        put: What sets other fields of the model along with these.

    Returns:
        Fields to set, and notes on ids whose rows are gone: which token to use instead nobody can tell.

    Example:
        >>> from types import SimpleNamespace
        >>> model = SimpleNamespace(config=SimpleNamespace(eos_token_id=[2, 3], pad_token_id=9))
        >>> (setting,), notes = id_settings(model, 10, {2: 0, 3: 1}.get)
        >>> str(setting), notes
        ('config.eos_token_id: [2, 3] -> [0, 1]', ('config.pad_token_id is 9, whose row is gone',))
    """
    found: list[Setting] = []
    gone: list[str] = []
    put = put or Fields(model)
    for where, _, scope in _scopes(model, ID_CONFIGS):
        for name, value in fields(scope).items():
            ids = [value] if type(value) is int else value if isinstance(value, list | tuple) else []
            named = name.endswith(ID_ENDINGS) or name in IDS
            if not named or not ids or not all(type(i) is int and 0 <= i < before for i in ids):
                continue
            new = [moved(i) for i in ids]
            gone += [f"{where}.{name} is {i}, whose row is gone" for i, n in zip(ids, new, strict=True) if n is None]
            kept = [i if n is None else n for i, n in zip(ids, new, strict=True)]
            if kept != list(ids):
                after: Any = kept[0] if type(value) is int else type(value)(kept)
                found.append(put.field(scope, name, after, f"{where}.{name}"))
    return tuple(found), tuple(gone)


def _scopes(model: object, names: Sequence[str]) -> Iterator[tuple[str, str, object]]:
    """Every scope of every config that a model and its parts hold, once: its path for people, and in its config."""
    seen: set[int] = set()
    for path, part in parts(model):
        for name in names:
            config = attribute(part, name)
            if config is ABSENT:
                continue
            home = f"{path}.{name}" if path else name
            for inner, scope in walk(config):
                if id(scope) not in seen and not isinstance(scope, list | tuple):
                    seen.add(id(scope))
                    yield f"{home}.{inner}" if inner else home, inner, scope


def _concerned(path: str, scope: object, declared: Declared | None, vocab: int | None) -> bool:
    owner = "" if declared is None else declared.flag_path
    around = path == owner or not path or owner.startswith(f"{path}.")
    sizes = [v for name in SIZES if type(v := read(scope, name)) is int]
    return vocab in sizes if vocab is not None and sizes else around


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


def _live(model: object) -> Iterator[tuple[str, Any, dict[str, str]]]:
    for path, part in parts(model):
        held = vars(part).get(LIVE_KEYS) if hasattr(part, "__dict__") else None
        if isinstance(held, dict):
            yield f"{path}." if path else "", part, held


def _live_keys_with(model: object, declared: Declared | None, names: Collection[str]) -> Iterator[Setting]:
    """What the class declares of a table under these names."""
    groups = () if declared is None else declared.groups(tuple(names))
    pairs = [(t, source) for source, *targets in groups for t in targets]
    for prefix, part, held in _live(model):
        own = {t.removeprefix(prefix): s.removeprefix(prefix) for t, s in pairs if t.startswith(prefix)}
        if new := {t: s for t, s in own.items() if t not in held}:
            more = {**held, **new}
            yield Setting(f"{prefix}{LIVE_KEYS}", held, more, partial(_put_keys, part, held, more))


def _live_keys_without(model: object, readout: Collection[str]) -> Iterator[Setting]:
    for prefix, part, held in _live(model):
        left = {t: s for t, s in held.items() if f"{prefix}{t}" not in readout and f"{prefix}{s}" not in readout}
        if len(left) < len(held):
            yield Setting(f"{prefix}{LIVE_KEYS}", held, left, partial(_put_keys, part, held, left))


def _put_keys(part: Any, held: dict[str, str], left: dict[str, str]) -> Callable[[], None]:
    setattr(part, LIVE_KEYS, left)
    return lambda: setattr(part, LIVE_KEYS, held)
