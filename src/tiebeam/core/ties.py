"""Tables from records: which leaves are one table, and what state its tie is in."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tiebeam.core.facts import Lookup, Readout, State
from tiebeam.core.reading.records import Use
from tiebeam.core.statistics import Distance
from tiebeam.ir import Leaf

DRIFTED = 0.5  # relative Frobenius distance: independent draws are at sqrt(2)

Compare = Callable[["Group", "Group"], Distance | None]
Declares = Callable[[str, str], bool]


@dataclass
class Group:
    """The leaves that are one table (one object, or overlapping storages) and how it is read."""

    leaves: list[Leaf]
    uses: list[Use]
    state: State = "unknown"
    partner: "Group | None" = None
    distance: float | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(n for leaf in self.leaves for n in leaf.names)) or ("<unnamed tensor>",)

    @property
    def lookups(self) -> list[Use]:
        return [u for u in self.uses if isinstance(u.fact, Lookup)]

    @property
    def readouts(self) -> list[Use]:
        return [u for u in self.uses if isinstance(u.fact, Readout)]

    @property
    def shape(self) -> tuple[int, int]:
        """(vocab, width) of the largest leaf read."""
        reads = [u.read for u in self.uses]
        return max((r.vocab, r.width) for r in reads)

    @property
    def vocab_axis(self) -> int:
        return self.uses[0].read.vocab_axis


def group_uses(uses: Iterable[Use]) -> list[Group]:
    """Join uses of one leaf, and of leaves that overlap in memory; order of first use."""
    groups: list[Group] = []
    for use in sorted(uses, key=lambda u: u.read.node.index):
        leaf = use.read.source.leaf
        home = next((g for g in groups if any(_same(leaf, other) for other in g.leaves)), None)
        if home is None:
            groups.append(Group([leaf], [use]))
            continue
        home.uses.append(use)
        if all(leaf.key != other.key for other in home.leaves):
            home.leaves.append(leaf)
    return groups


def _same(a: Leaf, b: Leaf) -> bool:
    if a.key == b.key:
        return True
    overlap = a.span[0] < b.span[1] and b.span[0] < a.span[1]
    return a.storage == b.storage and a.storage >= 0 and overlap


def judge(groups: list[Group], compare: Compare, declares: Declares, *, meta: bool) -> None:
    """Fill in state, partner and distance.

    Args:
        compare: Distance of two tables, or None where there are no values.
        declares: Whether a tie of two parameter paths was asked for.
    """
    for group in groups:
        if group.lookups and group.readouts:
            if not all(u.fact.gradient for u in group.uses):
                group.state = "cut"
            elif len([leaf for leaf in group.leaves if not leaf.fetched]) > 1:
                group.state = "aliased"
            else:
                group.state = "tied"
    whole = [g for g in groups if g.lookups and g.readouts]
    for group in groups:
        if group in whole:
            continue
        hidden = next((u.hidden for u in group.uses if u.hidden), "")
        if hidden:
            group.state = "unknown"
            group.notes += [f"{hidden}, whose body is unknown, reads it too: in which role cannot be seen"]
            continue
        others = [g for g in groups if g is not group and (g in whole or _complement(g, group))]
        fitting = [g for g in others if _fits(g, group)]
        if not fitting:
            group.state = "untied"
            group.notes += ["it is read in one role, and no table of the other role fits it"]
            group.notes += list(dict.fromkeys(u.unseen for u in group.uses if u.unseen))
            continue
        _pair(group, fitting, compare, declares, meta=meta)


def _complement(a: Group, b: Group) -> bool:
    return bool(a.lookups) != bool(b.lookups)


def _fits(a: Group, b: Group) -> bool:
    (va, wa), (vb, wb) = a.shape, b.shape
    return wa == wb and abs(va - vb) <= max(8, 0.02 * max(va, vb))


def _pair(group: Group, fitting: list[Group], compare: Compare, declares: Declares, *, meta: bool) -> None:
    found: list[tuple[float, Group, Distance | None]] = []
    for other in fitting:
        distance = compare(group, other)
        relative = float("inf") if distance is None or distance.relative is None else distance.relative
        found.append((relative, other, distance))
    relative, other, distance = min(found, key=lambda f: f[0])
    asked = any(declares(a, b) for a in group.names for b in other.names)
    group.partner = other
    group.distance = None if distance is None else distance.relative
    if distance is None:
        if asked:
            group.state = "unknown"
            group.notes += ["a tie is declared, and there are no values to compare the two tables by"]
        else:
            group.state = "untied"
            group.notes += ["no values to compare it with its partner by"] if meta else []
    elif distance.equal and all(leaf.fetched for g in (group, other) for leaf in g.leaves):
        group.state = "unknown"
        group.notes += ["a wrapper fetched both tables for the pass, with equal values: one table or two is not seen"]
    elif distance.equal:
        group.state = "copy"
    elif relative < DRIFTED or asked:
        group.state = "drifted"
    else:
        group.state = "untied"
