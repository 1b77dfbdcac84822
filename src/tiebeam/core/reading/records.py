"""Lookup and Readout records: what one place does with a table, with repeated executions folded."""

import math
from dataclasses import dataclass, replace

from tiebeam.core.facts import Lookup, Readout
from tiebeam.core.reading.backward import backward
from tiebeam.core.reading.chains import computed_from
from tiebeam.core.reading.gradients import reached_by_gradients
from tiebeam.core.reading.norms import every_use_normalizes, normalized_upstream, stream_before
from tiebeam.core.reading.numbers import ONE, Factor
from tiebeam.core.reading.provenance import INPUT
from tiebeam.core.reading.reads import Reads
from tiebeam.core.reading.roles import Read
from tiebeam.core.reading.source import source_of
from tiebeam.core.reading.states import Walk
from tiebeam.core.reading.switches import counts_factor
from tiebeam.core.reading.walk import Forward
from tiebeam.ir import Graph, Op

_MOVES = (Op.LAYOUT, Op.CAST, Op.DROPOUT, Op.MASK, Op.MUL, Op.DIV)


@dataclass(frozen=True, slots=True)
class Use:
    """A record with what grouping needs.

    Attributes:
        read: The first execution.
        literals: Ids of the numbers of the program that went into the factor: each could be a size of the inputs.
        hidden: An operation of unknown body that reads the table as well, or "".
        unseen: What could be a readout of a table that is only looked up, or "".
    """

    fact: Lookup | Readout
    read: Read
    literals: frozenset[int]
    hidden: str = ""
    unseen: str = ""

    @property
    def literal(self) -> bool:
        """Whether a number of the program went into the factor."""
        return bool(self.literals)

    @property
    def site(self) -> tuple[str, str, str, int]:
        """What one call site is known by, also in another pass."""
        kind = "lookup" if isinstance(self.fact, Lookup) else "readout"
        return kind, self.fact.where, self.fact.name, self.read.vocab_axis


def barriers(graph: Graph) -> tuple[str, ...]:
    """A note for every operation whose body is unknown and that something returned depends on."""
    labels = [n.label for n in graph.nodes if n.foreign and graph.live[n.index]]
    return tuple(
        f"{label} has an unknown body: what passes through it is not followed" for label in dict.fromkeys(labels)
    )


def build_uses(graph: Graph, flags: list[int], reads: Reads) -> list[Use]:
    """One `Use` for each call site with equal facts."""
    alive = reached_by_gradients(graph) if graph.attached else [True] * len(graph.values)
    uses = [_lookup(graph, flags, r, alive) for r in reads.lookups]
    uses += [_readout(graph, flags, r, alive) for r in reads.readouts]
    return _fold([_doubted(u, reads) for u in uses])


def _doubted(use: Use, reads: Reads) -> Use:
    key = use.read.source.leaf.key
    return replace(use, hidden=reads.hidden.get(key, ""), unseen=reads.unseen.get(key, ""))


def _gradient(read: Read, alive: list[bool]) -> bool:
    if not read.source.leaf.trainable:
        return True  # frozen on purpose: nothing is cut
    return read.source.attached and alive[read.node.output]


def _lookup(graph: Graph, flags: list[int], read: Read, alive: list[bool]) -> Use:
    walk = Forward(graph, flags, read.node.output, table=read.source.leaf).run()
    outside = walk.factor()
    counts = counts_factor(graph, flags, read.other) if read.node.op is Op.DOT else ONE
    factor = read.source.factor.times(counts).times(outside)
    measured = graph.rms.get(read.node.output)
    rms = None if measured is None or outside.value is None else measured * abs(outside.value)
    fact = Lookup(
        name=read.source.leaf.name,
        where=read.node.where,
        kind="gather" if read.node.op is Op.GATHER else "product",
        factor=factor.value,
        norm_after=bool(walk.ends) and all(every_use_normalizes(graph, v, read.node.where) for v, _ in walk.ends),
        gradient=_gradient(read, alive),
        rms=rms,
        reparametrized=read.source.altered,
        notes=_reasons(factor),
    )
    return Use(fact, read, factor.literals)


