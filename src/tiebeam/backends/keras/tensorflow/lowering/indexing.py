"""Reading at indices, and writing there."""

from collections.abc import Callable
from typing import Any

from tiebeam.backends.graphs.axes import identity, without
from tiebeam.backends.graphs.rules import columns
from tiebeam.backends.keras.tensorflow.lowering.lower import Lowering, Step
from tiebeam.ir import Axes, Op

Rule = Callable[[Lowering, Step], Any]


def _gather(low: Lowering, at: Step) -> None:
    axis = low.integers(at.inputs[2]) if len(at.inputs) > 2 else [0]
    if axis is None:
        low.opaque(at)
        return
    has_batch = at.name == "GatherV2"
    gather_at(low, at, at.inputs[0], at.inputs[1], axis[0], at.attr("batch_dims") if has_batch else 0)


def gather_at(low: Lowering, at: Step, operand: int, indices: int, axis: int, batch: int = 0) -> None:
    """The axes of the operand before `axis`, those of the indices behind its batch, and the operand's others."""
    rank, index_rank = low.rank(operand), low.rank(indices)
    axis, batch = axis % rank, batch % max(index_rank, 1) if batch < 0 else batch
    out = low.rank(at.outputs[0])
    new = index_rank - batch
    axes = (*range(axis), *(-1,) * new, *range(axis + 1, rank))
    index_axes = (*range(batch), *(-1,) * (axis - batch), *range(batch, index_rank), *(-1,) * (rank - axis - 1))
    if len(axes) != out:
        low.opaque(at)
        return
    if not low.drafts[indices].varying:  # always the same elements: a rearrangement
        low.emit(at, Op.LAYOUT, [operand, indices], [axes, None])
        return
    low.emit(at, Op.GATHER, [operand, indices], [axes, index_axes], axis=axis)


def _gather_nd(low: Lowering, at: Step) -> None:
    """Along the first axes, as many as an index has parts: one is a gather; of more, the one part that moves."""
    operand, indices = at.inputs
    parts = columns(low, indices)
    depth = low.shape(indices)[-1] if low.rank(indices) else 0
    batch = 0
    moving = [k for k in range(depth) if parts is None or low.drafts[parts[k]].varying]
    rank, out = low.rank(operand), low.rank(at.outputs[0])
    lead = low.rank(indices) - 1
    axes: Axes = (*(-1,) * lead, *range(depth + batch, rank))
    if len(moving) != 1 or len(axes) != out:
        low.emit(at, Op.LAYOUT, at.inputs, [axes if len(axes) == out else None, None])
        return
    index = indices if parts is None else parts[moving[0]]
    low.emit(at, Op.GATHER, [operand, index], [axes, (*range(lead), *(-1,) * (out - lead))], axis=moving[0])


def _one_hot(low: Lowering, at: Step) -> None:
    """A comparison of the indices with every row's number, then the two numbers in its place."""
    rank = low.rank(at.outputs[0])
    new = at.attr("axis") % rank
    axes = tuple(-1 if i == new else i - (i > new) for i in range(rank))
    draft = low.drafts[at.outputs[0]]
    here = low.fresh(draft.shape, "bool", at.inputs[:1])
    low.emit(at, Op.POINTWISE, at.inputs[:1], [axes], [here])
    on, off = (low.uniform(v) for v in at.inputs[2:4])
    if (on, off) == (1.0, 0.0):
        low.emit(at, Op.CAST, [here], [identity(rank)])
    else:
        low.emit(at, Op.POINTWISE, [here], [identity(rank)])


def _slice(low: Lowering, at: Step) -> None:
    """One row at a place that is no constant is a gather; a longer piece is a slice."""
    operand, starts = at.inputs[0], at.inputs[1]
    shape, out = low.shape(operand), low.shape(at.outputs[0])
    cut = [d for d in range(len(shape)) if out[d] != shape[d]]
    pieces = columns(low, starts)
    moving = [d for d in cut if low.drafts[pieces[d] if pieces else starts].varying]
    if len(moving) == 1 and out[moving[0]] == 1:
        axis = moving[0]
        axes = tuple(-1 if i == axis else i for i in range(len(shape)))
        low.emit(at, Op.GATHER, [operand, pieces[axis] if pieces else starts], [axes, None], axis=axis)
    else:
        low.emit(at, Op.LAYOUT, [operand], [identity(len(shape))])


def _update(low: Lowering, at: Step) -> None:
    """Some elements of operand 0 replaced by, or joined with, those of another."""
    operand = at.inputs[0]
    values = {"XlaDynamicUpdateSlice": 1, "TensorStridedSliceUpdate": 4}.get(at.name, 2)
    inputs = [operand, at.inputs[values], *(v for i, v in enumerate(at.inputs) if i not in (0, values) and v >= 0)]
    rank = low.rank(operand)
    same = at.name == "XlaDynamicUpdateSlice" and low.rank(inputs[1]) == rank
    axes: list[Axes | None] = [identity(rank), identity(rank) if same else None]
    low.emit(at, Op.UPDATE, inputs, [*axes, *[None] * (len(inputs) - 2)])


def _arg(low: Lowering, at: Step) -> None:
    """`argmax`: the axis is gone."""
    given, rank = low.integers(at.inputs[1]), low.rank(at.inputs[0])
    if given is None:
        low.opaque(at)
    else:
        low.emit(at, Op.REDUCE, at.inputs[:1], [without(rank, given)], degree=0.0)


INDEXING: dict[str, Rule] = {
    **dict.fromkeys(("Gather", "GatherV2"), _gather),
    "GatherNd": _gather_nd,
    "OneHot": _one_hot,
    **dict.fromkeys(("Slice", "XlaDynamicSlice"), _slice),
    **dict.fromkeys(("ArgMax", "ArgMin"), _arg),
    **dict.fromkeys(
        "TensorScatterUpdate TensorScatterAdd TensorScatterSub TensorScatterMax TensorScatterMin "
        "TensorStridedSliceUpdate XlaDynamicUpdateSlice".split(),
        _update,
    ),
}
