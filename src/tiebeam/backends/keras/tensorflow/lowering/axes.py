"""Which axis of the operand each axis of the output is: TensorFlow's operations state shapes, not axes."""

from collections.abc import Sequence

from tiebeam.backends.graphs.axes import Shape
from tiebeam.ir import Axes


def broadcast(shape: Shape, out: Shape) -> Axes | None:
    """Axes of an operand that is aligned at the right; one of size 1 that is stretched carries nothing.

    A scalar carries none at all.
    """
    if not shape and out:
        return None
    new = len(out) - len(shape)
    return tuple(i - new if i >= new and shape[i - new] == n else -1 for i, n in enumerate(out))


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