def _readout(graph: Graph, flags: list[int], read: Read, alive: list[bool]) -> Use:
    stream = stream_before(graph, flags, read.other)
    behind = backward(graph, flags, read.other, normalized=stream is not None, table=read.source.leaf)
    before = behind.factor.times(read.source.factor)
    walk = Forward(graph, flags, read.node.output, read.axis, before=before, table=read.source.leaf).run()
    factor = before.times(walk.factor())
    upstream = stream if stream is not None else normalized_upstream(graph, flags, read.other)
    measured = graph.rms.get(read.other)
    if measured is not None and behind.factor.value not in (None, 0.0):
        measured /= abs(behind.factor.value or 1.0)
    elif graph.meta and stream is not None:
        measured = 1.0
    fact = Readout(
        name=read.source.leaf.name,
        where=read.node.where,
        factor=factor.value,
        soft_cap=walk.soft_cap(),
        bias=tuple(walk.biases),
        hidden_rms=measured,
        normalized=upstream is not None,
        kappa=None if upstream is None else graph.cosine.get((read.node.index, upstream)),
        logit_std=_logit_std(graph, read, walk),
        gradient=_gradient(read, alive),
        delta=_deltas(graph, flags, read, walk),
        reparametrized=read.source.altered,
        beside=read.beside,
        notes=_reasons(factor),
    )
    return Use(fact, read, factor.literals)


def _reasons(factor: Factor) -> tuple[str, ...]:
    return (factor.reason,) if factor.value is None else ()


def _logit_std(graph: Graph, read: Read, walk: Walk) -> float | None:
    """Measured std of the logits before a soft cap: of the last value that says, times what follows it.

    Else of the product, which knows nothing of what is added to it; of a product and a bias in one operation, whose
    product nobody has seen, what comes out.
    """
    if not graph.logit_std or not walk.ends:
        return None
    end, state = walk.ends[0]
    total = state.total().value if state.cap else walk.factor().value
    slope = Factor(state.slope())
    for value, times in (
        (state.told, state.since.times(slope).value),
        (read.node.output, total),
        (state.past, state.after.times(slope).value),
        (end, None if state.cap else 1.0),
    ):
        found = graph.logit_std.get(_told(graph, value, read.node.output))
        if found is not None and times is not None and math.isfinite(found):
            return found * abs(times)
    return None


def _told(graph: Graph, value: int, start: int) -> int:
    """The value whose std was measured, where only another view or dtype of it was not."""
    while value not in graph.logit_std and value != start:
        node = graph.producer(value)
        if node is None or node.op not in (Op.LAYOUT, Op.CAST):
            break
        value = node.inputs[0]
    return value


def _deltas(graph: Graph, flags: list[int], read: Read, walk: Walk) -> tuple[str, ...]:
    """Leaves of other vocabulary-sized products added to these logits: a low-rank adapter.

    An adapter multiplies the hidden state before, to its rank, whatever that is; a table that reads the hidden state
    itself, or a part of it, or another one is a readout in its own right.
    """
    hidden, names = _moved(graph, flags, read.other), []
    for value in walk.added:
        v = value
        for _ in range(16):
            node = graph.producer(v)
            if node is None:
                break
            if node.op is Op.DOT:
                for i in (0, 1):
                    source = source_of(graph, flags, node, i)
                    if source and read.vocab in source.shape and source.leaf.key != read.source.leaf.key:
                        ranked = _moved(graph, flags, node.inputs[1 - i])
                        if ranked != hidden and computed_from(graph, ranked, hidden):
                            names.append(source.leaf.name)
                break
            moving = [x for x in node.inputs if flags[x] & INPUT]
            if len(moving) != 1:
                break
            v = moving[0]
    return tuple(dict.fromkeys(names))


def _moved(graph: Graph, flags: list[int], value: int) -> int:
    """What a value is a copy, a part or a multiple of."""
    while (node := graph.producer(value)) is not None and node.op in _MOVES:
        moving = [x for x in node.inputs if flags[x] & INPUT]
        if len(moving) != 1:
            break
        value = moving[0]
    return value


def _fold(uses: list[Use]) -> list[Use]:
    """Executions of one call site with equal facts become one record with a count."""
    folded: dict[tuple[object, ...], list[Use]] = {}
    for use in uses:
        f = use.fact
        facts: tuple[object, ...] = (f.factor, f.notes, f.gradient, f.reparametrized)
        if isinstance(f, Readout):
            facts += (f.soft_cap, f.bias, f.delta, f.beside)
        else:
            facts += (f.norm_after, f.kind)
        folded.setdefault((*use.site, use.read.source.leaf.key, *facts), []).append(use)
    return [_merge(group) for group in folded.values()]


