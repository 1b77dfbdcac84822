"""safetensors: eight bytes of length, a JSON header, then the tensors without a hole between them.

The header is scanned, not handed to a JSON reader: a hostile one could make objects of 25 times its size. Each tensor
is kept as one small tuple until someone asks for it.
"""

import json
import math
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from tiebeam.checkpoints.archive import Archive, Counted, Entry, Span
from tiebeam.checkpoints.bounded import MOST_ELEMENTS, refuse_pointer, size_of
from tiebeam.checkpoints.dtypes import DTYPES, DType
from tiebeam.errors import CheckpointError

MOST_HEADER = 100_000_000
"""Bytes of a header; the format's own limit."""
MOST_METADATA = 50_000
"""Pairs of metadata: beyond that it is an attack, and each costs memory."""
METADATA = "__metadata__"
_MOST_DIMENSIONS = 64
_TOO_LARGE = -1

CODES: dict[bytes, DType] = {
    b"F64": DTYPES["float64"], b"F32": DTYPES["float32"], b"F16": DTYPES["float16"], b"BF16": DTYPES["bfloat16"],
    b"F8_E4M3": DTYPES["float8_e4m3fn"], b"F8_E5M2": DTYPES["float8_e5m2"], b"F8_E8M0": DTYPES["float8_e8m0fnu"],
    b"F8_E4M3FNUZ": DTYPES["float8_e4m3fnuz"], b"F8_E5M2FNUZ": DTYPES["float8_e5m2fnuz"],
    b"F6_E2M3": DTYPES["float6_e2m3"], b"F6_E3M2": DTYPES["float6_e3m2"], b"F4": DTYPES["float4"],
    b"I64": DTYPES["int64"], b"I32": DTYPES["int32"], b"I16": DTYPES["int16"], b"I8": DTYPES["int8"],
    b"U64": DTYPES["uint64"], b"U32": DTYPES["uint32"], b"U16": DTYPES["uint16"], b"U8": DTYPES["uint8"],
    b"BOOL": DTYPES["bool"], b"C64": DTYPES["complex64"],
}  # fmt: skip

_S = rb"[ \t\n\r]*"
_STRING = rb'"([^"\\\x00-\x1f]*+(?:\\.[^"\\\x00-\x1f]*+)*+)"'
_SIZE = rb"(?:0|[1-9][0-9]{0,18})"
_SIZES = rb"\[" + _S + rb"((?:" + _SIZE + _S + rb"(?:," + _S + _SIZE + _S + rb")*+)?)\]"
_NAME = re.compile(_S + _STRING + _S + rb":" + _S)
_DTYPE = re.compile(rb'"dtype"' + _S + rb":" + _S + rb'"([A-Z0-9_]{2,16})"' + _S)
_SHAPE = re.compile(rb'"shape"' + _S + rb":" + _S + _SIZES + _S)
_OFFSETS = re.compile(rb'"data_offsets"' + _S + rb":" + _S + _SIZES + _S)
_MEMBER = re.compile(  # name and tensor, as every writer writes them
    rb'"([^"\\\x00-\x1f]++)":'
    rb'\{"dtype":"([A-Z0-9_]{2,16})","shape":\[(' + _SIZE + rb"(?:," + _SIZE + rb")*+)?\],"
    rb'"data_offsets":\[(' + _SIZE + rb"),(" + _SIZE + rb")\]\}"
)
_PAIR = re.compile(_S + _STRING + _S + rb":" + _S + _STRING + _S)
_SPACE = re.compile(_S)


class Raw(NamedTuple):
    """One tensor of the header, as small as it can be kept."""

    dtype: DType
    shape: tuple[int, ...]
    start: int
    stop: int


class Entries(Counted):
    """The tensors of one file; an `Entry` is made when it is asked for."""

    def __init__(self, file: Path, base: int, raw: dict[str, Raw]) -> None:
        self._file, self._base, self.raw, self._name = file, base, raw, file.name

    def __getitem__(self, name: str) -> Entry:
        dtype, shape, start, stop = self.raw[name]
        source = Span(self._file, self._base + start, self._base + stop)
        return Entry(name, shape, dtype, source, file=self._name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.raw)

    def __len__(self) -> int:
        return len(self.raw)

    def __contains__(self, name: object) -> bool:
        return name in self.raw

    def held(self) -> tuple[int, int]:
        found = self.raw.values()  # no two of them overlap
        return sum(math.prod(r.shape) for r in found), sum(r.stop - r.start for r in found)


