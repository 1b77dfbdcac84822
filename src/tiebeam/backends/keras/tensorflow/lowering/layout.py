"""Operations that arrange the same elements anew."""

from collections.abc import Callable
from typing import Any

from tiebeam.backends.graphs.axes import identity, regrouped, with_new, without
from tiebeam.backends.graphs.rules import columns, spread_from_one
from tiebeam.backends.keras.tensorflow.lowering.axes import broadcast
from tiebeam.backends.keras.tensorflow.lowering.lower import Lowering, Step
from tiebeam.ir import Axes, Op

Rule = Callable[[Lowering, Step], Any]


def _reshape(low: Lowering, at: Step) -> None:
    if not spread_from_one(low, at):
        low.emit(at, Op.LAYOUT, at.inputs[:1], [regrouped(low.shape(at.inputs[0]), low.shape(at.outputs[0]))])


def _broadcast(low: Lowering, at: Step) -> None:
    if not spread_from_one(low, at):
        out = low.shape(at.outputs[0])
        low.emit(at, Op.LAYOUT, at.inputs[:1], [broadcast(low.shape(at.inputs[0]), out) or (-1,) * len(out)])


def _fill(low: Lowering, at: Step) -> None:
    low.emit(at, Op.LAYOUT, [at.inputs[1]], [(-1,) * low.rank(at.outputs[0])])


def _like(number: float) -> Rule:
    def rule(low: Lowering, at: Step) -> None:
        low.drafts[at.outputs[0]].given = low.drafts[at.outputs[0]].random = False
        one = low.number(number, low.drafts[at.outputs[0]].dtype)
        low.emit(at, Op.LAYOUT, [one], [(-1,) * low.rank(at.outputs[0])])

    return rule


def _transpose(low: Lowering, at: Step) -> None:
    order = low.integers(at.inputs[1])
    if order is None:
        low.opaque(at)
    else:
        low.emit(at, Op.LAYOUT, at.inputs[:1], [tuple(order)])


def _expand(low: Lowering, at: Step) -> None:
    new, rank = low.integers(at.inputs[1]), low.rank(at.outputs[0])
    if new is None:
        low.opaque(at)
    elif not spread_from_one(low, at):
        low.emit(at, Op.LAYOUT, at.inputs[:1], [with_new(rank, new[0] % rank)])


def _squeeze(low: Lowering, at: Step) -> None:
    shape = low.shape(at.inputs[0])
    gone = at.attr("squeeze_dims") or [i for i, n in enumerate(shape) if n == 1]
    low.emit(at, Op.LAYOUT, at.inputs, [without(len(shape), gone)])


def _parts(operand: int) -> Rule:
    """All outputs are pieces of one operand."""

    def rule(low: Lowering, at: Step) -> None:
        for out in at.outputs:
            low.emit(at, Op.LAYOUT, [at.inputs[operand]], [identity(low.rank(out))], [out])

    return rule


def _unpack(low: Lowering, at: Step) -> None:
    rank = low.rank(at.inputs[0])
    for out in at.outputs:
        low.emit(at, Op.LAYOUT, at.inputs, [without(rank, [at.attr("axis")])], [out])


def _pack(low: Lowering, at: Step) -> None:
    rank = low.rank(at.outputs[0])
    new = at.attr("axis") % rank
    low.emit(at, Op.CONCAT, at.inputs, [with_new(rank, new)] * len(at.inputs), axis=new)


def _concat(low: Lowering, at: Step) -> None:
    first = at.name == "Concat"
    parts, where = (at.inputs[1:], at.inputs[0]) if first else (at.inputs[:-1], at.inputs[-1])
    rank, axis = low.rank(at.outputs[0]), low.integers(where)
    if axis is None:
        low.opaque(at)
    else:
        low.emit(at, Op.CONCAT, parts, [identity(rank)] * len(parts), axis=axis[0] % rank)


def _tile(low: Lowering, at: Step) -> None:
    if spread_from_one(low, at):
        return
    times = low.integers(at.inputs[1])
    if times is None:
        low.opaque(at)
    else:
        low.emit(at, Op.LAYOUT, at.inputs[:1], [tuple(i if n == 1 else -1 for i, n in enumerate(times))])


def _strided(low: Lowering, at: Step) -> None:
    """Pieces of axes, with axes taken away or put in; one row at a place that is no constant is a gather."""
    operand, begin = at.inputs[:2]
    places = strided(at, low.rank(operand), low.shape(begin)[0] if low.rank(begin) else None)
    if places is None or len(places[0]) != low.rank(at.outputs[0]):
        low.opaque(at)
        return
    axes, picked = places
    parts = columns(low, begin)
    moving = [(i, d) for i, d in picked if low.drafts[parts[i] if parts else begin].varying]
    if len(moving) == 1:
        i, axis = moving[0]
        low.emit(at, Op.GATHER, [operand, parts[i] if parts else begin], [axes, None], axis=axis)
    elif not spread_from_one(low, at):
        low.emit(at, Op.LAYOUT, [operand], [axes])


def strided(at: Step, rank: int, count: int | None) -> tuple[Axes, list[tuple[int, int]]] | None:
    """Which axis of the operand each axis of a strided slice is; and (entry, axis) where one place is picked.

    Args:
        count: Entries of the index.
    """
    if count is None:
        return None
    bits = {name: at.attr(f"{name}_mask") for name in ("ellipsis", "new_axis", "shrink_axis")}
    used = sum(not (bits["new_axis"] >> i & 1 or bits["ellipsis"] >> i & 1) for i in range(count))
    axes, picked, source = list[int](), list[tuple[int, int]](), 0
    for i in range(count):
        if bits["ellipsis"] >> i & 1:
            axes += range(source, source + rank - used)
            source += rank - used
        elif bits["new_axis"] >> i & 1:
            axes.append(-1)
        elif bits["shrink_axis"] >> i & 1:
            picked.append((i, source))
            source += 1
        else:
            axes.append(source)
            source += 1
    return (*axes, *range(source, rank)), picked


def _padded(low: Lowering, at: Step) -> None:
    low.emit(at, Op.MASK, at.inputs[:1], [identity(low.rank(at.outputs[0]))])


def _from_ragged(low: Lowering, at: Step) -> None:
    """Rows of different lengths, filled up: where an element went only the lengths tell."""
    low.emit(at, Op.LAYOUT, [at.inputs[1]], [None])


RULES: dict[str, Rule] = {
    "RaggedTensorToTensor": _from_ragged,
    "Reshape": _reshape,
    "BroadcastTo": _broadcast,
    "Fill": _fill,
    "ZerosLike": _like(0.0),
    "OnesLike": _like(1.0),
    **dict.fromkeys(("Transpose", "ConjugateTranspose"), _transpose),
    "ExpandDims": _expand,
    "Squeeze": _squeeze,
    **dict.fromkeys(("Reverse", "ReverseV2", "ReverseSequence", "Roll", "SplitV"), _parts(0)),
    "Split": _parts(1),
    "Unpack": _unpack,
    "Pack": _pack,
    **dict.fromkeys(("Concat", "ConcatV2"), _concat),
    "Tile": _tile,
    "StridedSlice": _strided,
    **dict.fromkeys(("Pad", "PadV2", "MirrorPad", "XlaPad"), _padded),
}
