"""NumPy's zip of arrays: each member says its own shape, dtype and order."""

import math
import re
import zlib
from pathlib import Path

from tiebeam.checkpoints.archive import Archive, Entry, Source, Span
from tiebeam.checkpoints.dtypes import DTYPES, Array
from tiebeam.checkpoints.formats.zips import Member, Packed, members, source_of
from tiebeam.errors import CheckpointError

_MOST_HEADER = 10_000  # NumPy's own limit
_MOST_DIMENSIONS = 64
_HEADER = re.compile(
    rb"\{'descr': ('[^']{1,16}'|\[[ -~]*\]), 'fortran_order': (True|False), "
    rb"'shape': \(((?:[0-9]{1,18}, ?)*(?:[0-9]{1,18})?)\),? ?\}[ ]*\n?"
)
CODES = {
    **{f"'<{k}{n // 8}'": DTYPES[f"{name}{n}"] for k, name, sizes in (
        ("f", "float", (16, 32, 64)), ("i", "int", (16, 32, 64)), ("u", "uint", (16, 32, 64)),
    ) for n in sizes},
    "'|i1'": DTYPES["int8"], "'|u1'": DTYPES["uint8"], "'|b1'": DTYPES["bool"],
    "'<c8'": DTYPES["complex64"], "'<c16'": DTYPES["complex128"],
    "'|V2'": DTYPES["bfloat16"], "'<V2'": DTYPES["bfloat16"],  # as NumPy saves that of ml_dtypes
}  # fmt: skip


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
    where = f"{member.name!r:.80} in '{path}'"
    code, shape, fortran, start = _header(_head(source), where)
    dtype = CODES.get(code)
    if dtype is None and (code.startswith("[") or code[2:3] == "O"):
        raise CheckpointError(f"{where} has a dtype that is not read", got=code[:80], expected="numbers, little-endian")
    if dtype is None:  # words, dates, another byte order: there, and not compared with anything
        return Entry(member.name.removesuffix(".npy"), shape, file=path.name)
    length = dtype.nbytes(math.prod(shape))
    if length is None or start + length != member.size:
        raise CheckpointError(
            f"{where} is not the size of its shape",
            got=f"{member.size - start:,} bytes",
            expected=f"{shape[:8]} of {dtype.name}",
        )
    strides = tuple(math.prod(shape[:i]) for i in range(len(shape))) if fortran and len(shape) > 1 else None
    values: Source = Span(path, source.start + start, source.stop) if isinstance(source, Span) else Tail(source, start)
    return Entry(member.name.removesuffix(".npy"), shape, dtype, values, strides, path.name)


def _head(source: Source) -> bytes:
    """The first bytes of a member: a packed one is unpacked no further than that."""
    if not isinstance(source, Packed):
        return source.open()[:_MOST_HEADER].tobytes()
    with source.file.open("rb") as file:
        file.seek(source.start)
        packed = file.read(min(source.stored, 2 * _MOST_HEADER))
    try:
        return zlib.decompressobj(-15).decompress(packed, _MOST_HEADER)
    except zlib.error as e:
        raise CheckpointError(f"a member of '{source.file}' does not unpack", got=str(e)) from e


def _header(head: bytes, where: str) -> tuple[str, tuple[int, ...], bool, int]:
    """Code of the dtype, shape, whether in Fortran's order, and where the values begin.

    NumPy's own reader evaluates the header as Python; this one knows the one form in which it is written.
    """
    version, wide = head[6:8], head[6:7] == b"\2"
    long = int.from_bytes(head[8:12] if wide else head[8:10], "little")
    start = (12 if wide else 10) + long
    text = head[start - long : start]
    found = _HEADER.fullmatch(text)
    sizes = [n for n in found[3].split(b",") if n.strip()] if found is not None else []
    sound = head[:6] == b"\x93NUMPY" and version in (b"\1\0", b"\2\0") and len(text) == long
    if found is None or not sound or len(sizes) > _MOST_DIMENSIONS:
        raise CheckpointError(f"{where} is no array", got=repr(head[:80]), expected="a header as NumPy writes it")
    return found[1].decode(), tuple(int(n) for n in sizes), found[2] == b"True", start


class Tail:
    """A packed member without its header."""

    def __init__(self, whole: Source, start: int) -> None:
        self._whole, self._start = whole, start

    @property
    def identity(self) -> tuple[str, int, int]:
        return self._whole.identity

    def open(self) -> Array:
        return self._whole.open()[self._start :]
