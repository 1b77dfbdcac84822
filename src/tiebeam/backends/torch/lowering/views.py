"""Which axis of the source each axis of a view is, read off the strides: no view operation needs a rule."""

from functools import lru_cache

from tiebeam.backends.torch.recording.ledger import Geometry
from tiebeam.ir import Axes

Steps = list[tuple[int, int, int]]  # (stride, size, axis), the longest stride first


def identity(rank: int) -> Axes:
    """Every axis stays where it is."""
    return tuple(range(rank))


@lru_cache(maxsize=1 << 12)  # the layers of a model repeat each other's views
def view_axes(source: Geometry, out: Geometry) -> Axes:
    """For each axis of `out` the axis of `source` it is, or is a part of; -1 where it is nobody's.

    Both describe the same memory. A view of all elements permutes, splits and merges axes: the parts of a split
    axis are both it, and a merged axis counts as the outermost of its parts. A view of some elements is a
    slice: an axis is the one that steps alike.
    """
    _, shape, stride, _ = source
    _, out_shape, out_stride, _ = out
    if shape == out_shape and stride == out_stride:
        return identity(len(shape))
    axes = [-1] * len(out_shape)
    if not all(type(n) is int for n in (*shape, *stride, *out_shape, *out_stride)):
        return tuple(axes)  # of nested tensors: sizes that do not even compare
    before, after = _steps(shape, stride), _steps(out_shape, out_stride)
    if before is None or after is None or not _regroup(before, after, axes):
        _slice(source, out, axes)
    _units(shape, out_shape, axes)
    return tuple(axes)


def _steps(shape: tuple[int, ...], stride: tuple[int, ...]) -> Steps | None:
    """Axes longer than one, outermost first; None where elements share memory or are missing."""
    if 0 in shape:
        return None
    steps = sorted(((s, n, i) for i, (n, s) in enumerate(zip(shape, stride, strict=True)) if n != 1), reverse=True)
    return None if any(s == 0 for s, _, _ in steps) else steps


def _regroup(before: Steps, after: Steps, axes: list[int]) -> bool:
    """Match groups of axes that cover the same stretch of memory; False where they do not all match."""
    i = j = 0
    found: dict[int, int] = {}
    while i < len(before) and j < len(after):
        left, right = [before[i]], [after[j]]
        i, j = i + 1, j + 1
        # Grow whichever side still ends at a longer stride until both stretches are the same.
        while (left[-1][0], _extent(left)) != (right[-1][0], _extent(right)):
            if left[-1][0] > right[-1][0] and i < len(before):
                left.append(before[i])
                i += 1
            elif right[-1][0] > left[-1][0] and j < len(after):
                right.append(after[j])
                j += 1
            else:
                return False
        if len(left) > 1 and len(right) > 1:
            continue  # cut across: nobody's
        for _, _, axis in right:
            found[axis] = left[0][2]
    if i < len(before) or j < len(after):
        return False
    for axis, origin in found.items():
        axes[axis] = origin
    return True


def _extent(steps: Steps) -> int:
    return steps[0][0] * steps[0][1]


def _slice(source: Geometry, out: Geometry, axes: list[int]) -> None:
    _, shape, stride, _ = source
    _, out_shape, out_stride, _ = out
    taken: set[int] = set()
    for k, (n, s) in enumerate(zip(out_shape, out_stride, strict=True)):
        if n == 1 or s == 0:
            continue
        for j, (m, t) in enumerate(zip(shape, stride, strict=True)):
            if j not in taken and t == s and n <= m:
                axes[k] = j
                taken.add(j)
                break


def _units(shape: tuple[int, ...], out_shape: tuple[int, ...], axes: list[int]) -> None:
    """Axes of size one have no stride that tells: give them out in order."""
    free = [j for j, n in enumerate(shape) if n == 1]
    places = [k for k, n in enumerate(out_shape) if n == 1]
    if len(free) != len(places):  # some were added or dropped: keep those that stand at either end
        free = free[: len(places)]
    for k, j in zip(places, free, strict=False):
        axes[k] = j
