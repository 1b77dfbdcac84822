"""Variables as states: what reads one, and what makes it another value for whatever comes after."""

from collections.abc import Callable
from typing import Any

from tiebeam.backends.graphs.axes import identity
from tiebeam.backends.keras.tensorflow.lowering.indexing import gather_at
from tiebeam.backends.keras.tensorflow.lowering.lower import Lowering, Step
from tiebeam.ir import Op

Rule = Callable[[Lowering, Step], Any]


def _state(low: Lowering, at: Step) -> int | None:
    """The value that the operation's variable has now."""
    return low.states.get(_handle(low, at))


def _handle(low: Lowering, at: Step) -> str:
    name: str = at.operation.inputs[0].name
    return low.handles.get(name, name)


def _read(low: Lowering, at: Step) -> None:
    """A read is the variable itself, not a copy of it."""
    state = _state(low, at)
    if state is None:
        low.opaque(at)
        return
    low.alias(at, at.outputs[0], state)
    if not low.drafts[state].tensor:
        low.drafts[state].tensor = at.operation.outputs[0].name


def _gather(low: Lowering, at: Step) -> None:
    state = _state(low, at)
    if state is None:
        low.opaque(at)
        return
    _derived(low, at, state)
    if at.name == "ResourceGatherNd":
        low.emit(at, Op.LAYOUT, [state, at.inputs[1]], [None, None])
    else:
        gather_at(low, at, state, at.inputs[1], at.attr("batch_dims"), at.attr("batch_dims"))


def _derived(low: Lowering, at: Step, state: int) -> None:
    """A handle is no value: what was read through it came from the variable all the same."""
    source = low.drafts[state]
    for out in at.outputs:
        draft = low.drafts[out]
        draft.given, draft.random = draft.given or source.given, draft.random or source.random
        draft.leafy |= source.leafy


def _assign(low: Lowering, at: Step) -> None:
    low.states[_handle(low, at)] = at.inputs[1]


def _assign_sum(op: Op) -> Rule:
    def rule(low: Lowering, at: Step) -> None:
        state = _state(low, at)
        if state is not None:
            draft = low.drafts[state]
            out = low.fresh(draft.shape, draft.dtype, [state, at.inputs[1]])
            low.states[_handle(low, at)] = low.elementwise(at, op, [state, at.inputs[1]], out)

    return rule


def _scatter(low: Lowering, at: Step) -> None:
    state = _state(low, at)
    if state is None:
        return
    values = [v for v in at.inputs[1:] if v >= 0]
    draft = low.drafts[state]
    out = low.fresh(draft.shape, draft.dtype, [state, *values])
    axes = [identity(len(draft.shape)), *[None] * len(values)]
    low.states[_handle(low, at)] = low.emit(at, Op.UPDATE, [state, *values[::-1]], axes, [out])


STATES: dict[str, Rule] = {
    "ReadVariableOp": _read,
    **dict.fromkeys(("ResourceGather", "ResourceGatherNd"), _gather),
    "AssignVariableOp": _assign,
    "AssignAddVariableOp": _assign_sum(Op.ADD),
    "AssignSubVariableOp": _assign_sum(Op.SUB),
    **dict.fromkeys(
        "ResourceScatterUpdate ResourceScatterAdd ResourceScatterSub ResourceScatterNdUpdate ResourceScatterNdAdd "
        "ResourceStridedSliceAssign".split(),
        _scatter,
    ),
}
