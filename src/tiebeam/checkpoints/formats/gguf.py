"""GGUF: key-value metadata, then the tensors' names, sizes and offsets; llama.cpp's format.

Arrays of the metadata (a tokenizer's words, mostly) are stepped over: they would be most of the memory.
"""

import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tiebeam.checkpoints.archive import Archive, Entry, Span, mapped
from tiebeam.checkpoints.bounded import size_of
from tiebeam.checkpoints.dtypes import DTYPES, Array, DType
from tiebeam.errors import CheckpointError

MOST_TENSORS = 500_000
MOST_PAIRS = 100_000
MOST_STRING = 2**20
MOST_WORDS = 2_000_000
"""Strings of one array: a vocabulary, or its merges."""
_MOST_DIMENSIONS = 8

# Scalar types of the metadata: code -> format of `struct`.
_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9

# ggml's tensor types: code -> name, elements of a block, bytes of a block.
_PACKED = {
    2: ("q4_0", 32, 18), 3: ("q4_1", 32, 20), 6: ("q5_0", 32, 22), 7: ("q5_1", 32, 24), 8: ("q8_0", 32, 34),
    9: ("q8_1", 32, 36), 10: ("q2_k", 256, 84), 11: ("q3_k", 256, 110), 12: ("q4_k", 256, 144), 13: ("q5_k", 256, 176),
    14: ("q6_k", 256, 210), 15: ("q8_k", 256, 292), 16: ("iq2_xxs", 256, 66), 17: ("iq2_xs", 256, 74),
    18: ("iq3_xxs", 256, 98), 19: ("iq1_s", 256, 50), 20: ("iq4_nl", 32, 18), 21: ("iq3_s", 256, 110),
    22: ("iq2_s", 256, 82), 23: ("iq4_xs", 256, 136), 29: ("iq1_m", 256, 56), 34: ("tq1_0", 256, 54),
    35: ("tq2_0", 256, 66), 39: ("mxfp4", 32, 17),
}  # fmt: skip
TYPES: dict[int, DType] = {
    0: DTYPES["float32"], 1: DTYPES["float16"], 24: DTYPES["int8"], 25: DTYPES["int16"], 26: DTYPES["int32"],
    27: DTYPES["int64"], 28: DTYPES["float64"], 30: DTYPES["bfloat16"],
    **{code: DType(name, 8 * size, "u1", "packed", block) for code, (name, block, size) in _PACKED.items()},
}  # fmt: skip


def read(path: Path) -> Archive:
    """A GGUF file, version 2 or 3.

    Raises:
        CheckpointError: It is truncated, its sizes are not those of a file, or its tensors overlap.
    """
    size = size_of(path)
    try:
        cursor = Cursor(mapped(path, 0, size), size)
        return _read(path, cursor, size)
    except CheckpointError as e:
        raise CheckpointError(f"'{path}' is no sound GGUF file: {e.what}", got=e.got, expected=e.expected) from e


