"""The bytes of tensors in a mended file, a block at a time: as they stand, or those of the other end, or the mean."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from tiebeam.checkpoints.archive import Entry
from tiebeam.checkpoints.dtypes import Array, DType, decode, encode
from tiebeam.errors import CheckpointError

BLOCK = 2**20


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of a file that is to be written."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    nbytes: int
    blocks: Callable[[], Iterator[bytes | memoryview]]


def as_it_is(entry: Entry, name: str | None = None) -> Tensor:
    """The stored bytes, under the same name or another."""
    if entry.dtype is None or entry.shape is None or entry.source is None:
        raise CheckpointError(
            f"the values of '{entry.name}' are not at hand", expected="the files, not their index alone"
        )
    source = entry.source

    def blocks() -> Iterator[memoryview]:
        raw = source.open()
        for i in range(0, raw.size, BLOCK):
            yield raw[i : i + BLOCK].data

    return Tensor(name or entry.name, entry.dtype, entry.shape, entry.nbytes, blocks)


def other_end(table: Entry, readout: Entry) -> Tensor:
    """The readout's values under the table's name, in the readout's dtype, transposed where it lies the other way."""
    if readout.dtype is None or readout.shape is None or table.shape is None or readout.dtype.kind == "packed":
        raise CheckpointError(f"'{readout.name}' cannot take the place of '{table.name}'", got="quantised values")
    matrices = len(table.shape) == len(readout.shape) == 2
    same_width = matrices and table.shape[1] == readout.shape[1]
    turned = matrices and not same_width and table.shape[1] == readout.shape[0]
    if not turned and not same_width:
        raise CheckpointError(
            f"'{readout.name}' cannot take the place of '{table.name}'",
            got=f"shape {readout.shape}",
            expected=f"rows of {table.shape[-1:]}, or a transpose of such",
        )
    shape = readout.shape[::-1] if turned else readout.shape

    def blocks() -> Iterator[bytes]:
        values = readout.values()
        yield from _rows(values.T if turned else values)

    return Tensor(table.name, readout.dtype, shape, readout.nbytes, blocks)


def mean(table: Entry, readout: Entry) -> Tensor:
    """The mean of both ends in the table's dtype, rounded once."""
    dx, dy = table.dtype, readout.dtype
    turned = readout.shape != table.shape
    fits = table.shape is not None and readout.shape in (table.shape, table.shape[::-1])
    if dx is None or dy is None or table.shape is None or not fits or not dx.kind == dy.kind == "float":
        raise CheckpointError(
            f"'{table.name}' and '{readout.name}' have no mean",
            got=f"{table.shape} and {readout.shape}",
            expected="one shape, or its transpose, of floating-point numbers",
        )

    def blocks() -> Iterator[bytes]:
        x, y = table.values(), readout.values()
        y = y.T if turned else y
        step = max(1, BLOCK // max(1, x.shape[1] * x.itemsize))
        for i in range(0, len(x), step):
            p = decode(np.ascontiguousarray(x[i : i + step]), dx).astype(np.float64)
            q = decode(np.ascontiguousarray(y[i : i + step]), dy).astype(np.float64)
            made = encode((p + q) / 2, dx)
            if made is None:
                raise CheckpointError(f"no rounding to {dx.name} is known here")
            yield made.tobytes()

    return Tensor(table.name, dx, table.shape, table.nbytes, blocks)


def _rows(values: Array) -> Iterator[bytes]:
    step = max(1, BLOCK // max(1, values[:1].nbytes))
    for i in range(0, len(values), step):
        yield np.ascontiguousarray(values[i : i + step]).tobytes()
