"""Findings on an optimizer that holds a model's tables: who steps them, how often, and at which rate."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tiebeam.core.facts import Table
from tiebeam.core.finding import Finding
from tiebeam.core.training.optimizers import POWERS, REFUSED, RULES, Rule

FAR = math.log(1.5)  # a rate that is off by less makes no difference that a run would show
NEGLIGIBLE = 1e-3  # of the largest rate: what a schedule does below it moves nothing


@dataclass(frozen=True, slots=True)
class HeldGroup:
    """One group of an optimizer.

    Attributes:
        place: For messages: "group 1", or "group 0 of optimizer 1".
        optimizer: Which of several it belongs to.
        family: Of its optimizer, or None.
        lr, weight_decay, eps: As set before any schedule; None where it has none.
        elements: Of its parameters by owner's path.
        decoupled: The decay, times the rate, is subtracted beside the step, whatever the family does elsewhere.
        tried: The numbers are what a trial step did: they can be compared with one another, and are no settings.
    """

    place: str
    optimizer: int
    family: str | None
    lr: float | None
    weight_decay: float | None
    eps: float | None
    elements: Mapping[str, int]
    decoupled: bool = False
    tried: bool = False


@dataclass(frozen=True)
class Schedule:
    """Learning rates that a schedule will set.

    Attributes:
        kind: Its class, for messages.
        rates: By group of the facts; (steps, groups of one optimizer).
        first: Index of the first of these groups.
        proportional: For each of these groups, whether twice the rate gives twice the schedule.
        whole: Whether it was followed to its end.
        counts: The steps that the rows of `rates` stand for; None: every one from now on.
    """

    kind: str
    rates: npt.NDArray[np.float64]
    first: int
    proportional: Sequence[bool]
    whole: bool
    counts: Sequence[int] | None = None


class OptimizerFixes(Protocol):
    """Python that mends an optimizer of one framework; "" where there is none.

    The code runs with `optimizer`, `scheduler`, `model`, `report` and `tiebeam` in scope.
    """

    def rebuild(self) -> str:
        """Make the optimizer anew, on groups of the model as it is."""
        ...

    def regroup(self, owner: str, home: int, **settings: float) -> str:
        """Give a table a group of its own in the optimizer of group `home`, with these settings."""
        ...

    def keep_ratio(self, owner: str, ratio: float) -> str:
        """Let a schedule keep the table's rate at `ratio` times the others'."""
        ...


@dataclass(frozen=True)
class OptimizerFacts:
    """What an optimizer holds.

    Attributes:
        tables: The report's.
        owners: The trainable parameters that each of these tables is, by its name.
        stale: How many of the tensors that it holds are no parameter of the model.
        missing: Trainable parameters of the model in no group.
        twice: Pairs of parameters on one storage that are both stepped.
    """

    tables: Sequence[Table]
    owners: Mapping[str, tuple[str, ...]]
    groups: Sequence[HeldGroup]
    fixes: OptimizerFixes
    stale: int = 0
    missing: Sequence[str] = ()
    twice: Sequence[tuple[str, str]] = ()
    schedules: Sequence[Schedule] = field(default_factory=tuple)


def optimizer_findings(facts: OptimizerFacts) -> Iterator[Finding]:
    """Findings of an optimizer."""
    yield from _stale(facts)
    for a, b in facts.twice:
        yield Finding(
            "stepped-twice", "error", a,
            f"{a!r} and {b!r} are two parameters on one storage and both are stepped: every step moves that memory "
            "twice, each time by a part of the gradient",
            hint="tie them, so that there is one parameter, and build the optimizer anew",
        )  # fmt: skip
    for table in facts.tables:
        for owner in facts.owners.get(table.name, ()):
            yield from _table(facts, table, owner)


def _stale(facts: OptimizerFacts) -> Iterator[Finding]:
    if facts.stale:
        rest = f", and {len(facts.missing)} of the model's parameters are in no group" if facts.missing else ""
        yield Finding(
            "optimizer-stale", "error" if facts.missing else "warning", facts.missing[0] if facts.missing else "",
            f"the optimizer holds {facts.stale} tensor(s) that are no parameter of the model{rest}: it was built "
            "before the model was tied, moved or loaded",
            fix=facts.fixes.rebuild(), hint="build the optimizer after tying, loading and moving; then its scheduler",
        )  # fmt: skip


def _table(facts: OptimizerFacts, table: Table, owner: str) -> Iterator[Finding]:
    homes = [i for i, g in enumerate(facts.groups) if owner in g.elements]
    if not homes:
        if not facts.stale:
            yield Finding(
                "table-not-stepped", "error", owner,
                f"the table {owner!r} is trainable and in no group of the optimizer: it stays as it is",
                fix=facts.fixes.rebuild(),
                hint="make it with tiebeam.torch.param_groups or the optimizer() of tiebeam.jax or tiebeam.keras, then "
                "its schedule",
            )  # fmt: skip
        return
    if len(homes) > 1:
        where = " and ".join(facts.groups[i].place for i in homes)
        yield Finding(
            "table-in-two-groups", "error", owner,
            f"the table {owner!r} is in {where}: every step moves it twice",
            fix=facts.fixes.regroup(owner, homes[0]), hint="leave it in one group",
        )  # fmt: skip
        return
    [home] = homes
    group = facts.groups[home]
    law = RULES.get(group.family or "")
    if law is not None and law.matrices:
        yield _under_muon(facts, table, owner, group)
        return
    trained = any(r.gradient for r in table.readouts)
    if not trained and group.weight_decay:
        yield Finding(
            "decay-without-gradient", "info", owner,
            f"the table {owner!r} is trained as a lookup alone, so a row that the batch does not hold has no gradient: "
            f"the decay of {group.weight_decay:g} shrinks rare rows all the same",
            fix=facts.fixes.regroup(owner, home, weight_decay=0.0), hint="do not decay it",
        )  # fmt: skip
    if table.readouts and table.lr_ratio is not None:
        yield from _rate(facts, table, owner, home, table.lr_ratio)


def _under_muon(facts: OptimizerFacts, table: Table, owner: str, group: HeldGroup) -> Finding:
    c = table.lr_ratio if table.readouts else 1.0
    beside = next((i for i, g in enumerate(facts.groups) if g.family == "adamw" and g.lr and _elements(facts, i)), None)
    fix = ""
    if beside is not None and c is not None:
        fix = facts.fixes.regroup(owner, beside, **_settings(RULES["adamw"], facts.groups[beside], c))
    return Finding(
        "table-under-muon", "warning", owner,
        f"the table {owner!r} is stepped by {group.family}: its rows are met one at a time, and an update made of "
        "whole matrices moves them all alike, rare or frequent",
        fix=fix,
        hint="split the model with tiebeam.torch.split_for_muon, or pass beside= to the optimizer() of tiebeam.jax or "
        "tiebeam.keras",
    )  # fmt: skip


def _rate(facts: OptimizerFacts, table: Table, owner: str, home: int, c: float) -> Iterator[Finding]:
    group = facts.groups[home]
    law = RULES.get(group.family or "")
    base = _base(facts, home)
    if law is None:
        if abs(math.log(c)) > FAR:
            why = REFUSED.get(group.family or "", "its family is not known")
            yield Finding(
                "optimizer-unknown", "info", owner,
                f"whether the rate of {owner!r}, whose ratio is {c:.4g}, is right under this optimizer cannot be said: "
                f"{why}",
                hint="pass family= where the optimizer normalises as a known one does",
            )  # fmt: skip
        return
    if base is None or not group.lr or not facts.groups[base].lr:
        return
    want = c**law.rate
    bent = _bent(facts, home, base, want)
    have = group.lr / (facts.groups[base].lr or group.lr)
    settings = _settings(law, facts.groups[base], c)
    if bent is not None:
        schedule, reached, step = bent
        yield Finding(
            "schedule-flattens-ratio", "warning", owner,
            f"{schedule.kind} does not keep the table's rate at {want:.4g} times that of the rest: after {step} steps "
            f"it is {reached:.4g} times",
            fix=facts.fixes.keep_ratio(owner, want),
            hint="use a schedule that multiplies every group's own rate (LambdaLR, or a least rate of 0); give "
            "OneCycleLR a list of max_lr",
        )  # fmt: skip
    elif abs(math.log(have / want)) > FAR:
        yield Finding(
            "table-rate", "warning", owner,
            f"the table {owner!r} is trained at {have:.4g} times the rate of the rest; for its scale, c = {c:.4g}, "
            f"{law.name} wants {want:.4g} times",
            fix=facts.fixes.regroup(owner, home, **settings),
            hint="make it with tiebeam.torch.param_groups or the optimizer() of tiebeam.jax or tiebeam.keras, then "
                "its schedule",
        )  # fmt: skip
        return
    off = [f"{k} {have:g} where {settings[k]:g} follows" for k, have in _unscaled(group, settings)]
    if off:
        yield Finding(
            "table-settings", "info", owner,
            f"the rate of {owner!r} follows its scale, c = {c:.4g}, and other settings do not: {', '.join(off)}",
            fix=facts.fixes.regroup(owner, home, **settings),
        )  # fmt: skip


def _unscaled(group: HeldGroup, settings: Mapping[str, float]) -> Iterator[tuple[str, float]]:
    """Settings of a group that are far from what they should be; a decay of 0 is a decision."""
    for key, have in (("weight_decay", group.weight_decay), ("eps", group.eps)):
        want = settings.get(key)
        if have and want and abs(math.log(have / want)) > FAR:
            yield key, have


def _settings(law: Rule, base: HeldGroup, c: float) -> dict[str, float]:
    """What a table's group should hold beside a base group."""
    made = {"lr": (base.lr or 0.0) * c**law.rate}
    if base.weight_decay is not None:
        made["weight_decay"] = base.weight_decay * c ** law.decay_power(decoupled=base.decoupled)
    if base.eps is not None and "eps" in law.settings:
        made["eps"] = base.eps * c ** POWERS[law.settings["eps"]]
    return made


