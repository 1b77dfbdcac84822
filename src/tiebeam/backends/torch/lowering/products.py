"""Products: which axes are summed, and what is added to them or multiplied with."""

import math
from typing import Any

from tiebeam.backends.torch.lowering.barriers import opaque
from tiebeam.backends.torch.lowering.builder import Lowering
from tiebeam.backends.torch.lowering.views import identity
from tiebeam.backends.torch.recording.record import Record, Ref
from tiebeam.ir import Axes, Op


def _dot(low: Lowering, a: Any, b: Any, out: int) -> int:
    """Matrix product of the last two axes; leading axes are batch."""
    left, right = low.operand(a), low.operand(b)
    ra, rb, ro = (len(low.shape(v)) for v in (left[0], right[0], out))
    batch = ro - (ra > 1) - (rb > 1)
    axes_a = tuple(i - (batch - (ra - 2)) if ra > 2 and i >= batch - (ra - 2) else -1 for i in range(batch))
    axes_b = tuple(i - (batch - (rb - 2)) if rb > 2 and i >= batch - (rb - 2) else -1 for i in range(batch))
    axes_a += ((max(ra - 2, 0),) if ra > 1 else ()) + ((-1,) if rb > 1 else ())
    axes_b += ((-1,) if ra > 1 else ()) + ((rb - 1,) if rb > 1 else ())
    # With one element that no input reaches the sum has one term: a multiplication, however it is written.
    one = any(math.prod(low.shape(v)) == 1 and not low.drafts[v].varying for v in (left[0], right[0]))
    return low.emit(Op.MUL if one else Op.DOT, [left, right], [axes_a, axes_b], [out])


def product(low: Lowering, record: Record) -> None:
    """Of two arrays."""
    _dot(low, record.args[0], record.args[1], record.outputs[0])


def add_product(low: Lowering, record: Record) -> None:
    """`addmm` and its kind: `beta * bias + alpha * product`."""
    bias, a, b = record.args[:3]
    beta = record.args[3] if len(record.args) > 3 else record.kwargs.get("beta", 1)
    alpha = record.args[4] if len(record.args) > 4 else record.kwargs.get("alpha", 1)
    out = record.outputs[0]
    if beta == 0 and alpha == 1:
        _dot(low, a, b, out)
        return
    product = low.temporary(low.shape(out), out)
    _dot(low, a, b, product)
    attached = any(r.attached for r in (a, b))
    scaled: Any = (product, attached)
    if alpha != 1:
        scaled = (low.temporary(low.shape(out), out), attached)
        low.elementwise(Op.MUL, [(product, attached), alpha], scaled[0])
    if beta == 0:
        low.elementwise(Op.CAST, [scaled])
    else:
        low.elementwise(Op.ADD, [scaled, low.scaled(bias, beta)])


def linear(low: Lowering, record: Record) -> None:
    """A product with a matrix that lies `(outputs, inputs)`, and a bias."""
    x, weight = record.args[:2]
    bias = record.args[2] if len(record.args) > 2 else None
    out = record.outputs[0]
    rank = len(low.shape(out))
    axes = [(*range(rank - 1), -1), (*(-1,) * (rank - 1), 0)]
    if not isinstance(bias, Ref):
        low.emit(Op.DOT, [x, weight], axes, [out])
        return
    product = low.temporary(low.shape(out), out)
    low.emit(Op.DOT, [x, weight], axes, [product])
    low.elementwise(Op.ADD, [(product, x.attached or weight.attached), bias])


def convolution(low: Lowering, record: Record) -> None:
    """A convolution whose kernel is one point is a product over channels."""
    x, kernel, bias, stride = record.args[:4]
    transposed, groups = record.args[6], record.args[8]
    shape, out = low.shape(kernel.value), record.outputs[0]
    if set(shape[2:]) != {1} or set(stride) != {1} or transposed or groups != 1:
        opaque(low, record)
        return
    space = tuple(range(2, len(shape)))
    axes: list[Axes] = [(0, -1, *space), (-1, 0, *(-1,) * len(space))]
    product = low.temporary(low.shape(out), out) if isinstance(bias, Ref) else out
    low.emit(Op.DOT, [x, kernel], axes, [product])
    if isinstance(bias, Ref):
        along = (-1, 0, *(-1,) * len(space))
        low.emit(Op.ADD, [(product, x.attached or kernel.attached), bias], [identity(len(shape)), along], [out])
