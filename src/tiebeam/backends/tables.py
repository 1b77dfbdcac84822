"""What a backend's figures about a table come to, whatever it measured them with."""

import math
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from tiebeam.core.statistics import Distance, TableStatistics
from tiebeam.ir import Leaf

ZERO_ROWS_LISTED = 8
Held = TypeVar("Held")


class AskedOnce(Generic[Held]):
    """`core.statistics.Weights` over what a trace holds, each table measured once.

    Args:
        held: Arrays, tensors or variables by `Leaf.key`.
        statistics: Measures one, given its vocabulary's axis.
        distance: Compares two, given `vocab_axis_a` and `vocab_axis_b`.
    """

    def __init__(
        self,
        held: Mapping[int, Held],
        statistics: Callable[[Held, int], TableStatistics],
        distance: Callable[..., Distance | None],
    ) -> None:
        self._held, self._statistics, self._distance = held, statistics, distance
        self._known: dict[tuple[int, int], TableStatistics] = {}

    def statistics(self, leaf: Leaf, vocab_axis: int) -> TableStatistics:
        key = (leaf.key, vocab_axis)
        if key not in self._known:
            self._known[key] = self._statistics(self._held[leaf.key], vocab_axis)
        return self._known[key]

    def distance(self, a: Leaf, axis_a: int, b: Leaf, axis_b: int) -> Distance | None:
        return self._distance(self._held[a.key], self._held[b.key], vocab_axis_a=axis_a, vocab_axis_b=axis_b)


def long_axes(shape: tuple[int, ...]) -> tuple[int, int]:
    """Where the two axes of a table stand that may be stored with axes of size one.

    Example:
        >>> long_axes((1, 50, 8)), long_axes((50, 1))
        ((1, 2), (0, 1))
    """
    if len(shape) == 2:
        return 0, 1
    long = [i for i, n in enumerate(shape) if n != 1]
    free = [i for i, n in enumerate(shape) if n == 1]
    while len(long) < 2:
        long = sorted([*long, free.pop()])
    return long[0], long[1]


def doubtful(norms: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Which row norms float32 may have let under- or overflow: those rows are measured again in float64."""
    return ~((norms > 1e-15) & (norms < 1e15))


def statistics_of(norms: npt.NDArray[np.float64], width: int, constant: Callable[[], bool]) -> TableStatistics:
    """The statistics of a table by its rows.

    Args:
        norms: `(vocab,)`, float64: the norm of each row.
        constant: Whether all entries are one number; asked where all are finite.

    Source: `std**2 = sum of squared norms / entries`.

    Example:
        >>> statistics_of(np.array([1.5, 0.0]), 9, lambda: False).zero_rows
        (1,)
    """
    if not np.isfinite(norms).all():
        return TableStatistics(finite=False, constant=False)
    zero = np.flatnonzero(norms == 0)
    kept = norms[norms > 0] if len(zero) else norms
    return TableStatistics(
        std=float(np.sqrt((norms**2).sum() / (len(norms) * width))),
        finite=True,
        spread=float(kept.std() / kept.mean()) * math.sqrt(2 * width) if len(kept) >= 2 else None,
        zero_rows=tuple(zero[:ZERO_ROWS_LISTED].tolist()),
        constant=constant(),
        zero_count=len(zero),
    )


def distance_of(apart: float, size_a: float, size_b: float, *, cast: bool, rows: int) -> Distance:
    """The distance of two tables.

    Args:
        apart: Sum of squares of their difference; `size_a`, `size_b`: of each.
        cast: Whether one equals the other bit for bit, after a cast to its dtype.
        rows: How many were compared.

    Example:
        >>> distance_of(2.0, 1.0, 1.0, cast=False, rows=5).relative
        1.4142135623730951
    """
    size = (size_a + size_b) / 2
    relative = math.sqrt(apart / size) if size else 0.0
    finite = math.isfinite(relative) and rows > 0
    # A narrow dtype may round small numbers to zero: that is no copy of a table of zeros.
    return Distance(relative if finite else None, cast and not (finite and relative >= 0.5), rows)
