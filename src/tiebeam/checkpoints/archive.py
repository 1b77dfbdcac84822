"""What every file of weights is to the rest of tiebeam: named entries, metadata, and a config beside them.

A format's module reads headers and makes an `Archive`; it loads no values. Values are mapped, never copied, when a
judgement asks for them.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from tiebeam.checkpoints.dtypes import Array, DType
from tiebeam.errors import CheckpointError


class Source(Protocol):
    """Where the bytes of an entry are."""

    @property
    def identity(self) -> tuple[str, int, int]:
        """The file or storage, its first byte and its end; two entries whose ranges overlap share memory."""
        ...

    def open(self) -> Array:
        """All bytes, as a read-only array of uint8 that costs no private memory."""
        ...


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes that lie in a file as they are."""

    file: Path
    start: int
    stop: int

    @property
    def identity(self) -> tuple[str, int, int]:
        return str(self.file), self.start, self.stop

    def open(self) -> Array:
        return mapped(self.file, self.start, self.stop)


def mapped(file: Path, start: int, stop: int) -> Array:
    """Bytes of a file as a read-only array of uint8.

    Raises:
        CheckpointError: The file is gone or ends before `stop`.
    """
    if start == stop:
        return np.empty(0, np.uint8)
    try:
        return np.asarray(np.memmap(file, np.uint8, "r", start, (stop - start,)))
    except (OSError, ValueError) as e:
        raise CheckpointError(f"'{file}' cannot be read", got=str(e), expected=f"{stop:,} bytes") from e


@dataclass(frozen=True, slots=True)
class Entry:
    """One stored tensor.

    Attributes:
        shape: None where it is not known, as in an index without its files.
        dtype: None where it is not known.
        source: None where there are no values.
        strides: In elements, where they are not those of row-major order.
    """

    name: str
    shape: tuple[int, ...] | None = None
    dtype: DType | None = None
    source: Source | None = None
    strides: tuple[int, ...] | None = None
    file: str = ""

    @property
    def elements(self) -> int:
        return 0 if self.shape is None else math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes that its elements take, wherever they lie."""
        return 0 if self.dtype is None else self.dtype.nbytes(self.elements) or 0

    def values(self) -> Array:
        """The stored bits in the dtype's carrier, mapped and read-only; a packed dtype's rows are bytes.

        Raises:
            CheckpointError: There are no values, or fewer than the shape says.
        """
        if self.source is None or self.shape is None or self.dtype is None:
            raise CheckpointError(f"the values of '{self.name}' are not at hand", expected="the file that holds them")
        raw = self.source.open()
        if self.dtype.kind == "packed":
            rows = math.prod(self.shape[:-1])
            return raw.reshape(rows, -1) if rows else raw.reshape(0, 0)
        flat = raw.view(self.dtype.carrier)
        if self.strides is None:
            return flat[: self.elements].reshape(self.shape)
        if flat.size < reach(self.shape, self.strides):
            raise CheckpointError(
                f"the values of '{self.name}' end before its shape does", got=f"{flat.size:,} elements"
            )
        steps = tuple(s * flat.itemsize for s in self.strides)
        return np.lib.stride_tricks.as_strided(flat, self.shape, steps, writeable=False)


class Counted(Mapping[str, Entry]):
    """Entries that know their sizes without being made one by one."""

    def held(self) -> tuple[int, int]:
        """Elements and bytes, each storage counted once."""
        raise NotImplementedError


def reach(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Elements from the first to the last that a strided shape touches, the last included.

    Example:
        >>> reach((2, 3), (3, 1)), reach((0, 3), (3, 1))
        (6, 0)
    """
    if 0 in shape:
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))


@dataclass(frozen=True)
class Archive:
    """A checkpoint, its headers read.

    Attributes:
        path: What was asked for.
        format: "safetensors", "torch", "gguf", "keras", "npz" or "llama2.c".
        entries: By name, in the file's order.
        files: Every file that was read, relative to `path`'s folder.
        metadata: Strings that the files carry themselves.
        config: `config.json` beside the file, or what the file says in its place; None without one.
        totals: Sizes that an index declares, by its own names.
        missing: Files that an index names and that are not there, where others are.
        strays: Names on which index and files disagree.
        has_values: False for an index without its files.
        declares: Whether the file itself says that it is tied (llama2.c's header does).
        adapter: `adapter_config.json` beside the file.
    """

    path: Path
    format: str
    entries: Mapping[str, Entry]
    files: tuple[str, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, Any] | None = None
    totals: Mapping[str, int] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    strays: tuple[str, ...] = ()
    has_values: bool = True
    declares: bool | None = None
    adapter: Mapping[str, Any] | None = None

    def rows(self, name: str, step_bytes: int = 2**20) -> Iterator[Array]:
        """Blocks of rows of one entry, in order, each of about `step_bytes` bytes.

        Example:
            >>> import tempfile
            >>> path = Path(tempfile.mkdtemp()) / "t.bin"
            >>> _ = path.write_bytes(np.arange(6, dtype="<f4").tobytes())
            >>> from tiebeam.checkpoints.dtypes import FLOAT32
            >>> entry = Entry("t", (3, 2), FLOAT32, Span(path, 0, 24))
            >>> [block.tolist() for block in Archive(path, "raw", {"t": entry}).rows("t", 16)]
            [[[0.0, 1.0], [2.0, 3.0]], [[4.0, 5.0]]]
        """
        values = self.entries[name].values()
        row = max(1, values[:1].nbytes)
        step = max(1, step_bytes // row)
        for i in range(0, len(values), step):
            yield values[i : i + step]

    def held(self) -> tuple[int, int]:
        """Elements and bytes, each storage counted once."""
        if isinstance(self.entries, Counted):
            return self.entries.held()
        elements, size, seen = 0, 0, set()
        for entry in self.entries.values():
            key = entry.source.identity if entry.source is not None else None
            if key is None or key not in seen:
                elements, size = elements + entry.elements, size + entry.nbytes
                seen.add(key)
        return elements, size