def read(path: Path) -> Archive:
    """One file of safetensors.

    Raises:
        CheckpointError: It is truncated, its header is too long or no header, a key stands twice, or the ranges
            overlap, leave holes or do not fit shapes and file.
    """
    header, base, size = _header(path)
    try:
        raw, metadata = Scanner(header).scan()
        _check_ranges(raw, size - base)
    except CheckpointError as e:
        raise CheckpointError(f"'{path}' is no sound safetensors file: {e.what}", got=e.got, expected=e.expected) from e
    return Archive(path, "safetensors", Entries(path, base, raw), (path.name,), metadata)


def _header(path: Path) -> tuple[bytes, int, int]:
    size = size_of(path)
    with path.open("rb") as file:
        start = file.read(8)
        length = int.from_bytes(start, "little")
        refuse_pointer(path, start)
        if len(start) < 8 or length > size - 8:
            raise CheckpointError(
                f"'{path}' is truncated, or no safetensors file",
                got=f"{size:,} bytes" + (f" and a header of {length:,}" if len(start) == 8 else ""),
                expected="a header that ends before the file does",
            )
        if length > MOST_HEADER:
            raise CheckpointError(
                f"the header of '{path}' is too long", got=f"{length:,} bytes", expected=f"at most {MOST_HEADER:,}"
            )
        return file.read(length), 8 + length, size


class Scanner:
    """Reads one header, front to back."""

    def __init__(self, text: bytes) -> None:
        self.text, self.at = text, 0
        self.raw: dict[str, Raw] = {}
        self.metadata: dict[str, str] | None = None

    def scan(self) -> tuple[dict[str, Raw], dict[str, str]]:
        """All tensors and the metadata.

        Raises:
            CheckpointError: What stands there is not the format's grammar, or a name stands twice.

        Example:
            >>> raw, metadata = Scanner(b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}').scan()
            >>> raw["a"].shape, metadata
            ((2,), {})
        """
        if self.text[:1] != b"{":
            raise CheckpointError("the header does not begin with '{'", got=repr(self.text[:8]))
        self.at = 1
        if not self._closes():
            self._member()
            while self._takes(b","):
                self._member()
            if not self._takes(b"}"):
                raise self._unexpected("',' or '}'")
        self._skip()
        if self.text[self.at :].strip(b" \x00"):  # the format lets writers pad with spaces
            raise self._unexpected("the end of the header")
        return self.raw, self.metadata or {}

    def _member(self) -> None:
        found = _MEMBER.match(self.text, self.at)
        if found is not None:
            self.at = found.end()
            name = self._string(found[1])
            self._keep(name, _raw(name, found[2], found[3] or b"", int(found[4]), int(found[5])))
            return
        found = _NAME.match(self.text, self.at)
        if found is None:
            raise self._unexpected("a name")
        self.at = found.end()
        name = self._string(found[1])
        if name == METADATA:
            self._read_metadata()
        else:
            self._keep(name, self._tensor(name))

    def _keep(self, name: str, raw: Raw) -> None:
        if name in self.raw or name == METADATA:
            raise CheckpointError("a name stands twice, or is not a tensor's", got=repr(name)[:100])
        self.raw[name] = raw

    def _tensor(self, name: str) -> Raw:
        if not self._takes(b"{"):
            raise self._unexpected(f"the tensor {name!r:.60}")
        held: dict[str, bytes] = {}
        for i in range(3):
            if i and not self._takes(b","):
                raise self._unexpected("dtype, shape and data_offsets")
            self._skip()
            for field, pattern in (("dtype", _DTYPE), ("shape", _SHAPE), ("data_offsets", _OFFSETS)):
                found = pattern.match(self.text, self.at)
                if found is not None and field not in held:
                    held[field], self.at = found[1], found.end()
                    break
            else:
                raise self._unexpected("dtype, shape and data_offsets, each once")
        if not self._takes(b"}"):
            raise self._unexpected("'}'")
        offsets = _sizes(held["data_offsets"])
        if len(offsets) != 2:
            raise CheckpointError(f"the offsets of {name!r:.60} are no pair", got=repr(offsets[:4]))
        return _raw(name, held["dtype"], held["shape"], *offsets)

    def _read_metadata(self) -> None:
        if self.metadata is not None:
            raise CheckpointError("a name stands twice", got=METADATA)
        if not self._takes(b"{"):
            raise self._unexpected("an object of strings")
        self.metadata = {}
        if self._closes():
            return
        while True:
            found = _PAIR.match(self.text, self.at)
            if found is None:
                raise self._unexpected("a pair of strings in the metadata")
            key = self._string(found[1])
            if key in self.metadata or len(self.metadata) >= MOST_METADATA:
                raise CheckpointError("a key of the metadata stands twice, or there are too many", got=repr(key)[:100])
            self.metadata[key] = self._string(found[2])
            self.at = found.end()
            if self._takes(b"}"):
                return
            if not self._takes(b","):
                raise self._unexpected("',' or '}'")

    def _string(self, inside: bytes) -> str:
        try:
            if b"\\" not in inside:
                return inside.decode("utf-8")
            made = str(json.loads(b'"' + inside + b'"'))
            made.encode("utf-8")  # a half of a surrogate pair is no text
        except ValueError as e:
            raise CheckpointError("a string of the header is no text", got=repr(inside[:60])) from e
        return made

    def _skip(self) -> None:
        found = _SPACE.match(self.text, self.at)
        self.at = found.end() if found else self.at

    def _takes(self, mark: bytes) -> bool:
        if self.text[self.at : self.at + 1] == mark:
            self.at += 1
            return True
        self._skip()
        there = self.text[self.at : self.at + 1] == mark
        self.at += there
        return there

    def _closes(self) -> bool:
        return self._takes(b"}")

    def _unexpected(self, expected: str) -> CheckpointError:
        near = self.text[self.at : self.at + 40]
        return CheckpointError(f"byte {self.at:,} of the header", got=repr(near), expected=expected)


