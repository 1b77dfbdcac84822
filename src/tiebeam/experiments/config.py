"""What a run depends on, as plain data with one spelling, so that equal runs have equal hashes."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

Config = Mapping[str, Any]
"""Names to numbers, strings, None, and lists and mappings of them."""


def canonical(config: Config) -> str:
    """Write a config as JSON with sorted keys; -0.0 as 0.0, and 1.0 as 1.0 (it is not the integer 1).

    Raises:
        ValueError: A number is not finite.

    Example:
        >>> canonical({"rate": 0.5, "a": -0.0})
        '{"a":0.0,"rate":0.5}'
    """
    return json.dumps(_plain(config), sort_keys=True, separators=(",", ":"), allow_nan=False)


def fingerprint(experiment: str, config: Config) -> str:
    """Hash of an experiment's name and config: 32 hexadecimal digits of SHA-256.

    Example:
        >>> fingerprint("x", {"a": 1, "b": 2}) == fingerprint("x", {"b": 2, "a": 1})
        True
    """
    return hashlib.sha256(f"{experiment}\n{canonical(config)}".encode()).hexdigest()[:32]


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, float):
        return value + 0.0  # -0.0 + 0.0 is 0.0
    return value
