"""Config files as data: read within bounds, and refused where they would cost more than they are worth."""

import json
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from tiebeam.errors import TargetError

MOST_BYTES = 16 * 2**20
"""Of a config file."""

MOST_VALUES = 1_000_000
"""In one config, however deep: lists and aliases of a few lines can stand for more than memory holds."""

MOST_PARTS = 100_000
"""Layers, experts, heads or labels that a config may ask for: config classes make a list of them before any model.
A list in a list says as much: `[["global", "local"], 12]` is twelve times two layers."""

_COUNTS = ("layers", "layer", "experts", "heads", "head", "labels", "blocks", "depth", "depths")


def read_json(file: Path) -> dict[str, Any]:
    """A config as it stands in a JSON file.

    Raises:
        TargetError: It is too large, cannot be read, or is no object.
    """
    return _checked(file, _json)


def read_config(file: Path) -> dict[str, Any]:
    """A config as it stands in a JSON file, or in a YAML one by its suffix; dashes in YAML names are underscores.

    Raises:
        TargetError: As `read_json`; or it is YAML and PyYAML is missing.
    """
    if file.suffix not in (".yml", ".yaml"):
        return read_json(file)
    return {str(k).replace("-", "_"): v for k, v in _checked(file, _yaml).items()}


def check_size(data: Mapping[str, Any], where: str) -> None:
    """Refuse a config that asks for lists beyond memory before any model is built.

    Raises:
        TargetError: It holds more than `MOST_VALUES` values, or a count above `MOST_PARTS`.
    """
    stack: list[tuple[str, int, Any]] = [("", 0, data)]
    seen = 0
    while stack:
        name, lists, value = stack.pop()
        seen += 1
        if seen > MOST_VALUES:
            raise TargetError(f"'{where}' is too large for a config", got=f"more than {MOST_VALUES:,} values")
        if isinstance(value, Mapping):
            stack += [(str(k), 0, v) for k, v in value.items()]
        elif isinstance(value, list | tuple):
            stack += [(name, lists + 1, v) for v in value]
        elif isinstance(value, int) and abs(value) > MOST_PARTS and (lists > 1 or _is_count(name)):
            raise TargetError(
                f"'{where}' asks for more parts than any model has",
                got=f"{name} {value:,}" if abs(value) < 10**30 else f"{name} of {len(str(value))} digits",
                expected=f"at most {MOST_PARTS:,}",
            )


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its kind."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__


def _is_count(name: str) -> bool:
    words = name.lower().replace("-", "_").split("_")
    return words[-1] in _COUNTS or (words[0] in ("num", "n") and any(w in _COUNTS for w in words))


def _checked(file: Path, parse: Any) -> dict[str, Any]:
    try:
        if file.stat().st_size > MOST_BYTES:
            raise TargetError(f"'{file}' is too large for a config", got=f"{file.stat().st_size} bytes")
        config = parse(file)
    except (OSError, ValueError, RecursionError) as e:  # not UTF-8, no JSON, or a number of thousands of digits
        if isinstance(e, TargetError):
            raise
        raise TargetError(f"'{file}' cannot be read as {parse.__name__.strip('_').upper()}", got=first_line(e)) from e
    if not isinstance(config, dict):
        raise TargetError(f"'{file}' is no config", got=f"a JSON {type(config).__name__}", expected="an object")
    check_size(config, str(file))
    return config


def _json(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


def _yaml(file: Path) -> Any:
    try:
        yaml: Any = import_module("yaml")
    except ImportError as e:
        raise TargetError(f"'{file}' is YAML, and PyYAML is not there", hint="pip install pyyaml") from e
    try:
        return yaml.safe_load(file.read_text(encoding="utf-8"))
    except yaml.YAMLError as e:
        raise TargetError(f"'{file}' cannot be read as YAML", got=first_line(e)) from e
