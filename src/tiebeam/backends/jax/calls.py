"""Primitives that run other jaxprs: each is opened where it stands."""

from collections.abc import Callable, Sequence
from typing import Any

from tiebeam.backends.jax.axes import identity
from tiebeam.backends.jax.lower import Equation, Frame, Lowering
from tiebeam.ir import Op

Call = Callable[[Lowering, Equation, Any, Frame, int, str], Sequence[int]]

_BODIES = ("jaxpr", "call_jaxpr", "fun_jaxpr")
_KEEP = (Op.LAYOUT, Op.CAST, Op.DROPOUT, Op.MASK)
_SCALES = (Op.MUL, Op.DIV, Op.ADD, Op.SUB)
DEPTH = 32  # operations of a loop's body looked at behind its carry


def opened(low: Lowering, jaxpr: Any, args: Sequence[int], stack: str) -> Frame:
    """Lower a jaxpr, closed or not."""
    consts = [low.constant(c) for c in getattr(jaxpr, "consts", ())]
    return low.enter(getattr(jaxpr, "jaxpr", jaxpr), consts, args, stack)


def _inline(low: Lowering, at: Equation, eqn: Any, frame: Frame, position: int, stack: str) -> Sequence[int]:
    body = next(at.params[k] for k in _BODIES if k in at.params)
    inner = frame.inside[position] = opened(low, body, at.inputs, stack)
    return low.results(inner)


def _shard_map(low: Lowering, at: Equation, eqn: Any, frame: Frame, position: int, stack: str) -> Sequence[int]:
    """What a device holds of an array has the array's axes, shorter."""
    body = at.params["jaxpr"]
    args = [_resized(low, at, v, var.aval) for v, var in zip(at.inputs, body.invars, strict=True)]
    inner = frame.inside[position] = opened(low, body, args, stack)
    return [_resized(low, at, v, var.aval) for v, var in zip(low.results(inner), eqn.outvars, strict=True)]


def _resized(low: Lowering, at: Equation, value: int, aval: Any) -> int:
    if low.shape(value) == tuple(aval.shape):
        return value
    out = low.fresh(aval, [value])
    low.emit(at, Op.LAYOUT, [value], [identity(len(aval.shape))], [out])
    return out


def _scan(low: Lowering, at: Equation, eqn: Any, frame: Frame, position: int, stack: str) -> Sequence[int]:
    """One round of the body: slices of what is scanned over go in, what is stacked comes out."""
    body = at.params["jaxpr"]
    consts, carries = at.params["num_consts"], at.params["num_carry"]
    args = list(at.inputs[: consts + carries])
    for v, var in zip(at.inputs[consts + carries :], body.jaxpr.invars[consts + carries :], strict=True):
        out = low.fresh(var.aval, [v])
        low.emit(at, Op.LAYOUT, [v], [tuple(range(1, len(low.shape(v))))], [out])
        args.append(out)
    # The carry of a later round is no longer what came in: a value of its own keeps the two apart.
    inner = frame.inside[position] = opened(low, body, args, stack)
    results = low.results(inner)
    outs = [_carried(low, at, v, args[consts:], at.params["length"]) for v in results[:carries]]
    for v, var in zip(results[carries:], eqn.outvars[carries:], strict=True):
        out = low.fresh(var.aval, [v])
        low.emit(at, Op.LAYOUT, [v], [(-1, *range(len(low.shape(v))))], [out])
        outs.append(out)
    return outs


def _while(low: Lowering, at: Equation, eqn: Any, frame: Frame, position: int, stack: str) -> Sequence[int]:
    conditions, consts = at.params["cond_nconsts"], at.params["body_nconsts"]
    args = at.inputs[conditions:]
    low.notes["of a while loop one round was followed"] = None
    inner = opened(low, at.params["body_jaxpr"], args, stack)
    return [_carried(low, at, v, args[consts:], 0) for v in low.results(inner)]


def _carried(low: Lowering, at: Equation, value: int, carries: Sequence[int], length: int) -> int:
    """What a loop hands on. Where a round multiplies it by a constant, the number of rounds is an exponent."""
    out = low.fresh(_Aval(low, value), [value])
    if length != 1 and _rescaled(low, value, carries):
        low.notes[f"a {at.name} multiplies what it carries: its rounds are not followed"] = None
        low.emit(at, Op.OPAQUE, [value], [None], [out])
    else:
        low.emit(at, Op.LAYOUT, [value], [identity(len(low.shape(value)))], [out])
    return out


class _Aval:
    """Shape and dtype of a value."""

    def __init__(self, low: Lowering, value: int) -> None:
        self.shape, self.dtype = low.shape(value), low.drafts[value].dtype


def _rescaled(low: Lowering, value: int, carries: Sequence[int]) -> bool:
    """Whether the value is one of the carries, multiplied by or added to something constant."""
    scaled = False
    for _ in range(DEPTH):
        if value in carries:
            return scaled
        producer = low.drafts[value].producer
        if producer < 0:
            return False
        node = low.nodes[producer]
        moving = [v for v in node.inputs if low.drafts[v].varying]
        if node.op not in (*_KEEP, *_SCALES) or len(set(moving)) != 1:
            return False
        scaled |= node.op in _SCALES
        value = moving[0]
    return False


def _cond(low: Lowering, at: Equation, eqn: Any, frame: Frame, position: int, stack: str) -> Sequence[int]:
    """The branch that is taken, where that is known; else all of them, side by side."""
    branches, index = at.params["branches"], low.drafts[at.inputs[0]].number
    if index is not None:
        index = min(max(int(index), 0), len(branches) - 1)
        return low.results(opened(low, branches[index], at.inputs[1:], stack))
    results = [low.results(opened(low, b, at.inputs[1:], stack)) for b in branches]
    outs = []
    for several, var in zip(zip(*results, strict=True), eqn.outvars, strict=True):
        if len(set(several)) == 1:
            outs.append(several[0])
            continue
        out = low.fresh(var.aval, [*several, at.inputs[0]])
        low.emit(at, Op.CONCAT, several, [identity(len(var.aval.shape))] * len(several), [out], label="cond")
        outs.append(out)
    return outs


CALLS: dict[str, Call] = {
    **dict.fromkeys(
        "jit pjit closed_call core_call remat remat2 checkpoint custom_jvp_call custom_vjp_call "
        "custom_vjp_call_jaxpr named_call core_closed_call".split(),
        _inline,
    ),
    "shard_map": _shard_map,
    "scan": _scan,
    "while": _while,
    "cond": _cond,
}
