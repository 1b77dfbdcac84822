"""Which axis of the operand each axis of the output is: TensorFlow's operations state shapes, not axes."""

from collections.abc import Sequence
from math import prod

from tiebeam.ir import Axes

Shape = tuple[int, ...]


def identity(rank: int) -> Axes:
    """Every axis stays where it is."""
    return tuple(range(rank))


def broadcast(shape: Shape, out: Shape) -> Axes | None:
    """Axes of an operand that is aligned at the right; one of size 1 that is stretched carries nothing.

    A scalar carries none at all.
    """
    if not shape and out:
        return None
    new = len(out) - len(shape)
    return tuple(i - new if i >= new and shape[i - new] == n else -1 for i, n in enumerate(out))


def without(rank: int, gone: Sequence[int]) -> Axes:
    """The axes that are left."""
    dropped = {d % rank for d in gone} if rank else set()
    return tuple(i for i in range(rank) if i not in dropped)


def with_new(rank: int, new: int) -> Axes:
    """Axes behind a new one at `new`, of an output of `rank` axes."""
    return tuple(i if i < new else i - 1 if i > new else -1 for i in range(rank))


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


def einsum(equation: str, ranks: Sequence[int]) -> list[Axes] | None:
    """For each operand the axis that each axis of the result is; None where a letter stands twice in one operand.

    Example:
        >>> einsum("...d,vd->...v", (3, 2))
        [(0, 1, -1), (-1, -1, 0)]
    """
    left, _, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    hidden = [n - len(t.replace("...", "")) if "..." in t else 0 for t, n in zip(terms, ranks, strict=True)]
    # The axes behind an ellipsis are aligned at the right: give each its own capital letter that no term uses.
    free = [chr(0x100 + i) for i in range(max(hidden, default=0))]
    spelled = [t.replace("...", "".join(free[len(free) - n :])) for t, n in zip(terms, hidden, strict=True)]
    result = right.replace("...", "".join(free))
    if any(len(set(t)) != len(t) for t in [*spelled, result]):
        return None
    return [tuple(t.find(c) for c in result) for t in spelled]
