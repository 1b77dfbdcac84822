"""Primitives that run other jaxprs: each is opened where it stands."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tiebeam.backends.graphs.axes import identity
from tiebeam.backends.graphs.loops import UNKNOWN_POWER, rescaled, shifted
from tiebeam.backends.jax.lowering.lower import Equation, Frame, Lowering
from tiebeam.ir import Op, Origin

Call = Callable[[Lowering, Equation, Any, Frame, int, str], Sequence[int]]

_BODIES = ("jaxpr", "call_jaxpr", "fun_jaxpr", "call")
#: Run their body once, as it stands.
INLINE = (
    "jit pjit closed_call core_call call named_call core_closed_call remat remat2 remat_opt checkpoint composite "
    "custom_jvp_call custom_vjp_call custom_vjp_call_jaxpr custom_vmap_call"
).split()
ROUNDS = 64  # of a scan, where each counts


def opened(low: Lowering, jaxpr: Any, args: Sequence[int], stack: str) -> Frame:
    """Lower a jaxpr, closed or not."""
    consts = [low.constant(c) for c in getattr(jaxpr, "consts", ())]
    return low.enter(getattr(jaxpr, "jaxpr", jaxpr), consts, args, stack)


def body_of(params: Mapping[str, Any]) -> Any:
    """The jaxpr of a primitive in `INLINE`."""
    return next(params[k] for k in _BODIES if k in params)


def _inline(low: Lowering, at: Equation, eqn: Any, frame: Frame, position: int, stack: str) -> Sequence[int]:
    body = body_of(at.params)
    inner = opened(low, body, at.inputs, stack)
    frame.inside[position] = (inner,)
    return low.results(inner)


def _shard_map(low: Lowering, at: Equation, eqn: Any, frame: Frame, position: int, stack: str) -> Sequence[int]:
    """What a device holds of an array has the array's axes, shorter."""
    body, outside = at.params["jaxpr"], low.mesh
    args = [_resized(low, at, v, var.aval) for v, var in zip(at.inputs, body.invars, strict=True)]
    low.mesh = outside | dict(at.params["mesh"].shape)
    for v, axes in zip(args, _split(at.params, len(args)), strict=True):
        low.drafts[v].apart |= axes
    inner = opened(low, body, args, stack)
    low.mesh = outside
    frame.inside[position] = (inner,)
    return [_resized(low, at, v, var.aval) for v, var in zip(low.results(inner), eqn.outvars, strict=True)]


def _split(params: Mapping[str, Any], count: int) -> list[frozenset[str]]:
    """For each operand of a map over devices, the axes of the mesh that it is cut along."""
    sizes = params["mesh"].shape
    if "in_specs" not in params:  # older releases say it otherwise
        return [frozenset(a for a, n in sizes.items() if n > 1)] * count
    specs = [[part if isinstance(part, tuple) else (part,) for part in spec] for spec in params["in_specs"]]
    return [frozenset(a for part in spec for a in part if sizes.get(a, 1) > 1) for spec in specs]


def _resized(low: Lowering, at: Equation, value: int, aval: Any) -> int:
    if low.shape(value) == tuple(aval.shape):
        return value
    out = low.fresh(aval, [value])
    low.emit(at, Op.LAYOUT, [value], [identity(len(aval.shape))], [out])
    return out


def _scan(low: Lowering, at: Equation, eqn: Any, frame: Frame, position: int, stack: str) -> Sequence[int]:
    """One round of the body: slices of what is scanned over go in, what is stacked comes out.

    Where a round multiplies what it carries, the number of rounds is an exponent, and all of them are followed.
    """
    consts, carries, length = (at.params[k] for k in ("num_consts", "num_carry", "length"))
    body, fixed, start = at.params["jaxpr"].jaxpr, at.inputs[:consts], at.inputs[consts : consts + carries]
    first = len(low.drafts)
    state = _of_any_round(low, at, start, body.invars[consts : consts + carries], body.outvars[:carries], fixed)
    inner = _round(low, at, [*fixed, *state], stack)
    results = low.results(inner)
    inside: tuple[Frame, ...] = (inner,)
    made = [results[carries:]]
    moving = _moving(low, state, results[:carries], fixed)
    if not length:
        results = (*start, *results[carries:])
    elif moving and 1 < length <= ROUNDS:
        inside, results, made = (), start, []
        for _ in range(length):
            inside = (*inside, _round(low, at, [*fixed, *results[:carries]], stack))
            results = low.results(inside[-1])
            made.append(results[carries:])
    elif moving and length > 1:
        results = (*_unknown_power(low, at, results[:carries], moving), *results[carries:])
    frame.inside[position] = inside
    inside[0].first = first
    outs: list[int] = []
    for place, var in enumerate(eqn.outvars):
        rank = len(var.aval.shape)
        if place < carries:
            rounds, axes, facts = [results[place]], identity(rank), {}
        else:
            several = dict.fromkeys(one[place - carries] for one in made)
            rounds, axes, facts = [*several], (-1, *range(rank - 1)), {"axis": 0}
        out = low.fresh(var.aval, rounds)
        if len(rounds) == 1:
            outs.append(low.emit(at, Op.LAYOUT, rounds, [axes], [out]))
        else:
            outs.append(low.emit(at, Op.CONCAT, rounds, [axes] * len(rounds), [out], **facts))
    return outs