def _elements(facts: OptimizerFacts, i: int) -> int:
    """Elements of a group that are no table's."""
    tables = {o for owners in facts.owners.values() for o in owners}
    return sum(n for name, n in facts.groups[i].elements.items() if name not in tables)


def _base(facts: OptimizerFacts, home: int) -> int | None:
    """The group that most of the body is in: of the same optimizer, else of one of its family."""
    here = facts.groups[home]
    holding = [i for i in range(len(facts.groups)) if _elements(facts, i)]
    own = [i for i in holding if facts.groups[i].optimizer == here.optimizer]
    alike = [i for i in holding if facts.groups[i].family == here.family]
    return max(own or alike, key=lambda i: _elements(facts, i), default=None)


def _bent(facts: OptimizerFacts, home: int, base: int, want: float) -> tuple[Schedule, float, int] | None:
    """The schedule that moves the ratio away from `want`, the worst ratio, and its step."""
    for s in facts.schedules:
        i, j = home - s.first, base - s.first
        if not (min(i, j) >= 0 and max(i, j) < s.rates.shape[1]):
            continue
        mine, rest = s.rates[:, i], s.rates[:, j]
        counts = (mine > 0) & (rest > NEGLIGIBLE * rest.max())
        if not counts.any():
            continue
        steps = np.flatnonzero(counts)
        ratios = mine[counts] / rest[counts]
        off = np.abs(np.log(ratios / want))
        worst = int(off.argmax())
        keeps = s.proportional[i] and s.proportional[j]
        if off[worst] > FAR and (off[0] <= FAR or not keeps):
            step = int(steps[worst])
            return s, float(ratios[worst]), step if s.counts is None else s.counts[step]
    return None


