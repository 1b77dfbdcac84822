"""Are two stored matrices one? Bits first, block by block, and no further than the first block that differs.

Values are mapped: what a comparison takes for itself is a few blocks.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tiebeam.checkpoints.archive import Entry
from tiebeam.checkpoints.dtypes import Array, DType, decode, encode
from tiebeam.core.checkpoint import Gap

BLOCK = 2**20
"""Bytes compared at a time."""
SAMPLE_BLOCKS = 16
SAMPLE_BYTES = 2**17
"""Of each block that is decoded to say how far two matrices are apart."""

Likeness = Literal["equal", "equal-after-cast", "transposed", "sliced", "different", "unknown"]


@dataclass(frozen=True, slots=True)
class Comparison:
    """What two matrices are to one another; `why` says what stood in the way of an answer."""

    likeness: Likeness
    gap: Gap | None = None
    why: str = ""


def compare(a: Entry, b: Entry) -> Comparison:
    """Compare the table with the readout.

    Raises:
        CheckpointError: A file has fewer values than its header says.
    """
    dx, dy = a.dtype, b.dtype
    if a.source is None or b.source is None or a.shape is None or b.shape is None or dx is None or dy is None:
        return Comparison("unknown", why="there are no values to compare")
    if _same_place(a, b):
        return Comparison("equal")
    if dx != dy and not dx.kind == dy.kind == "float":
        why = f"one end is {dx.name}, the other {dy.name}: quantised values are not decoded"
        return Comparison("unknown", why=why)
    if dx.kind == "packed":
        if a.shape != b.shape:
            return Comparison("unknown", why="the two ends are quantised, in different shapes")
        return Comparison("equal" if _equal(a.values(), b.values()) else "different")
    return _matrices(a.values(), b.values(), dx, dy)


def _same_place(a: Entry, b: Entry) -> bool:
    same = a.source is not None and b.source is not None and a.source.identity == b.source.identity
    return same and a.shape == b.shape and a.dtype == b.dtype and a.strides == b.strides


def _matrices(x: Array, y: Array, dx: DType, dy: DType) -> Comparison:
    if x.shape == y.shape and x.ndim != 2:  # a vector of scales
        x, y = x.reshape(1, -1), y.reshape(1, -1)
    if x.ndim != 2 or y.ndim != 2:
        return Comparison("unknown", why=f"shapes {x.shape} and {y.shape} are not those of matrices")
    if x.shape == y.shape:
        if _alike(x, y, dx, dy):
            return Comparison("equal" if dx == dy else "equal-after-cast")
        if x.shape[0] == x.shape[1] and _alike(x, y.T, dx, dy):
            return Comparison("transposed")
        gap = gap_of(x, y, dx, dy)
        if gap is not None and not gap.rows_differing and _same_numbers(x, y, dx, dy):
            return Comparison(
                "equal-after-cast", why="their numbers are equal, their bits are not: signs of zero, or NaN"
            )
        return Comparison("different", gap)
    if x.shape == y.shape[::-1]:
        alike = _alike(x, y.T, dx, dy)
        return Comparison("transposed") if alike else Comparison("different", gap_of(x, y.T, dx, dy))
    return _slices(x, y, dx, dy)


def _slices(x: Array, y: Array, dx: DType, dy: DType) -> Comparison:
    """Tables of one width and different numbers of rows, in either orientation."""
    for other in (y, y.T):
        if x.shape[1] == other.shape[1] and min(len(x), len(other)):
            rows = min(len(x), len(other))
            if _alike(x[:rows], other[:rows], dx, dy):
                return Comparison("sliced")
            return Comparison("different", gap_of(x[:rows], other[:rows], dx, dy))
    return Comparison("different", why=f"shapes {x.shape} and {y.shape} can be no one table")


def _alike(x: Array, y: Array, dx: DType, dy: DType) -> bool:
    return _equal(x, y) if dx == dy else _equal_after_cast(x, y, dx, dy)


def _equal(x: Array, y: Array) -> bool:
    """Whether all bits are equal; eight bytes at a time where the layout allows."""
    if x.shape != y.shape:
        return False
    if x.flags.c_contiguous and y.flags.c_contiguous:
        return _equal_bytes(x.reshape(-1).view(np.uint8), y.reshape(-1).view(np.uint8))
    bits = f"u{x.dtype.itemsize}"
    return all(np.array_equal(p, q) for p, q in _blocks(x.view(bits), y.view(bits)))


def _equal_bytes(x: Array, y: Array) -> bool:
    whole = x.size - x.size % 8
    a, b = x[:whole].view(np.uint64), y[:whole].view(np.uint64)
    step = BLOCK // 8
    return bool((x[whole:] == y[whole:]).all()) and all(
        np.array_equal(a[i : i + step], b[i : i + step]) for i in range(0, len(a), step)
    )


def _blocks(x: Array, y: Array) -> Iterator[tuple[Array, Array]]:
    step = max(1, BLOCK // max(1, x.shape[1] * x.dtype.itemsize))
    for i in range(0, len(x), step):
        yield x[i : i + step], y[i : i + step]


def _equal_after_cast(x: Array, y: Array, dx: DType, dy: DType) -> bool:
    """Whether the one is the other, rounded; to whichever of the two dtypes makes them so."""
    return any(
        all(_rounds_to(p, q, dp, dq) for p, q in _blocks(a, b)) for a, b, dp, dq in ((x, y, dx, dy), (y, x, dy, dx))
    )


def _rounds_to(x: Array, y: Array, dx: DType, dy: DType) -> bool:
    numbers = decode(np.ascontiguousarray(x), dx)
    cast = encode(numbers, dy)
    if cast is None:  # no rounding is known to this dtype: only its own numbers, widened, can be told
        return bool(np.array_equal(numbers, decode(np.ascontiguousarray(y), dy), equal_nan=True))
    bits = f"u{cast.dtype.itemsize}"
    other = np.ascontiguousarray(y)
    if np.array_equal(cast.view(bits), other.view(bits)):
        return True
    # NaN has many patterns of bits, and writers choose one.
    return bool(np.isnan(numbers).any()) and bool(np.array_equal(decode(cast, dy), decode(other, dy), equal_nan=True))


def _same_numbers(x: Array, y: Array, dx: DType, dy: DType) -> bool:
    return dx == dy and all(
        np.array_equal(decode(np.ascontiguousarray(p), dx), decode(np.ascontiguousarray(q), dy), equal_nan=True)
        for p, q in _blocks(x, y)
    )


@np.errstate(invalid="ignore", over="ignore")  # NaN and infinities are someone's values too
def gap_of(x: Array, y: Array, dx: DType, dy: DType) -> Gap | None:
    """How far apart two matrices of one shape are, over rows spread evenly; None where they are no floats."""
    if dx.kind != "float" or dy.kind != "float" or not x.size:
        return None
    largest, apart, size, differing, seen = 0.0, 0.0, 0.0, 0, 0
    for start, stop in _sampled(x):
        p = decode(np.ascontiguousarray(x[start:stop]), dx).astype(np.float64)
        q = decode(np.ascontiguousarray(y[start:stop]), dy)
        difference = np.abs(p - q)
        largest = max(largest, float(np.max(np.nan_to_num(difference, posinf=np.inf))))
        apart += float(np.nansum(difference**2))
        size += float(np.nansum(p**2))
        differing += int(np.count_nonzero(np.any((p != q) & ~(np.isnan(p) & np.isnan(q)), axis=1)))
        seen += stop - start
    distance = float(np.sqrt(apart / size)) if size and np.isfinite(apart) else (float("inf") if apart else 0.0)
    return Gap(largest, distance, differing, seen, len(x))


@np.errstate(invalid="ignore", over="ignore")
def std_of(entry: Entry) -> float | None:
    """Root mean square of rows spread evenly; None without values that can be decoded."""
    if entry.source is None or entry.dtype is None or entry.dtype.kind != "float" or not entry.elements:
        return None
    x = entry.values()
    x = x if x.ndim == 2 else x.reshape(1, -1)
    total, count = 0.0, 0
    for start, stop in _sampled(x):
        p = decode(np.ascontiguousarray(x[start:stop]), entry.dtype).astype(np.float64)
        total, count = total + float(np.sum(p**2)), count + p.size
    return float(np.sqrt(total / count))


def _sampled(x: Array) -> Iterator[tuple[int, int]]:
    """Ranges of rows: all of a small matrix, else blocks at even distances, the first row among them."""
    row = max(1, x.shape[1] * x.dtype.itemsize)
    step = max(1, SAMPLE_BYTES // row)
    starts = range(0, len(x), step)
    if len(starts) > SAMPLE_BLOCKS:
        starts = range(0, len(x), len(x) // SAMPLE_BLOCKS)
    for start in starts:
        yield start, min(start + step, len(x))
