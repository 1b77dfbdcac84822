"""Telling apart what each role sends to a table: its program runs with one table for each kind of use.

What is made of tables and numbers alone (a cast, a transposition, a slice) exists once for each kind, each made when
it is asked for. Where such a value meets something else, that is one use, and the kind of this use is taken. So each
use is counted in exactly one kind, and the gradients of the kinds add up to the gradient.

Nothing here knows where a program came from: a jaxpr, the frame that it was lowered to, and who reads what.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp

from tiebeam.backends.jax.calls import INLINE, body_of
from tiebeam.backends.jax.fold import bound
from tiebeam.backends.jax.lower import Frame, Path
from tiebeam.core.passes import Role, RoleRead
from tiebeam.core.provenance import INPUT, provenance
from tiebeam.ir import Graph

Kind = Role | Literal["other"]
KINDS: tuple[Kind, ...] = ("lookup", "readout", "other")
Place = tuple[int, int]

#: Have a derivative of their own, which is lost where their body is opened; or none.
CUSTOM = frozenset("custom_jvp_call custom_vjp_call custom_vjp_call_jaxpr custom_vmap_call while".split())
REMAT = frozenset("remat remat2 remat_opt checkpoint".split())
PLAIN = frozenset(INLINE) - CUSTOM - REMAT


@dataclass(frozen=True)
class Places:
    """Where a program reads its tables.

    Attributes:
        roles: By equation, in which role it reads which leaf; also of what happens inside of it.
        given: Values that an input of the model reached.
    """

    roles: Mapping[Place, Collection[tuple[Role, int]]]
    given: frozenset[int]

    @classmethod
    def of(cls, graph: Graph, reads: Iterable[RoleRead], paths: Sequence[Path]) -> "Places":
        """The places of `core.passes.wanted` in a lowered program.

        Args:
            graph: As it was lowered.
            paths: Of each node the equation, as `lower.Lowering.paths` has it.
        """
        flags = provenance(graph)
        roles: dict[Place, set[tuple[Role, int]]] = {}
        for read in reads:
            # A product that is written as multiply and sum is read where it multiplies.
            met = [i for i in read.chain if flags[graph.nodes[i].output] & INPUT]
            for place in {place for i in (read.node, *met) for place in paths[i]}:
                roles.setdefault(place, set()).add((read.role, read.leaf))
        return cls(roles, frozenset(v for v, f in enumerate(flags) if f & INPUT))


class Parted:
    """A value that is made of tables and numbers alone, once for each kind of use.

    Args:
        leaves: Keys of the tables.
        make: The value for a kind; asked once.
    """

    def __init__(self, leaves: frozenset[int], make: Callable[[Kind], Any]) -> None:
        self.leaves, self._make = leaves, make
        self._made: dict[Kind, Any] = {}

    def get(self, kind: Kind) -> Any:
        """The value for uses of a kind."""
        if kind not in self._made:
            self._made[kind] = self._make(kind)
        return self._made[kind]


def _one(value: Any, kind: Kind) -> Any:
    return value.get(kind) if isinstance(value, Parted) else value


def direct(frame: Frame) -> frozenset[int]:
    """Ids of the values that are made outside of all loops, branches and other transformations."""
    found = set(frame.ids.values())
    for position, inner in frame.inside.items():
        if frame.jaxpr.eqns[position].primitive.name in PLAIN:
            found |= direct(inner[0])
    return frozenset(found)


def _result(whole: Parted, number: int, kind: Kind) -> Any:
    return whole.get(kind)[number]


def _leaves(values: Iterable[Any]) -> frozenset[int]:
    return frozenset(key for v in values if isinstance(v, Parted) for key in v.leaves)


def _nothing(*_: Any) -> None:
    """What an operation comes to while nothing is computed."""


class Roles:
    """Runs a program whose tables are `Parted`.

    Args:
        places: Where roles read them.
        custom: Open operations that have a derivative of their own, which is then not used: for running forward.

    Attributes:
        joined: Names of operations that read one table in both roles at once; nobody sees inside.
        dry: Nothing is computed: what is asked for is listened to.
        seen: Called with each value that is made in a frame of `direct` and its id; what is parted is not shown.
    """

    def __init__(self, places: Places, *, custom: bool = False) -> None:
        self.places, self.custom = places, custom
        self.joined: dict[str, None] = {}
        self.dry = False
        self.seen: Callable[[int, Any], None] | None = None

    def used(self, frame: Frame, consts: Sequence[Any], args: Sequence[Any]) -> list[frozenset[Kind]]:
        """Which kinds of each argument a frame asks for; nothing is computed."""
        return self._tried(frame, consts, args)[0]

    def results(self, frame: Frame, consts: Sequence[Any], args: Sequence[Any]) -> list[Any]:
        """Which results of a frame are parted; nothing is computed."""
        return self._tried(frame, consts, args)[1]

    def run(self, frame: Frame, consts: Sequence[Any], args: Sequence[Any]) -> list[Any]:
        """The results of a frame, each an array or `Parted`."""
        jaxpr = frame.jaxpr
        values = dict(zip(jaxpr.constvars, consts, strict=True)) | dict(zip(jaxpr.invars, args, strict=True))

        def read(atom: Any) -> Any:
            return atom.val if hasattr(atom, "val") else values[atom]

        self._show(frame, values)
        for position, eqn in enumerate(jaxpr.eqns):
            operands = [read(a) for a in eqn.invars]
            if any(isinstance(v, Parted) for v in operands):
                several = self._parted(frame, position, eqn, operands)
            elif self.seen is not None and eqn.primitive.name in PLAIN and position in frame.inside:
                several = _inline(self, eqn, frame.inside[position], operands)
            else:
                several = self._applied(eqn, operands)
            made = dict(zip(eqn.outvars, several, strict=True))
            self._show(frame, made)
            values |= made
        return [read(v) for v in jaxpr.outvars]

    def inside(self, frame: Frame, consts: Sequence[Any], args: Sequence[Any]) -> list[Any]:
        """As `run`, in the body of a transformation: what is made there may not be shown outside."""
        before, self.seen = self.seen, None
        try:
            return self.run(frame, consts, args)
        finally:
            self.seen = before

    def _show(self, frame: Frame, values: Mapping[Any, Any]) -> None:
        if self.seen is not None and not self.dry:
            for var, value in values.items():
                if var in frame.ids and not isinstance(value, Parted):
                    self.seen(frame.ids[var], value)

    def _applied(self, eqn: Any, operands: Sequence[Any]) -> Sequence[Any]:
        if self.dry:
            return [None] * len(eqn.outvars)
        found = bound(eqn, operands)
        return found if eqn.primitive.multiple_results else [found]

    def _parted(self, frame: Frame, position: int, eqn: Any, operands: Sequence[Any]) -> Sequence[Any]:
        inner, name = frame.inside.get(position, ()), eqn.primitive.name
        given = any(frame.ids.get(v) in self.places.given for v in eqn.outvars)
        if inner and name in OPENERS and (name not in CUSTOM or (self.custom and given)):
            return OPENERS[name](self, eqn, inner, operands)
        if given:
            return self._applied(eqn, [self._met(frame.number, position, eqn, v) for v in operands])
        return self._derived(lambda *given: self._applied(eqn, given), operands, len(eqn.outvars))

    def _met(self, frame: int, position: int, eqn: Any, value: Any) -> Any:
        """The operand of a use."""
        if not isinstance(value, Parted):
            return value
        roles = {role for role, leaf in self.places.roles.get((frame, position), ()) if leaf in value.leaves}
        if len(roles) > 1:
            self.joined[eqn.primitive.name] = None
        return value.get(next(iter(roles)) if len(roles) == 1 else "other")

    def _derived(self, make: Callable[..., Sequence[Any]], operands: Sequence[Any], count: int) -> list[Parted]:
        """Results of an operation on tables and numbers alone."""
        whole = Parted(_leaves(operands), lambda kind: make(*(_one(v, kind) for v in operands)))
        return [Parted(whole.leaves, partial(_result, whole, i)) for i in range(count)]

    def joint(self, make: Callable[..., Any], operands: Sequence[Any]) -> Any:
        """What is made of values that are parted, all or none."""
        if self.dry:
            make = _nothing
        if operands and all(isinstance(v, Parted) for v in operands):
            return Parted(_leaves(operands), lambda kind: make(*(_one(v, kind) for v in operands)))
        return make(*(_one(v, "other") for v in operands))

    def _tried(
        self, frame: Frame, consts: Sequence[Any], args: Sequence[Any]
    ) -> tuple[list[frozenset[Kind]], list[Any]]:
        """Kinds of each argument that a frame asks for, those of its results included, and which results are parted."""
        asked: list[set[Kind]] = [set() for _ in args]

        def listening(seen: set[Kind], v: Any) -> Any:
            return Parted(v.leaves, seen.add) if isinstance(v, Parted) else None

        before, self.dry = self.dry, True
        try:
            results = self.run(
                frame, [None] * len(consts), [listening(seen, v) for seen, v in zip(asked, args, strict=True)]
            )
            for v in results:
                for kind in KINDS:
                    _one(v, kind)
        finally:
            self.dry = before
        return [frozenset(seen) for seen in asked], results

    def flat(
        self, frame: Frame, consts: Sequence[Any], operands: Sequence[Any], whole: Collection[int] = ()
    ) -> "_Flat":
        """Operands as arrays, for a body that a transformation runs: it may see no `Parted` from outside of it.

        Args:
            whole: Operands of which every kind goes in.
        """
        used, results = self._tried(frame, consts, operands)
        kinds = [[k for k in KINDS if k in seen or i in whole] for i, seen in enumerate(used)]
        return _Flat(operands, kinds, results)


class _Flat:
    """Operands of a body as lists of arrays, and results likewise.

    Attributes:
        parts: Of each operand its arrays.
        several: Whether a result comes out once for each kind.
    """

    def __init__(self, operands: Sequence[Any], kinds: Sequence[Sequence[Kind]], results: Sequence[Any]) -> None:
        self._operands, self._kinds, self._results = operands, kinds, results
        self.parts = [
            [v.get(k) for k in ks] if isinstance(v, Parted) else [v] for v, ks in zip(operands, kinds, strict=True)
        ]
        self.several = [isinstance(v, Parted) for v in results]

    def again(self, given: Sequence[Sequence[Any]]) -> list[Any]:
        """Operands of these arrays."""
        return [
            Parted(v.leaves, dict(zip(ks, arrays, strict=True)).__getitem__) if isinstance(v, Parted) else arrays[0]
            for v, ks, arrays in zip(self._operands, self._kinds, given, strict=True)
        ]

    def handed_out(self, results: Sequence[Any]) -> list[list[Any]]:
        """Results as arrays; what comes out once is of no role."""
        return [
            [_one(v, k) for k in (KINDS if several else ("other",))]
            for v, several in zip(results, self.several, strict=True)
        ]

    def taken_in(self, arrays: Sequence[Sequence[Any]]) -> list[Any]:
        """Results of these arrays."""
        return [
            Parted(like.leaves, dict(zip(KINDS, found, strict=True)).__getitem__) if several else found[0]
            for found, like, several in zip(arrays, self._results, self.several, strict=True)
        ]


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
    state = [_one(v, "other") for v in operands[conditions + consts :]]
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
        return jax.core.eval_jaxpr(asked.jaxpr, asked.consts, *(_one(v, "other") for v in questions), *carried)[0]

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
                    _one(v, "other")
        return [_both(vs) if kept else None for vs, kept in zip(zip(*found, strict=True), several, strict=True)]
    flats = [roles.flat(f, c, args) for f, c in pairs]
    for flat in flats:
        flat.several = several

    def branch(number: int) -> Callable[..., Any]:
        (frame, consts), flat = pairs[number], flats[number]
        return lambda given: flat.handed_out(roles.inside(frame, consts, flat.again(given[number])))

    out = jax.lax.switch(_one(index, "other"), [branch(i) for i in range(len(pairs))], [f.parts for f in flats])
    return flats[0].taken_in(out)


def _both(values: Sequence[Parted]) -> Parted:
    """What stands for a value of each branch while nothing is computed."""
    return Parted(_leaves(values), lambda kind: [v.get(kind) for v in values])


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
