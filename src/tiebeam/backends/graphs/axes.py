"""Which axis of the operand each axis of the output is, for operations that state shapes and not axes."""

from collections.abc import Sequence
from math import prod

from tiebeam.ir import Axes

Shape = tuple[int, ...]


def identity(rank: int) -> Axes:
    """Every axis stays where it is."""
    return tuple(range(rank))


def without(rank: int, gone: Sequence[int]) -> Axes:
    """The axes that are left.

    Example:
        >>> without(3, [-1])
        (0, 1)
    """
    dropped = {d % rank for d in gone} if rank else set()
    return tuple(i for i in range(rank) if i not in dropped)


def with_new(rank: int, new: int) -> Axes:
    """Axes behind a new one at `new`, of an output of `rank` axes.

    Example:
        >>> with_new(3, 1)
        (0, -1, 1)
    """
    return tuple(i if i < new else i - 1 if i > new else -1 for i in range(rank))


def regrouped(shape: Shape, out: Shape) -> Axes:
    """Axes behind a reshape.

    Neighbouring axes that hold the same elements on both sides belong together: the parts of a split axis are both
    it, a merged axis counts as the outermost of its parts, axes that were cut across are nobody's.

    Example:
        >>> regrouped((2, 3, 20), (6, 4, 5))
        (0, 2, 2)
    """
    axes = [-1] * len(out)
    long_in = [i for i, n in enumerate(shape) if n != 1]
    long_out = [i for i, n in enumerate(out) if n != 1]
    if prod(shape) and prod(shape) == prod(out):
        for left, right in _groups(shape, out, long_in, long_out):
            if len(left) == 1 or len(right) == 1:
                for k in right:
                    axes[k] = left[0]
    free = [j for j, n in enumerate(shape) if n == 1]
    places = [k for k, n in enumerate(out) if n == 1]
    for k, j in zip(places, free, strict=False):  # axes of size one say nothing of themselves: give them out in order
        axes[k] = j
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
