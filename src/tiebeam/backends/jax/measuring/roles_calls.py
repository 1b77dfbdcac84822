"""Primitives that run other jaxprs, run with parted values: the same transformation, of every kind that is used."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from tiebeam.backends.jax.lowering.calls import INLINE, body_of
from tiebeam.backends.jax.lowering.lower import Frame
from tiebeam.backends.jax.measuring.parted import KINDS, Parted, leaves_of, one_of
from tiebeam.backends.jax.measuring.roles import REMAT, Roles


def _inline(roles: Roles, eqn: Any, inner: Sequence[Frame], operands: Sequence[Any]) -> list[Any]:
    return roles.run(inner[0], getattr(body_of(eqn.params), "consts", ()), operands)


def _remat(roles: Roles, eqn: Any, inner: Sequence[Frame], operands: Sequence[Any]) -> list[Any]:
    """Activations are dropped and made again, as the program asks."""
    if roles.dry:
        return _inline(roles, eqn, inner, operands)
    consts = getattr(body_of(eqn.params), "consts", ())
    flat = roles.flat(inner[0], consts, operands)

    def body(given: Any) -> Any:
        return flat.handed_out(roles.inside(inner[0], consts, flat.again(given)))

    kept: dict[str, Any] = {k: eqn.params[k] for k in ("policy", "prevent_cse") if k in eqn.params}
    return flat.taken_in(jax.checkpoint(body, **kept)(flat.parts))


def _settled(
    roles: Roles, frame: Frame, consts: Sequence[Any], operands: Sequence[Any], carried: range
) -> tuple[Any, ...]:
    """Operands of a loop, of which those that it carries are parted where every round leaves them so."""
    settled = list(operands)
    while True:
        results = roles.results(frame, consts, settled)
        loose = [i for i in carried if isinstance(settled[i], Parted)]
        loose = [i for i in loose if not isinstance(results[i - carried.start], Parted)]
        if not loose:
            return tuple(settled)
        for i in loose:
            settled[i] = settled[i].get("other")


def _scan(roles: Roles, eqn: Any, inner: Sequence[Frame], operands: Sequence[Any]) -> list[Any]:
    """The same loop, of which every round is told the kinds apart."""
    own = eqn.params["jaxpr"].consts
    consts, carries, length, back = (eqn.params[k] for k in ("num_consts", "num_carry", "length", "reverse"))
    if len(inner) == length and length > 1:
        return _unrolled(roles, eqn, inner, operands)
    carried = range(consts, consts + carries)
    operands = _settled(roles, inner[0], own, operands, carried)
    if roles.dry:
        return roles.run(inner[0], own, operands)
    flat = roles.flat(inner[0], own, operands, whole=carried)
    flat.several[:carries] = [isinstance(operands[i], Parted) for i in carried]
    fixed, start, xs = (
        flat.parts[part] for part in (slice(consts), slice(consts, carried.stop), slice(carried.stop, None))
    )

    def body(state: Any, slices: Any) -> Any:
        out = flat.handed_out(roles.inside(inner[0], own, flat.again([*fixed, *state, *slices])))
        return out[:carries], out[carries:]

    last, stacked = jax.lax.scan(body, start, xs, length=length, reverse=back)
    return flat.taken_in([*last, *stacked])


def _unrolled(roles: Roles, eqn: Any, inner: Sequence[Frame], operands: Sequence[Any]) -> list[Any]:
    """A scan of which every round was followed by itself."""
    consts, carries, length = (eqn.params[k] for k in ("num_consts", "num_carry", "length"))
    state, made = list(operands[consts : consts + carries]), []
    back = eqn.params["reverse"]
    for number, frame in enumerate(inner):
        at = length - 1 - number if back else number
        slices = [roles.joint(lambda x, at=at: x[at], [x]) for x in operands[consts + carries :]]
        out = roles.run(frame, eqn.params["jaxpr"].consts, [*operands[:consts], *state, *slices])
        state = out[:carries]
        made.append(out[carries:])
    stacked = [roles.joint(lambda *ys: jnp.stack(ys), ys[::-1] if back else ys) for ys in zip(*made, strict=True)]
    return [*state, *stacked]


def _while(roles: Roles, eqn: Any, inner: Sequence[Frame], operands: Sequence[Any]) -> list[Any]:
    """The same loop; it has no backward pass, so this is for running forward."""
    conditions, consts = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
    asked, own = eqn.params["cond_jaxpr"], eqn.params["body_jaxpr"].consts
    questions, fixed = operands[:conditions], operands[conditions : conditions + consts]
    state = [one_of(v, "other") for v in operands[conditions + consts :]]
    if len(inner) > 1 or roles.dry:
        for frame in inner:
            state = roles.run(frame, own, [*fixed, *state])
        return state
    flat = roles.flat(inner[0], own, [*fixed, *state])
    flat.several = [False] * len(state)

    def step(carried: Any) -> Any:
        given = [*flat.parts[:consts], *([v] for v in carried)]
        return [out for [out] in flat.handed_out(roles.inside(inner[0], own, flat.again(given)))]

    def goes_on(carried: Any) -> Any:
        return jax.core.eval_jaxpr(asked.jaxpr, asked.consts, *(one_of(v, "other") for v in questions), *carried)[0]

    return list(jax.lax.while_loop(goes_on, step, state))


def _cond(roles: Roles, eqn: Any, inner: Sequence[Frame], operands: Sequence[Any]) -> list[Any]:
    index, *args = operands
    branches = eqn.params["branches"]
    if len(inner) == 1:
        return roles.run(inner[0], next(b.consts for b in branches if b.jaxpr is inner[0].jaxpr), args)
    pairs = list(zip(inner, (b.consts for b in branches), strict=True))
    tried = zip(*(roles.results(f, c, args) for f, c in pairs), strict=True)
    several = [all(isinstance(v, Parted) for v in vs) for vs in tried]
    if roles.dry:
        found = [roles.run(f, c, args) for f, c in pairs]
        for outs in found:
            for v, kept in zip(outs, several, strict=True):
                if not kept:
                    one_of(v, "other")
        return [_both(vs) if kept else None for vs, kept in zip(zip(*found, strict=True), several, strict=True)]
    flats = [roles.flat(f, c, args) for f, c in pairs]
    for flat in flats:
        flat.several = several

    def branch(number: int) -> Callable[..., Any]:
        (frame, consts), flat = pairs[number], flats[number]
        return lambda given: flat.handed_out(roles.inside(frame, consts, flat.again(given[number])))

    out = jax.lax.switch(one_of(index, "other"), [branch(i) for i in range(len(pairs))], [f.parts for f in flats])
    return flats[0].taken_in(out)


def _both(values: Sequence[Parted]) -> Parted:
    """What stands for a value of each branch while nothing is computed."""
    return Parted(leaves_of(values), lambda kind: [v.get(kind) for v in values])


def _shard_map(roles: Roles, eqn: Any, inner: Sequence[Frame], operands: Sequence[Any]) -> list[Any]:
    """The same map, of every kind's parts."""
    params = eqn.params
    if roles.dry:
        return roles.run(inner[0], (), operands)
    flat = roles.flat(inner[0], (), operands)
    axes = next(params[k] for k in ("newly_manual_axes", "manual_axes") if k in params)

    def body(given: Any) -> Any:
        return flat.handed_out(roles.inside(inner[0], (), flat.again(given)))

    into = [[spec] * len(part) for spec, part in zip(params["in_specs"], flat.parts, strict=True)]
    out = [[spec] * (len(KINDS) if n else 1) for spec, n in zip(params["out_specs"], flat.several, strict=True)]
    mapped = jax.shard_map(
        body, mesh=params["mesh"], in_specs=(into,), out_specs=out, axis_names=set(axes), check_vma=params["check_vma"]
    )
    return flat.taken_in(mapped(flat.parts))


OPENERS: dict[str, Callable[[Roles, Any, Sequence[Frame], Sequence[Any]], list[Any]]] = {
    **dict.fromkeys(INLINE, _inline),
    **dict.fromkeys(REMAT, _remat),
    "scan": _scan,
    "while": _while,
    "cond": _cond,
    "shard_map": _shard_map,
}
