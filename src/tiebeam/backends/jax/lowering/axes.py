"""Which axis of the operand each axis of the output is, where a primitive's own parameters are about axes."""

from collections.abc import Sequence

from tiebeam.backends.graphs.axes import Shape
from tiebeam.ir import Axes


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
