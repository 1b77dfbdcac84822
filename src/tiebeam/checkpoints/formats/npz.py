"""NumPy's zip of arrays: each member says its own shape, dtype and order."""

import math
import zlib
from io import BytesIO
from pathlib import Path

import numpy as np

from tiebeam.checkpoints.archive import Archive, Entry, Source, Span
from tiebeam.checkpoints.dtypes import DTYPES, Array, DType
from tiebeam.checkpoints.formats.zips import Member, Packed, members, source_of
from tiebeam.errors import CheckpointError

_MOST_HEADER = 10_000  # NumPy's own limit


def read(path: Path) -> Archive:
    """A `.npz` file; compressed members are unpacked when their values are asked for.

    Raises:
        CheckpointError: It is no such file, holds Python objects, or less than its arrays need.
    """
    found = [_entry(path, m) for name, m in members(path).items() if name.endswith(".npy")]
    if not found:
        raise CheckpointError(f"'{path}' holds no array", expected="members that end in .npy")
    return Archive(path, "npz", {e.name: e for e in found}, (path.name,))


def _entry(path: Path, member: Member) -> Entry:
    source = source_of(path, member)
    head = _head(source)
    try:
        shape, fortran, dtype, start = _header(head)
    except (ValueError, SyntaxError, TypeError, RecursionError) as e:
        raise CheckpointError(f"{member.name!r:.80} in '{path}' is no array", got=str(e)[:200]) from e
    known = _known(dtype)
    if known is None:
        raise CheckpointError(
            f"{member.name!r:.80} in '{path}' has a dtype that is not read", got=str(dtype), expected="numbers"
        )
    elements = math.prod(shape)
    if start + elements * dtype.itemsize != member.size:
        raise CheckpointError(
            f"{member.name!r:.80} in '{path}' is not the size of its shape",
            got=f"{member.size - start:,} bytes",
            expected=f"{shape} of {dtype}",
        )
    strides = tuple(math.prod(shape[:i]) for i in range(len(shape))) if fortran and len(shape) > 1 else None
    values: Source = Span(path, source.start + start, source.stop) if isinstance(source, Span) else Tail(source, start)
    return Entry(member.name.removesuffix(".npy"), shape, known, values, strides, path.name)


def _head(source: Source) -> bytes:
    """The first bytes of a member: a packed one is unpacked no further than that."""
    if isinstance(source, Packed):
        with source.file.open("rb") as file:
            file.seek(source.start)
            return zlib.decompressobj(-15).decompress(
                file.read(min(source.stored, 2 * _MOST_HEADER)), _MOST_HEADER + 16
            )
    return source.open()[: _MOST_HEADER + 16].tobytes()


def _header(head: bytes) -> tuple[tuple[int, ...], bool, np.dtype[np.generic], int]:
    """Shape, whether in Fortran's order, dtype, and where the values begin."""
    stream = BytesIO(head)
    version = np.lib.format.read_magic(stream)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"format version {version}")
    reader = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = reader(stream, max_header_size=_MOST_HEADER)
    if not all(0 <= n < 2**62 for n in shape) or len(shape) > 64:
        raise ValueError(f"a shape of {shape}")
    return shape, bool(fortran), dtype, stream.tell()


def _known(dtype: np.dtype[np.generic]) -> DType | None:
    if dtype.byteorder == ">" or dtype.hasobject or dtype.fields:
        return None
    if dtype.kind == "V" and dtype.itemsize == 2:  # how NumPy saves the bfloat16 of ml_dtypes
        return DTYPES["bfloat16"]
    return DTYPES.get(dtype.name)


class Tail:
    """A packed member without its header."""

    def __init__(self, whole: Source, start: int) -> None:
        self._whole, self._start = whole, start

    @property
    def identity(self) -> tuple[str, int, int]:
        return self._whole.identity

    def open(self) -> Array:
        return self._whole.open()[self._start :]