def _read(path: Path, cursor: "Cursor", size: int) -> Archive:
    magic, version, tensors, pairs = cursor.take("<4sIQQ")
    if magic != b"GGUF" or version not in (2, 3):
        raise CheckpointError("another version", got=f"{magic!r}, version {version}", expected="GGUF, version 2 or 3")
    if tensors > MOST_TENSORS or pairs > MOST_PAIRS:
        raise CheckpointError("too many tensors or pairs", got=f"{tensors:,} and {pairs:,}")
    metadata: dict[str, Any] = {}
    for _ in range(pairs):
        key = cursor.string()
        if key in metadata:
            raise CheckpointError("a key stands twice", got=repr(key)[:100])
        metadata[key] = cursor.value(cursor.take("<I")[0])
    found = list(_tensors(cursor, tensors))
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or not 0 < alignment <= 2**20 or alignment & (alignment - 1):
        raise CheckpointError("an alignment that is no power of two", got=repr(alignment))
    base = -(-cursor.at // alignment) * alignment
    entries = dict(_placed(path, found, base, size))
    said = {k: v for k, v in metadata.items() if isinstance(v, str) and len(v) < 4096}
    return Archive(path, "gguf", entries, (path.name,), said, config=_config(metadata))


def _tensors(cursor: "Cursor", count: int) -> Iterator[tuple[str, tuple[int, ...], DType, int]]:
    seen: set[str] = set()
    for _ in range(count):
        name = cursor.string()
        (dimensions,) = cursor.take("<I")
        if name in seen or dimensions > _MOST_DIMENSIONS:
            raise CheckpointError("a tensor stands twice, or has too many dimensions", got=repr(name)[:100])
        seen.add(name)
        sizes = cursor.take(f"<{dimensions}Q")
        code, offset = cursor.take("<IQ")
        if code not in TYPES:
            raise CheckpointError(f"the type of {name!r:.60} is not known", got=str(code))
        yield name, tuple(reversed(sizes)), TYPES[code], offset  # the innermost size stands first in the file


def _placed(
    path: Path, found: list[tuple[str, tuple[int, ...], DType, int]], base: int, size: int
) -> Iterator[tuple[str, Entry]]:
    ranges = []
    for name, shape, dtype, offset in found:
        length = dtype.nbytes(math.prod(shape)) if math.prod(shape) < 2**62 else None
        if length is None or base + offset + length > size:
            raise CheckpointError(f"{name!r:.60} reaches beyond the file's end", got=f"{shape} of {dtype.name}")
        ranges.append((offset, offset + length, name))
        yield name, Entry(name, shape, dtype, Span(path, base + offset, base + offset + length), file=path.name)
    end, before = 0, ""
    for start, stop, name in sorted(ranges):
        if start < end:
            raise CheckpointError(f"{name!r:.60} overlaps {before!r:.60}")
        end, before = stop, name


def _config(metadata: dict[str, Any]) -> dict[str, Any] | None:
    """What a config would say; the format itself has no flag for the tie."""
    kind = metadata.get("general.architecture")
    if not isinstance(kind, str):
        return None
    sizes = {"vocab_size": f"{kind}.vocab_size", "hidden_size": f"{kind}.embedding_length"}
    said = {name: metadata[key] for name, key in sizes.items() if isinstance(metadata.get(key), int)}
    return {"gguf_architecture": kind, **said}


class Cursor:
    """Reads forwards through mapped bytes, and never beyond their end."""

    def __init__(self, data: Array, size: int) -> None:
        self._data, self._size, self.at = memoryview(data.data), size, 0

    def take(self, form: str) -> tuple[Any, ...]:
        """Numbers of a fixed layout."""
        length = struct.calcsize(form)
        self._room(length)
        found = struct.unpack_from(form, self._data, self.at)
        self.at += length
        return found

    def string(self) -> str:
        """A string with its length before it."""
        (length,) = self.take("<Q")
        self._room(length)
        if length > MOST_STRING:
            raise CheckpointError("a string is too long", got=f"{length:,} bytes", expected=f"at most {MOST_STRING:,}")
        found = bytes(self._data[self.at : self.at + length]).decode("utf-8", "backslashreplace")
        self.at += length
        return found

    def value(self, kind: int) -> Any:
        """One value of the metadata; None for an array, which is stepped over."""
        if kind in _SCALARS:
            return self.take(_SCALARS[kind])[0]
        if kind == _STRING:
            return self._text()
        if kind != _ARRAY:
            raise CheckpointError("a value of an unknown type", got=str(kind))
        self._skip_array()
        return None

    def _text(self) -> str:
        (length,) = self.take("<Q")
        self._room(length)
        found = bytes(self._data[self.at : self.at + min(length, 4096)]).decode("utf-8", "backslashreplace")
        self.at += length  # a chat template may be long; its first words are enough
        return found

    def _skip_array(self) -> None:
        kind, count = self.take("<IQ")
        if kind in _SCALARS:
            length = count * struct.calcsize(_SCALARS[kind])
            self._room(length)
            self.at += length
        elif kind == _STRING:
            self._room(8 * count)
            if count > MOST_WORDS:
                raise CheckpointError("an array of too many strings", got=f"{count:,}", expected=f"{MOST_WORDS:,}")
            for _ in range(count):
                (length,) = (
                    struct.unpack_from("<Q", self._data, self.at) if self.at + 8 <= self._size else (self._size,)
                )
                self._room(8 + length)
                self.at += 8 + length
        else:
            raise CheckpointError("an array of arrays, or of an unknown type", got=str(kind))

    def _room(self, length: int) -> None:
        if length > self._size - self.at:
            raise CheckpointError(
                "it ends too early", got=f"{self._size - self.at:,} bytes left", expected=f"{length:,}"
            )
