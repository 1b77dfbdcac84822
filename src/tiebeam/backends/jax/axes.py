"""Which axis of the operand each axis of the output is, for operations that do not say so themselves."""

from collections.abc import Sequence
from math import prod

from tiebeam.ir import Axes

Shape = tuple[int, ...]


def identity(rank: int) -> Axes:
    """Every axis stays where it is."""
    return tuple(range(rank))


def broadcast(shape: Shape, out: Shape) -> Axes | None:
    """Axes of operands of one rank; one of size 1 that is stretched carries nothing. A scalar carries none at all."""
    if not shape and out:
        return None
    return tuple(i if n == m else -1 for i, (n, m) in enumerate(zip(shape, out, strict=True)))


def spread(shape: Shape, out: Shape, dimensions: Sequence[int]) -> Axes:
    """Axes behind `broadcast_in_dim`: operand axis `i` becomes `dimensions[i]`."""
    axes = [-1] * len(out)
    for i, d in enumerate(dimensions):
        if shape[i] == out[d]:
            axes[d] = i
    return tuple(axes)


def regrouped(shape: Shape, out: Shape) -> Axes:
    """Axes behind a reshape.

    Neighbouring axes that hold the same elements on both sides belong together: the parts of a split axis are both
    it, a merged axis counts as the outermost of its parts, axes that were cut across are nobody's.
    """
    axes = [-1] * len(out)
    long_in = [i for i, n in enumerate(shape) if n != 1]
    long_out = [i for i, n in enumerate(out) if n != 1]
    if prod(shape) and prod(shape) == prod(out):
        for left, right in _groups(shape, out, long_in, long_out):
            if len(left) == 1 or len(right) == 1:
                for k in right:
                    axes[k] = left[0]
    _units(shape, out, axes)
    return tuple(axes)


def _groups(shape: Shape, out: Shape, a: list[int], b: list[int]) -> list[tuple[list[int], list[int]]]:
    """The finest cut of both lists of axes into runs of equal size."""
    groups = []
    i = j = 0
    while i < len(a) and j < len(b):
        left, right = [a[i]], [b[j]]
        i, j = i + 1, j + 1
        n, m = shape[left[0]], out[right[0]]
        while n != m:
            if n < m:
                left.append(a[i])
                n *= shape[a[i]]
                i += 1
            else:
                right.append(b[j])
                m *= out[b[j]]
                j += 1
        groups.append((left, right))
    return groups


def _units(shape: Shape, out: Shape, axes: list[int]) -> None:
    """Axes of size one say nothing of themselves: give them out in order."""
    free = [j for j, n in enumerate(shape) if n == 1]
    places = [k for k, n in enumerate(out) if n == 1]
    for k, j in zip(places, free, strict=False):
        axes[k] = j
