"""HDF5 as Keras writes weights: `.weights.h5`, and older files of whole models.

Groups are walked by their links: one that leads out of the file, and a dataset whose values lie elsewhere, are refused.
"""

import io
import math
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tiebeam.checkpoints.archive import Archive, Entry, Source, Span
from tiebeam.checkpoints.bounded import size_of
from tiebeam.checkpoints.dtypes import DTYPES, Array, DType
from tiebeam.errors import CheckpointError

MOST_OBJECTS = 200_000
MOST_DEPTH = 64
_STEP = 2**20
_SKIPPED = ("optimizer", "optimizer_weights", "_optimizer")


def read(path: Path) -> Archive:
    """A file of HDF5.

    Raises:
        CheckpointError: h5py is missing, the file is damaged, or leads out of itself.
    """
    return read_at(path, path.name, 0, size_of(path))


def read_at(path: Path, name: str, start: int, stop: int) -> Archive:
    """HDF5 that lies in a part of a file, as in a `.keras` archive."""
    h5py = _h5py()
    try:
        with Window(path, start, stop) as window, h5py.File(window, "r") as file:
            entries = {e.name: e for e in _walk(h5py, file, path, name, start)}
    except (OSError, RuntimeError, ValueError, KeyError, TypeError) as e:
        if isinstance(e, CheckpointError):
            raise
        raise CheckpointError(f"'{path}' is no sound HDF5 file", got=f"{type(e).__name__}: {e}"[:200]) from e
    return Archive(path, "keras", entries, (path.name,))


def _h5py() -> Any:
    try:
        import h5py
    except ImportError as e:
        raise CheckpointError(
            "HDF5 is read by h5py, which is not installed", hint="pip install 'tiebeam[hdf5]', or h5py itself"
        ) from e
    return h5py


class Window(io.RawIOBase):
    """A part of a file, as a file."""

    def __init__(self, path: Path, start: int, stop: int) -> None:
        self._file, self._start, self._size, self._at = path.open("rb"), start, stop - start, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = max(0, offset + (0, self._at, self._size)[whence])
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        wanted = max(0, min(len(buffer), self._size - self._at))
        self._file.seek(self._start + self._at)
        found = self._file.read(wanted)
        buffer[: len(found)] = found
        self._at += len(found)
        return len(found)

    def close(self) -> None:
        self._file.close()
        super().close()


def _walk(h5py: Any, file: Any, path: Path, name: str, base: int) -> Iterator[Entry]:
    stack: list[tuple[str, Any, int]] = [("", file, 0)]
    count, groups = 0, set()
    while stack:
        place, group, depth = stack.pop()
        below = []
        for key in group:
            count += 1
            if count > MOST_OBJECTS or depth > MOST_DEPTH:
                raise CheckpointError(f"'{path}' holds too many objects, or too deep", got=f"{count:,} at {depth}")
            link = group.get(key, getlink=True)
            if not isinstance(link, h5py.HardLink):
                raise CheckpointError(
                    f"'{path}' leads out of itself, or to itself",
                    got=f"the link {place}/{key}"[:200],
                    expected="groups and arrays",
                )
            item = group[key]
            where = f"{place}/{key}" if place else key
            if isinstance(item, h5py.Dataset):
                entry = _entry(h5py, item, where, path, name, base)
                if entry is not None:
                    yield entry
            elif isinstance(item, h5py.Group) and key not in _SKIPPED:
                address = h5py.h5o.get_info(item.id).addr
                if address not in groups:
                    groups.add(address)
                    below.append((where, item, depth + 1))
        stack += reversed(below)


def _entry(h5py: Any, dataset: Any, where: str, path: Path, name: str, base: int) -> Entry | None:
    if dataset.external or dataset.is_virtual:
        raise CheckpointError(f"the values of {where!r:.80} lie outside '{path}'")
    dtype = _dtype(dataset)
    if dtype is None or dataset.shape is None:
        return None
    shape = tuple(int(n) for n in dataset.shape)
    offset = dataset.id.get_offset()
    length = math.prod(shape) * dtype.bits // 8
    source: Source
    if offset is not None and dataset.chunks is None:
        source = Span(path, base + offset, base + offset + length)
        if base + offset + length > size_of(path):
            raise CheckpointError(f"{where!r:.80} reaches beyond the end of '{path}'")
    else:
        address = int(h5py.h5o.get_info(dataset.id).addr)
        source = Dataset(path, base, where, length, address, dataset.id.get_storage_size())
    return Entry(where, shape, dtype, source, file=name)


def _dtype(dataset: Any) -> DType | None:
    kind = dataset.dtype
    if kind.byteorder == ">" or kind.hasobject or kind.fields:
        return None
    if kind.kind == "V" and kind.itemsize == 2:
        return DTYPES["bfloat16"]  # Keras names it in an attribute, and stores raw bytes
    return DTYPES.get(kind.name)


class Dataset:
    """Values in chunks, compressed or not, or too few to have a place: copied to a temporary file when asked for."""

    def __init__(self, path: Path, base: int, where: str, length: int, address: int, stored: int) -> None:
        self._path, self._base, self._where = path, base, where
        self._length, self._address, self._stored = length, address, stored

    @property
    def identity(self) -> tuple[str, int, int]:
        return f"{self._path}:{self._address}", 0, self._length

    def open(self) -> Array:
        from tiebeam.checkpoints.formats.zips import EXPANSION_FLOOR, MOST_EXPANSION

        if self._length > max(EXPANSION_FLOOR, MOST_EXPANSION * self._stored):
            raise CheckpointError(
                f"{self._where!r:.80} in '{self._path}' is too large to be what it says",
                got=f"{self._length:,} bytes out of {self._stored:,} stored",
            )
        h5py = _h5py()
        try:
            with Window(self._path, self._base, size_of(self._path)) as window, h5py.File(window, "r") as file:
                return self._copied(file[self._where])
        except (OSError, RuntimeError, ValueError, KeyError) as e:
            raise CheckpointError(f"{self._where!r:.80} in '{self._path}' cannot be read", got=str(e)[:200]) from e

    def _copied(self, dataset: Any) -> Array:
        if not self._length:
            return np.empty(0, np.uint8)
        with tempfile.TemporaryFile() as out:
            rows = dataset.shape[0] if dataset.shape else 1
            step = max(1, rows * _STEP // self._length)
            for i in range(0, rows, step):
                piece = dataset[i : i + step] if dataset.shape else dataset[()]
                out.write(np.ascontiguousarray(piece).tobytes())
            out.flush()
            return np.asarray(np.memmap(out, np.uint8, "r", 0, (self._length,)))
