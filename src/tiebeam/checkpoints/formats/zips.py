"""The directory of a zip file, read with bounds: where each member lies, without unpacking any.

Python's own reader makes an object of half a kilobyte for each member before anyone can refuse, and does not say where
a member's bytes begin, which is what mapping them needs.
"""

import struct
import tempfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from tiebeam.checkpoints.archive import Source, Span
from tiebeam.checkpoints.bounded import size_of
from tiebeam.checkpoints.dtypes import Array
from tiebeam.errors import CheckpointError

MOST_MEMBERS = 100_000
MOST_DIRECTORY = 32 * 2**20
"""Bytes of the directory: 300 for each of the most members."""
MOST_EXPANSION = 100
"""Times its stored size that a member may unpack to; weights hardly compress."""
EXPANSION_FLOOR = 2**20
"""Bytes below which the expansion does not matter."""

_END, _END64, _LOCATOR64 = b"PK\x05\x06", b"PK\x06\x06", b"PK\x06\x07"
_CENTRAL, _LOCAL = b"PK\x01\x02", b"PK\x03\x04"
_TAIL = 22 + 65535 + 20
_STEP = 2**20
STORED, DEFLATED = 0, 8


class Member(NamedTuple):
    """One member; sizes in bytes."""

    name: str
    method: int
    stored: int
    size: int
    header: int


def members(path: Path) -> dict[str, Member]:
    """All members by name.

    Raises:
        CheckpointError: It is no zip file, has too many members, a name twice, or members that overlap.
    """
    size = size_of(path)
    try:
        with path.open("rb") as file:
            start, length, count = _directory(file, size)
            file.seek(start)
            found = _entries(file.read(length), count)
    except (OSError, struct.error, ValueError) as e:
        if isinstance(e, CheckpointError):
            raise CheckpointError(f"'{path}' is no sound zip file: {e.what}", got=e.got, expected=e.expected) from e
        raise CheckpointError(f"'{path}' is no sound zip file", got=str(e)) from e
    by_name = {m.name: m for m in found}
    if len(by_name) < len(found):
        raise CheckpointError(f"'{path}' has two members of one name", got=f"{len(found)} members")
    _check_overlaps(path, found, start)
    return by_name


def _directory(file: BinaryIO, size: int) -> tuple[int, int, int]:
    """Where the central directory begins, its bytes, and how many members it says it has."""
    file.seek(max(0, size - _TAIL))
    tail = file.read()
    at = tail.rfind(_END)
    if at < 0 or len(tail) < at + 22:
        raise CheckpointError("it has no directory", got=f"{size:,} bytes", expected="a whole file")
    count, length, start = struct.unpack("<HII", tail[at + 10 : at + 20])
    end = size - len(tail) + at
    if at >= 20 and tail[at - 20 : at - 16] == _LOCATOR64:
        end = struct.unpack("<Q", tail[at - 12 : at - 4])[0]
        if end > size - 56:
            raise CheckpointError("its directory lies beyond its end", got=f"{end:,}")
        file.seek(end)
        record = file.read(56)
        if record[:4] != _END64:
            raise CheckpointError("its 64-bit directory is not there", got=repr(record[:4]))
        count, length, start = struct.unpack("<QQQ", record[32:56])
    if count > MOST_MEMBERS or length > MOST_DIRECTORY or start + length > end:
        raise CheckpointError(
            "its directory is too large",
            got=f"{count:,} members, {length:,} bytes",
            expected=f"at most {MOST_MEMBERS:,} members, {MOST_DIRECTORY:,} bytes",
        )
    return start, length, count


def _entries(directory: bytes, count: int) -> list[Member]:
    found: list[Member] = []
    at = 0
    for _ in range(count):
        if directory[at : at + 4] != _CENTRAL:
            raise CheckpointError("its directory is cut off", got=f"{len(found):,} of {count:,} members")
        flags, method = struct.unpack_from("<HH", directory, at + 8)
        stored, size, named, extra, comment = struct.unpack_from("<IIHHH", directory, at + 20)
        (header,) = struct.unpack_from("<I", directory, at + 42)
        name = directory[at + 46 : at + 46 + named]
        more = directory[at + 46 + named : at + 46 + named + extra]
        size, stored, header = _long_sizes(more, size, stored, header)
        if flags & 1:
            raise CheckpointError("a member is encrypted", got=repr(name[:60]))
        found.append(Member(name.decode("utf-8", "backslashreplace"), method, stored, size, header))
        at += 46 + named + extra + comment
    return found


