"""A `.keras` file: a zip of the model's config and its weights. The config is read as data; no layer of it is built."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tiebeam.checkpoints.archive import Archive, Span
from tiebeam.checkpoints.bounded import parse_json
from tiebeam.checkpoints.formats import keras_h5
from tiebeam.checkpoints.formats.zips import members, read_member, source_of
from tiebeam.errors import CheckpointError

CONFIG, WEIGHTS = "config.json", "model.weights.h5"
_MOST_CONFIG = 8 * 2**20
_MOST_OBJECTS = 200_000
_TYING_LAYERS = ("ReversibleEmbedding",)
_TYING_REGISTERED = ("tiebeam>TiedEmbedding",)  # a class of that name from elsewhere says nothing


def read(path: Path) -> Archive:
    """A `.keras` archive.

    Raises:
        CheckpointError: It is none, is larger inside than it may be, or its weights are packed.
    """
    inside = members(path)
    if CONFIG not in inside or WEIGHTS not in inside:
        raise CheckpointError(
            f"'{path}' holds no Keras model", got=", ".join(sorted(inside)[:8]), expected=f"{CONFIG} and {WEIGHTS}"
        )
    config = parse_json(read_member(path, inside[CONFIG], _MOST_CONFIG), f"{path}: {CONFIG}")
    source = source_of(path, inside[WEIGHTS])
    if not isinstance(source, Span):
        raise CheckpointError(f"the weights in '{path}' are packed", expected="stored, as model.save writes them")
    held = keras_h5.read_at(path, WEIGHTS, source.start, source.stop)
    return replace(held, declares=_declares(config))


def _declares(config: Mapping[str, Any]) -> bool | None:
    """What layers that own both ends say; None where there is none, or where they disagree."""
    said: set[bool] = set()
    stack: list[Any] = [config]
    for _ in range(_MOST_OBJECTS):
        if not stack:
            break
        item = stack.pop()
        if isinstance(item, dict):
            inner = item.get("config")
            ties = item.get("class_name") in _TYING_LAYERS or item.get("registered_name") in _TYING_REGISTERED
            if ties and isinstance(inner, dict):
                said.add(bool(inner.get("tie_weights", True)))
            stack += item.values()
        elif isinstance(item, list):
            stack += item
    return said.pop() if len(said) == 1 else None