def _stepped(facts: OptimizerFacts, home: int) -> str:
    """Family, rate and its ratio to the body's, and the settings that a group has."""
    group, base = facts.groups[home], _base(facts, home)
    said = [f"stepped as {group.family}" if group.family else "stepped by an optimizer of unknown family"]
    rest = None if base is None else facts.groups[base].lr
    ratio = f"{group.lr / rest:.4g} times" if group.lr is not None and rest else ""
    if group.tried:
        return ", ".join([*said, *([f"{ratio} as far as the rest in a trial step"] if ratio else [])])
    if group.lr is not None:
        said.append(f"rate {group.lr:.4g}" + (f" = {ratio} that of the rest" if ratio else ""))
    said += [f"decay {group.weight_decay:.4g}"] if group.weight_decay is not None else []
    said += [f"eps {group.eps:.4g}"] if group.eps is not None else []
    return ", ".join(said)


def facts_notes(facts: OptimizerFacts) -> tuple[str, ...]:
    """How each table is stepped, one line for each group that holds it; then what could not be judged."""
    notes = [
        f"{owner}: {_stepped(facts, i)}"
        for t in facts.tables
        for owner in facts.owners.get(t.name, ())
        for i, group in enumerate(facts.groups)
        if owner in group.elements
    ]
    for t in facts.tables:
        if t.readouts and t.lr_ratio is None:
            notes.append(f"the rate of {t.name} was not judged: its ratio is not known")
        if t.name not in facts.owners:
            notes.append(f"{t.name} is frozen: no optimizer has to hold it")
    notes += [f"{s.kind} was followed for {len(s.rates) - 1} steps" for s in facts.schedules if not s.whole]
    return tuple(notes)
