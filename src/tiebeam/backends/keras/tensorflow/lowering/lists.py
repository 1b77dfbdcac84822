"""Lists of tensors, as loops read and fill them: each is shown as its elements stacked."""

from collections.abc import Callable
from typing import Any

from tiebeam.backends.graphs.axes import identity
from tiebeam.backends.keras.tensorflow.lowering.lower import Lowering, Step
from tiebeam.ir import Op, Origin

Rule = Callable[[Lowering, Step], Any]


def _reserve(low: Lowering, at: Step) -> None:
    """Nothing yet, and room for so many."""
    count = low.integers(at.inputs[1])
    low.drafts[at.outputs[0]].origin = Origin.CONSTANT
    low.drafts[at.outputs[0]].shape = (count[0] if count else 0,)


def _same(low: Lowering, at: Step) -> None:
    """A stack of elements becomes a list, or a list such a stack."""
    stack, out = at.inputs[0], at.outputs[0]
    if low.drafts[out].dtype == "variant":
        low.drafts[out].shape = low.shape(stack)
    if low.rank(stack) == low.rank(out):
        low.emit(at, Op.LAYOUT, [stack], [identity(low.rank(out))])
    else:
        low.opaque(at)


def _element(low: Lowering, at: Step) -> None:
    rank = low.rank(at.inputs[0])
    if rank == low.rank(at.outputs[0]) + 1:
        low.emit(at, Op.LAYOUT, at.inputs[:1], [tuple(range(1, rank))])
    else:
        low.opaque(at)


def _put(low: Lowering, at: Step) -> None:
    """One more element beside those that were put there before; in the place of the only one that there is room for."""
    before, item, out = at.inputs[0], at.inputs[2], at.outputs[0]
    shape = (*low.shape(before)[:1], *low.shape(item)) if low.rank(before) else (0, *low.shape(item))
    low.drafts[out].shape = shape
    axes = (-1, *range(len(shape) - 1))
    if low.rank(before) == len(shape) and shape[0] != 1:
        low.emit(at, Op.CONCAT, [before, item], [identity(len(shape)), axes], axis=0)
    else:
        low.emit(at, Op.LAYOUT, [item], [axes])


LISTS: dict[str, Rule] = {
    "TensorListReserve": _reserve,
    "TensorListFromTensor": _same,
    "TensorListStack": _same,
    "TensorListGetItem": _element,
    "TensorListSetItem": _put,
}