def _long_sizes(extra: bytes, size: int, stored: int, header: int) -> tuple[int, int, int]:
    """Sizes of more than 32 bits stand in an extra field, in this order, those alone that do not fit."""
    if 0xFFFFFFFF not in (size, stored, header):
        return size, stored, header
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, at)
        if kind == 1:
            longs = list(struct.unpack_from(f"<{length // 8}Q", extra, at + 4))
            size, stored, header = (longs.pop(0) if v == 0xFFFFFFFF and longs else v for v in (size, stored, header))
            break
        at += 4 + length
    return size, stored, header


def _check_overlaps(path: Path, found: list[Member], directory: int) -> None:
    """Members that share bytes are how a small file unpacks to petabytes."""
    end, before = 0, ""
    for m in sorted(found, key=lambda m: m.header):
        if m.header < end or m.header + 30 + m.stored > directory:
            raise CheckpointError(
                f"the members of '{path}' overlap, or reach beyond its end", got=f"{m.name!r:.80} and {before!r:.80}"
            )
        end, before = m.header + 30 + m.stored, m.name


def source_of(path: Path, member: Member) -> Source:
    """Where a member's bytes are: in the file as they stand, or to be unpacked when they are asked for.

    Raises:
        CheckpointError: Its own header contradicts the directory.
    """
    start = _data_start(path, member)
    if member.method == STORED and member.stored == member.size:
        return Span(path, start, start + member.size)
    if member.method != DEFLATED:
        raise CheckpointError(f"{member.name!r:.80} in '{path}' is packed in a way not read", got=f"{member.method}")
    return Packed(path, member.name, start, member.stored, member.size)


def read_member(path: Path, member: Member, most: int) -> bytes:
    """A small member's bytes.

    Raises:
        CheckpointError: It is larger than `most`, or unpacks to another size than it says.
    """
    if member.size > most:
        raise CheckpointError(
            f"{member.name!r:.80} in '{path}' is too large", got=f"{member.size:,} bytes", expected=f"at most {most:,}"
        )
    return source_of(path, member).open().tobytes()


def _data_start(path: Path, member: Member) -> int:
    with path.open("rb") as file:
        file.seek(member.header)
        local = file.read(30)
    if len(local) < 30 or local[:4] != _LOCAL:
        raise CheckpointError(f"{member.name!r:.80} in '{path}' is not where the directory says")
    named, extra = struct.unpack("<HH", local[26:30])
    start = int(member.header + 30 + named + extra)
    if start + member.stored > size_of(path):
        raise CheckpointError(f"{member.name!r:.80} in '{path}' reaches beyond the file's end")
    return start


@dataclass(frozen=True, slots=True)
class Packed:
    """Deflated bytes; unpacked to a temporary file, of which no private memory is taken.

    What would unpack to far more than is stored is refused when its values are asked for: a mask of ones may, and
    nobody asks for it.
    """

    file: Path
    name: str
    start: int
    stored: int
    size: int

    @property
    def identity(self) -> tuple[str, int, int]:
        return str(self.file), self.start, self.start + self.stored

    def open(self) -> Array:
        if not self.size:
            return np.empty(0, np.uint8)
        limit = max(EXPANSION_FLOOR, MOST_EXPANSION * self.stored)
        if self.size > limit:
            raise CheckpointError(
                f"{self.name!r:.80} in '{self.file}' is too large to be what it says",
                got=f"{self.size:,} bytes out of {self.stored:,} stored",
                expected=f"at most {limit:,}",
            )
        with tempfile.TemporaryFile() as out:
            self._unpack(out)
            out.flush()
            return np.asarray(np.memmap(out, np.uint8, "r", 0, (self.size,)))

    def _unpack(self, out: BinaryIO) -> None:
        machine, left, made = zlib.decompressobj(-15), self.stored, 0
        with self.file.open("rb") as file:
            file.seek(self.start)
            waiting = b""
            while not machine.eof and (left or waiting):
                if not waiting:
                    waiting = file.read(min(_STEP, left))
                    left -= len(waiting)
                    if not waiting:
                        break
                try:
                    piece = machine.decompress(waiting, _STEP)
                except zlib.error as e:
                    raise CheckpointError(f"a member of '{self.file}' does not unpack", got=str(e)) from e
                waiting, made = machine.unconsumed_tail, made + len(piece)
                if made > self.size:
                    break
                out.write(piece)
        if made != self.size:
            raise CheckpointError(
                f"a member of '{self.file}' unpacks to another size", got=f"{made:,}", expected=f"{self.size:,} bytes"
            )