def _sizes(text: bytes) -> tuple[int, ...]:
    return tuple(map(int, text.split(b","))) if text.strip() else ()


def _raw(name: str, code: bytes, shape: bytes, start: int, stop: int) -> Raw:
    dtype, sizes, length = _described(code, shape)
    if dtype is None:
        raise CheckpointError(f"the dtype of {name!r:.60} is not known", got=repr(code))
    if length == _TOO_LARGE:
        raise CheckpointError(f"the shape of {name!r:.60} is too large", got=repr(sizes[:8]))
    if length != stop - start:
        raise CheckpointError(
            f"the range of {name!r:.60} is not the size of its shape",
            got=f"{stop - start:,} bytes",
            expected=f"{sizes[:8]} of {dtype.name}",
        )
    return Raw(dtype, sizes, start, stop)


@lru_cache(maxsize=512)
def _described(code: bytes, shape: bytes) -> tuple[DType | None, tuple[int, ...], int | None]:
    """Dtype, shape and bytes: the layers of a model repeat a few of them."""
    dtype, sizes = CODES.get(code), _sizes(shape)
    elements = math.prod(sizes) if len(sizes) <= _MOST_DIMENSIONS else MOST_ELEMENTS
    if elements >= MOST_ELEMENTS:
        return dtype, sizes, _TOO_LARGE
    return dtype, sizes, None if dtype is None else dtype.nbytes(elements)


def _check_ranges(raw: dict[str, Raw], room: int) -> None:
    """Refuse ranges that overlap, leave holes, or end elsewhere than the file does."""
    if max((r.stop for r in raw.values()), default=0) > room:
        beyond = next(n for n, r in raw.items() if r.stop > room)
        raise CheckpointError(
            f"the file ends before {beyond!r:.60} does", got=f"{room:,} bytes after the header", expected="all of it"
        )
    end = 0
    for start, stop, name in sorted((r.start, r.stop, n) for n, r in raw.items()):
        if start != end:
            raise CheckpointError(
                f"the range of {name!r:.60} {'overlaps another' if start < end else 'leaves a hole before it'}",
                got=f"a start at {start:,}",
                expected=f"{end:,}",
            )
        end = stop
    if end != room:
        raise CheckpointError("the tensors do not fill the file", got=f"{room:,} bytes", expected=f"{end:,}")
