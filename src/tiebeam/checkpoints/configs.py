"""Config files: JSON, and the JSON with comments that GPT-NeoX trains from."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tiebeam.checkpoints.bounded import MOST_JSON, parse_json, size_of
from tiebeam.checkpoints.scopes import ABSENT, fields, read, walk
from tiebeam.errors import CheckpointError

_LOOSE = (".yml", ".yaml")
_COMMENT = re.compile(r'("(?:[^"\\]|\\.)*")|#[^\n]*')
_TRAILING = re.compile(r'("(?:[^"\\]|\\.)*")|,(\s*[}\]])')

_NO_COMMA = re.compile(r'([\]}"0-9a-z])(\s*\n\s*")')


def read_config(path: Path) -> dict[str, Any]:
    """A config file, or the `config.json` of a folder.

    Raises:
        CheckpointError: It is missing, too large, or no object.
    """
    path = path / "config.json" if path.is_dir() else path
    size = size_of(path)
    if size > MOST_JSON:
        raise CheckpointError(f"'{path}' is too large", got=f"{size:,} bytes", expected=f"at most {MOST_JSON:,}")
    text = path.read_bytes()
    if path.suffix in _LOOSE:
        text = without_comments(text.decode("utf-8", "replace")).encode()
    return parse_json(text, str(path))


def as_mapping(config: object) -> Mapping[str, Any]:
    """A config object's fields as a mapping, its nested configs too; a mapping is returned as it is.

    Only data is read: no property or method of the object runs.

    Example:
        >>> from types import SimpleNamespace
        >>> as_mapping(SimpleNamespace(vocab_size=64, text_config=SimpleNamespace(width=8)))
        {'vocab_size': 64, 'text_config': {'width': 8}}
    """
    if isinstance(config, Mapping):
        return config
    inner = {path: scope for path, scope in walk(config) if path and "." not in path}
    made = {name: as_mapping(inner[name]) if name in inner else value for name, value in fields(config).items()}
    kind = read(config, "model_type")  # of a class, not of its instances
    return made if kind is ABSENT or "model_type" in made else {"model_type": kind, **made}


def without_comments(text: str) -> str:
    """JSON out of the flow style that YAML shares with it.

    Comments and trailing commas are dropped, and a comma that a line's end lacks is set: published files lack one.

    Example:
        >>> without_comments('{"a": "#1", # one' + chr(10) + '}').split()
        ['{"a":', '"#1"', '}']
    """
    bare = _COMMENT.sub(lambda m: m[1] or "", text)
    return _NO_COMMA.sub(r"\1,\2", _TRAILING.sub(lambda m: m[1] or m[2], bare))
