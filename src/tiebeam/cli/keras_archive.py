"""A `.keras` file, judged before Keras opens it: how large it would be, what it names, what it would run.

Nothing here imports Keras or unpacks weights. Sizes that the archive declares are bounds that reading keeps to.
"""

import json
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from tiebeam.errors import TargetError

CONFIG, WEIGHTS = "config.json", ("model.weights.h5", "model.weights.npz")
TRUSTED = frozenset(("keras", "keras_hub", "keras_nlp", "keras_cv", "tiebeam", "builtins"))
"""Packages whose classes a config may name; the user's own are named on the command line."""

_MOST_CONFIG = 8 * 2**20  # bytes of config.json
_MOST_OBJECTS = 50_000  # layers, initialisers and so on in it
_MOST_MEMBERS = 10_000
_MOST_EXPANSION = 100  # of a member, over what is stored; floats hardly compress
_EXPANSION_FLOOR = 2**20


def read_config(path: Path) -> dict[str, Any]:
    """The model's config, if the archive is what it says it is.

    Raises:
        TargetError: It is no archive, holds no model, is larger inside than it may be, or leads out of itself.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            _check_members(path, archive.infolist())
            text = archive.read(CONFIG)
        config = json.loads(text)
    except (zipfile.BadZipFile, OSError, EOFError, ValueError, RecursionError, NotImplementedError) as e:
        if isinstance(e, TargetError):
            raise
        raise TargetError(
            f"'{path}' cannot be read as a .keras file",
            got=f"{type(e).__name__}: {e}".splitlines()[0][:300],
            expected="a zip archive as model.save writes it",
        ) from e
    if not isinstance(config, dict) or "class_name" not in config:
        raise TargetError(f"the config in '{path}' is no model", got=f"a JSON {type(config).__name__}")
    return config


def held_bytes(path: Path) -> int:
    """Bytes of weights that the archive declares."""
    with zipfile.ZipFile(path) as archive:
        return sum(i.file_size for i in archive.infolist() if i.filename in WEIGHTS)


def _check_members(path: Path, members: list[zipfile.ZipInfo]) -> None:
    names = {m.filename for m in members}
    if CONFIG not in names or not names.intersection(WEIGHTS):
        raise TargetError(
            f"'{path}' holds no Keras model",
            got=", ".join(sorted(names)[:8]) or "an empty archive",
            expected=f"{CONFIG} and {WEIGHTS[0]}",
        )
    if len(members) > _MOST_MEMBERS or len(names) < len(members):
        raise TargetError(f"'{path}' is no archive that Keras writes", got=f"{len(members)} members, some twice")
    for member in members:
        place = PurePosixPath(member.filename.replace("\\", "/"))
        if place.is_absolute() or ".." in place.parts or ":" in member.filename or _is_link(member):
            raise TargetError(
                f"'{path}' leads out of itself", got=f"the member {member.filename!r}", expected="names within it"
            )
        limit = max(_EXPANSION_FLOOR, _MOST_EXPANSION * member.compress_size)
        if member.filename == CONFIG:
            limit = min(limit, _MOST_CONFIG)
        if member.file_size > limit:
            raise TargetError(
                f"the member {member.filename!r} of '{path}' is too large to be what it says",
                got=f"{member.file_size:,} bytes out of {member.compress_size:,} stored",
                expected=f"at most {limit:,}",
            )


def _is_link(member: zipfile.ZipInfo) -> bool:
    return (member.external_attr >> 16) & 0o170000 == 0o120000


def objects_in(config: dict[str, Any], path: Path) -> Iterator[dict[str, Any]]:
    """Every object that loading would make.

    Raises:
        TargetError: They are too many.
    """
    stack: list[Any] = [config]
    count = 0
    while stack:
        item = stack.pop()
        if isinstance(item, dict):
            if isinstance(item.get("class_name"), str):
                count += 1
                yield item
            stack += item.values()
        elif isinstance(item, list):
            stack += item
        if count > _MOST_OBJECTS:
            raise TargetError(f"the config in '{path}' is too large", got=f"more than {_MOST_OBJECTS:,} objects")


def check_no_code(config: dict[str, Any], path: Path) -> None:
    """Refuse a config that carries code of its own.

    Raises:
        TargetError: It holds a lambda.
    """
    if any(item["class_name"] == "__lambda__" for item in objects_in(config, path)):
        raise TargetError(
            f"'{path}' holds Python code (a lambda), which tiebeam never runs",
            got="a function that was saved with the model, as a Lambda layer has it",
            expected="layers of Keras, or classes of yours that are registered",
            hint="build the model in a function of yours and inspect module:callable",
        )


def check_names(config: dict[str, Any], path: Path, registered: frozenset[str]) -> None:
    """Refuse a config that names code other than Keras's and what the user imported.

    Args:
        config: From `read_config`.
        path: For messages.
        registered: Names by which Keras knows objects that are not its own.

    Raises:
        TargetError: It names a class of another module.
    """
    for item in objects_in(config, path):
        module, name = item.get("module"), item["class_name"]
        own = isinstance(module, str) and module.partition(".")[0] not in TRUSTED
        if own and not registered.intersection((str(item.get("registered_name")), name)):
            raise TargetError(
                f"'{path}' names code that tiebeam does not import by itself",
                got=f"{module}.{name}",
                expected=f"classes of {', '.join(sorted(TRUSTED - {'builtins'}))}, or of a module that you name",
                hint=f"--import {module}, if you trust it; it must register {name} by "
                "@keras.saving.register_keras_serializable()",
            )