def _merge(group: list[Use]) -> Use:
    first = group[0]
    facts = [u.fact for u in group]
    fact = replace(first.fact, count=len(group))
    if isinstance(fact, Readout):
        readouts = [f for f in facts if isinstance(f, Readout)]
        fact = replace(
            fact,
            hidden_rms=root_mean_square([f.hidden_rms for f in readouts]),
            logit_std=root_mean_square([f.logit_std for f in readouts]),
            kappa=next((f.kappa for f in readouts if f.kappa is not None), None),
        )
    else:
        fact = replace(fact, rms=root_mean_square([f.rms for f in facts if isinstance(f, Lookup)]))
    return replace(first, fact=fact, literals=frozenset[int]().union(*(u.literals for u in group)))


def root_mean_square(numbers: list[float | None]) -> float | None:
    """Root mean square of the known numbers, or None."""
    known = [n for n in numbers if n is not None]
    return math.sqrt(sum(n * n for n in known) / len(known)) if known else None


def confirm(uses: list[Use], again: list[Use]) -> list[Use]:
    """Drop factors that a pass over other inputs does not repeat: they were sizes or readings of them."""
    other: dict[tuple[str, str, str, int], list[tuple[float | None, float | None]]] = {}
    for use in again:
        other.setdefault(use.site, []).append((use.fact.factor, _cap(use)))
    return [u if not u.literal or u.fact.factor is None else _confirmed(u, other.get(u.site, [])) for u in uses]


def _confirmed(use: Use, seen: list[tuple[float | None, float | None]]) -> Use:
    mine, cap = use.fact.factor, _cap(use)
    if not seen or any(_close(f, mine) and _close(c, cap) for f, c in seen):
        return use
    values = ", ".join("unknown" if f is None else f"{f:.6g}" + (f" capped at {c:.6g}" if c else "") for f, c in seen)
    reason = f"it comes from the inputs: {mine:.6g} in one pass, {values} in a pass of another length"
    return _without_factor(use, reason)


def _cap(use: Use) -> float | None:
    return use.fact.soft_cap if isinstance(use.fact, Readout) else None


def _close(a: float | None, b: float | None) -> bool:
    return a is b or (a is not None and b is not None and math.isclose(a, b, rel_tol=1e-6))


def _without_factor(use: Use, reason: str) -> Use:
    notes = (*use.fact.notes, reason)
    if isinstance(use.fact, Readout):
        return replace(use, fact=replace(use.fact, factor=None, soft_cap=None, notes=notes))
    return replace(use, fact=replace(use.fact, factor=None, notes=notes))


def doubtful(use: Use) -> bool:
    """Whether a number of the program, which could be a size of the inputs, decides the factor or the cap."""
    return use.literal and use.fact.factor is not None and (use.fact.factor != 1.0 or _cap(use) is not None)


def could_be_a_size(use: Use, sizes: set[int]) -> bool:
    """Whether a doubtful factor or cap is a size of the inputs, its root, or the inverse of either.

    One that follows from the table's own width or vocabulary is none, whatever the sizes.
    """
    if not doubtful(use):
        return False
    numbers = [abs(x) for x in (use.fact.factor, _cap(use)) if x]
    own = {p for n in (use.read.width, use.read.vocab) for p in _powers(n)}
    given = {p for n in sizes if n > 1 for p in _powers(n)}
    return any(_among(x, given) and not _among(x, own) for x in numbers)


def _powers(n: int) -> tuple[float, ...]:
    return (n, 1 / n, math.sqrt(n), 1 / math.sqrt(n)) if n else ()


def _among(x: float, numbers: set[float]) -> bool:
    return any(math.isclose(x, n, rel_tol=1e-6) for n in numbers)


def unconfirmed(uses: list[Use], why: str) -> list[Use]:
    """Where no other length can be run: a number that could be a reading of the inputs is not known."""
    reason = f"it could come from the inputs, and no other inputs could be tried ({why})"
    return [_without_factor(u, reason) if doubtful(u) else u for u in uses]