def _round(low: Lowering, at: Equation, args: Sequence[int], stack: str) -> Frame:
    """One round on consts and carries `args`, and a slice of each array that is scanned over."""
    body, own = at.params["jaxpr"], list(args)
    for v, var in zip(at.inputs[len(args) :], body.jaxpr.invars[len(args) :], strict=True):
        out = low.fresh(var.aval, [v])
        own.append(low.emit(at, Op.LAYOUT, [v], [tuple(range(1, low.rank(v)))], [out]))
    return opened(low, body, own, stack)


def _of_any_round(
    low: Lowering,
    at: Equation,
    start: Sequence[int],
    before: Sequence[Any],
    after: Sequence[Any],
    fixed: Sequence[int],
) -> list[int]:
    """What a loop carries, as any round may find it: a number that a round changes is no longer known.

    What starts as something that stays the same outside is told apart from it, and so are two that start alike.
    """
    state: list[int] = []
    for value, old, new in zip(start, before, after, strict=True):
        source = value
        if old is not new and low.drafts[value].concrete is not None:
            value = low.fresh(old.aval, [source])
            low.emit(at, Op.OPAQUE, [source], [None], [value], label=f"{at.name} counter")
        elif old is not new and (value in fixed or value in state or not low.drafts[value].given):
            value = low.fresh(old.aval, [source])
            low.emit(at, Op.CAST, [source], [identity(low.rank(source))], [value])
        state.append(value)
    return state


def _while(low: Lowering, at: Equation, eqn: Any, frame: Frame, position: int, stack: str) -> Sequence[int]:
    """One round of the body; where a round multiplies what it carries, all of them, if their number is known."""
    conditions, consts = at.params["cond_nconsts"], at.params["body_nconsts"]
    body, fixed = at.params["body_jaxpr"], at.inputs[conditions : conditions + consts]
    first = len(low.drafts)
    start = at.inputs[conditions + consts :]
    state = _of_any_round(low, at, start, body.jaxpr.invars[consts:], body.jaxpr.outvars, fixed)
    inside: tuple[Frame, ...] = (opened(low, body, [*fixed, *state], stack),)
    results: Sequence[int] = low.results(inside[0])
    moving = _moving(low, state, results, fixed)
    rounds = _rounds(low, at, start, stack) if moving else None
    if rounds is not None:
        inside, results = rounds[0] or inside, rounds[1]
    elif moving:
        results = _unknown_power(low, at, results, moving)
    else:
        low.notes["of a while loop one round was followed"] = None
    frame.inside[position] = inside
    inside[0].first = first
    outs = []
    for v, var in zip(results, eqn.outvars, strict=True):
        out = low.fresh(var.aval, [v])
        outs.append(low.emit(at, Op.LAYOUT, [v], [identity(len(var.aval.shape))], [out]))
    return outs


def _rounds(
    low: Lowering, at: Equation, start: Sequence[int], stack: str
) -> tuple[tuple[Frame, ...], Sequence[int]] | None:
    """All rounds of a while loop and what it ends with, where its condition is about numbers that are known."""
    conditions, consts = at.params["cond_nconsts"], at.params["body_nconsts"]
    questions, fixed = at.inputs[:conditions], at.inputs[conditions : conditions + consts]
    inside: tuple[Frame, ...] = ()
    while len(inside) <= ROUNDS:
        asked = opened(low, at.params["cond_jaxpr"], [*questions, *start], stack)
        goes_on = low.drafts[low.results(asked)[0]].number
        if goes_on is None:
            return None
        if not goes_on:
            return inside, start
        inside = (*inside, opened(low, at.params["body_jaxpr"], [*fixed, *start], stack))
        start = low.results(inside[-1])
    return None


def _moving(low: Lowering, state: Sequence[int], results: Sequence[int], fixed: Sequence[int]) -> dict[int, int]:
    """Results of a round that are another multiple of what came in, or came in elsewhere; and what they stand for."""
    scaled = {v: v for v in results if rescaled(low, v, state, results, fixed)}
    return scaled | shifted(low, state, results)


def _unknown_power(low: Lowering, at: Equation, results: Sequence[int], moving: Mapping[int, int]) -> list[int]:
    """What a loop ends with, where the number of rounds is an exponent that is not known, or is large."""
    ends = []
    for v in results:
        if v not in moving:
            ends.append(v)
            continue
        v = moving[v]
        draft = low.drafts[v]
        power = low.add((), draft.dtype, Origin.NODE, leafy=draft.leafy)
        low.emit(at, Op.OPAQUE, (), (), [power], label=UNKNOWN_POWER)
        out = low.add(draft.shape, draft.dtype, Origin.NODE, given=draft.given, random=draft.random, leafy=draft.leafy)
        axes = [identity(len(draft.shape)), (-1,) * len(draft.shape)]
        ends.append(low.emit(at, Op.MUL, [v, power], axes, [out]))
    return ends


def _cond(low: Lowering, at: Equation, eqn: Any, frame: Frame, position: int, stack: str) -> Sequence[int]:
    """The branch that is taken, where that is known; else all of them, side by side."""
    branches, index = at.params["branches"], low.drafts[at.inputs[0]].number
    if index is not None:
        branches = [branches[min(max(int(index), 0), len(branches) - 1)]]
    frame.inside[position] = tuple(opened(low, b, at.inputs[1:], stack) for b in branches)
    results = [low.results(f) for f in frame.inside[position]]
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
    **dict.fromkeys(INLINE, _inline),
    "shard_map": _shard_map,
    "scan": _scan,
    "while": _while,
    "cond": _cond,
}
