"""Branches and loops: their values are their own, what is inside is followed through the copies beside them."""

from collections.abc import Sequence

from tiebeam.backends.graphs.axes import identity
from tiebeam.backends.graphs.loops import UNKNOWN_POWER, rescaled, shifted
from tiebeam.backends.keras.tensorflow.lowering.lower import Lowering, Step
from tiebeam.ir import Op, Origin


def branches(low: Lowering, at: Step) -> None:
    """The branch that is taken, where that is known; else all of them, side by side."""
    results = low.results(at)
    taken = low.drafts[at.inputs[0]].number
    if taken is not None:
        first_is_else = at.name.endswith("Case")
        index = int(taken) if first_is_else else int(not taken)
        results = [results[min(max(index, 0), len(results) - 1)]]
    for out, several in zip(at.outputs, zip(*results, strict=True), strict=True):
        if out < 0 or min(several) < 0:
            continue
        if len(set(several)) == 1:
            low.alias(at, out, several[0])
        else:
            _reached(low, out, [*several, at.inputs[0]])
            low.emit(at, Op.CONCAT, several, [identity(low.rank(out))] * len(several), [out], label="cond")


def loop(low: Lowering, at: Step) -> None:
    """One round of the body."""
    results = low.results(at)[0]
    handed = shifted(low, at.inputs, results)
    moving = {*handed} | {v for v in results if v >= 0 and rescaled(low, v, at.inputs, results)}
    if not moving:
        low.notes["of a while loop one round was followed"] = None
    for place, (out, v) in enumerate(zip(at.outputs, results, strict=True)):
        if out < 0:
            low.handles[at.operation.outputs[place].name] = at.operation.inputs[place].name
        elif v < 0:
            low.emit(at, Op.OPAQUE, [at.inputs[place]], [None], [out])
        elif v in moving:
            v = handed.get(v, v)  # of what came in elsewhere, what the round before made of it
            # The number of rounds is an exponent, and it is not known.
            power = low.add((), low.drafts[out].dtype, Origin.NODE, leafy=low.drafts[v].leafy)
            low.emit(at, Op.OPAQUE, [], [], [power], label=UNKNOWN_POWER)
            _stands_for(low, out, v)
            rank = low.rank(out)
            low.emit(at, Op.MUL, [v, power], [identity(rank), (-1,) * rank], [out])
        else:
            _stands_for(low, out, v)
            low.emit(at, Op.LAYOUT, [v], [identity(low.rank(out))], [out])


def _stands_for(low: Lowering, out: int, value: int) -> None:
    """A loop's result is what its body returns; a list has the shape of its elements stacked."""
    _reached(low, out, [value])
    if low.drafts[out].dtype == "variant":
        low.drafts[out].shape = low.shape(value)


def _reached(low: Lowering, out: int, sources: Sequence[int]) -> None:
    """What reached what a body returns reached the result."""
    draft = low.drafts[out]
    for v in sources:
        source = low.drafts[v]
        draft.given, draft.random = draft.given or source.given, draft.random or source.random
        draft.leafy |= source.leafy
