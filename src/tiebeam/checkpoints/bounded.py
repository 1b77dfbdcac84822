"""JSON and sizes from files that may lie: what is read is bounded before memory is taken for it."""

import json
import os
import stat
from pathlib import Path
from typing import Any

from tiebeam.errors import CheckpointError

MOST_JSON = 32 * 2**20
"""Bytes of a config or index: 300,000 tensors fit."""
MOST_CONTAINERS = 100_000
"""Brackets in a JSON text: each is an object of twenty times its size, and a config has hundreds."""
MOST_ELEMENTS = 2**63


def size_of(path: Path) -> int:
    """Bytes of a regular file.

    Raises:
        CheckpointError: It is missing, or no regular file.
    """
    try:
        found = os.stat(path)  # noqa: PTH116 - one call tells both
    except OSError as e:
        raise CheckpointError(f"'{path}' cannot be read", got=e.strerror or str(e)) from e
    if not stat.S_ISREG(found.st_mode):
        raise CheckpointError(f"'{path}' is no file", expected="a file of weights, or a folder that holds one")
    return found.st_size


def refuse_pointer(path: Path, start: bytes) -> None:
    """Say so where a file's first bytes are those of a Git LFS pointer.

    Raises:
        CheckpointError: They are.
    """
    if start.startswith(b"version "):
        raise CheckpointError(
            f"'{path}' is a pointer of Git LFS, not the file that it stands for",
            hint="git lfs pull (in a GitHub workflow: actions/checkout with lfs: true)",
        )


def read_json(path: Path) -> dict[str, Any]:
    """An object from a JSON file, keys unique.

    Raises:
        CheckpointError: It is too large, no JSON, no object, or has a key twice.
    """
    size = size_of(path)
    if size > MOST_JSON:
        raise CheckpointError(f"'{path}' is too large", got=f"{size:,} bytes", expected=f"at most {MOST_JSON:,}")
    try:
        return parse_json(path.read_bytes(), str(path))
    except OSError as e:
        raise CheckpointError(f"'{path}' cannot be read", got=e.strerror or str(e)) from e


def parse_json(text: bytes, where: str) -> dict[str, Any]:
    """An object from JSON text, keys unique.

    Raises:
        CheckpointError: It is no JSON, no object, or has a key twice.

    Example:
        >>> parse_json(b'{"a": 1}', "here")
        {'a': 1}
    """
    brackets = text.count(b"[") + text.count(b"{")
    if brackets > MOST_CONTAINERS:
        raise CheckpointError(
            f"'{where}' is no config or index", got=f"{brackets:,} brackets", expected=f"at most {MOST_CONTAINERS:,}"
        )
    try:
        found = json.loads(text, object_pairs_hook=_unique)
    except CheckpointError as e:
        raise CheckpointError(f"'{where}' has a key twice", got=e.what) from e
    except (ValueError, RecursionError) as e:
        raise CheckpointError(f"'{where}' is no JSON", got=str(e)[:200] or type(e).__name__) from e
    if not isinstance(found, dict):
        raise CheckpointError(f"'{where}' is no JSON object", got=type(found).__name__)
    return found


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        seen: set[str] = set()
        twice = next(k for k, _ in pairs if k in seen or seen.add(k))  # type: ignore[func-returns-value]
        raise CheckpointError(repr(twice)[:100])
    return made
