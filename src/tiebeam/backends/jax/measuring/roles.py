"""Telling apart what each role sends to a table: its program runs with one table for each kind of use.

What is made of tables and numbers alone (a cast, a transposition, a slice) exists once for each kind, each made when
it is asked for. Where such a value meets something else, that is one use, and the kind of this use is taken. So each
use is counted in exactly one kind, and the gradients of the kinds add up to the gradient.

Nothing here knows where a program came from: a jaxpr, the frame that it was lowered to, and who reads what.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tiebeam.backends.jax.lowering.calls import INLINE
from tiebeam.backends.jax.lowering.fold import bound
from tiebeam.backends.jax.lowering.lower import Frame, Path
from tiebeam.backends.jax.measuring.parted import KINDS, Flat, Kind, Parted, leaves_of, one_of, result_of
from tiebeam.core.measuring.passes import Role, RoleRead
from tiebeam.core.reading.provenance import INPUT, provenance
from tiebeam.ir import Graph

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


def direct(frame: Frame) -> frozenset[int]:
    """Ids of the values that are made outside of all loops, branches and other transformations."""
    found = set(frame.ids.values())
    for position, inner in frame.inside.items():
        if frame.jaxpr.eqns[position].primitive.name in PLAIN:
            found |= direct(inner[0])
    return frozenset(found)


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
        from tiebeam.backends.jax.measuring.roles_calls import OPENERS

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
                several = OPENERS[eqn.primitive.name](self, eqn, frame.inside[position], operands)
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
        from tiebeam.backends.jax.measuring.roles_calls import OPENERS

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
        whole = Parted(leaves_of(operands), lambda kind: make(*(one_of(v, kind) for v in operands)))
        return [Parted(whole.leaves, partial(result_of, whole, i)) for i in range(count)]

    def joint(self, make: Callable[..., Any], operands: Sequence[Any]) -> Any:
        """What is made of values that are parted, all or none."""
        if self.dry:
            make = _nothing
        if operands and all(isinstance(v, Parted) for v in operands):
            return Parted(leaves_of(operands), lambda kind: make(*(one_of(v, kind) for v in operands)))
        return make(*(one_of(v, "other") for v in operands))

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
                    one_of(v, kind)
        finally:
            self.dry = before
        return [frozenset(seen) for seen in asked], results

    def flat(self, frame: Frame, consts: Sequence[Any], operands: Sequence[Any], whole: Collection[int] = ()) -> Flat:
        """Operands as arrays, for a body that a transformation runs: it may see no `Parted` from outside of it.

        Args:
            whole: Operands of which every kind goes in.
        """
        used, results = self._tried(frame, consts, operands)
        kinds = [[k for k in KINDS if k in seen or i in whole] for i, seen in enumerate(used)]
        return Flat(operands, kinds, results)
