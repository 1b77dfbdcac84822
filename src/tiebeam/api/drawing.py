"""Drawing tables and measuring what came of it, round after round, until the logits have settled."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tiebeam.api.inspection import report_of
from tiebeam.api.look import Look
from tiebeam.core.finding import Finding
from tiebeam.core.findings import in_order
from tiebeam.core.initialising.init import ROUNDS, SETTLED, TablePlan, contradiction, has_no_effect, next_std
from tiebeam.core.initialising.ranges import fits
from tiebeam.core.report import Report, TableInit
from tiebeam.errors import InputError, TraceError

ROWS_LISTED = 8


@dataclass
class _Round:
    """One table on its way: what was written last and what came of it.

    Attributes:
        std: What is to be written.
        zero_rows: How many rows are left at zero.
        contradicted: Whether the logits were not as the structure says.
        waited: Whether that was so before another of the same logits had made up for its gain.
        by_logits: Whether the plan goes by the logits because it, or another of the same logits, was contradicted.
        best: Distance and std of what came nearest to 1 so far.
        first: Distance of what was measured first.
    """

    plan: TablePlan
    std: float
    zero_rows: int = 0
    contradicted: bool = False
    waited: bool = False
    by_logits: bool = False
    measured: float | None = None
    rounds: int = 0
    settled: bool = True
    why: str = ""
    best: tuple[float, float] | None = None
    first: float | None = None

    def learn(self, table: Any, alone: bool) -> bool:
        """Take a measurement in; whether another round is needed.

        Args:
            alone: Whether the logits are of no other table that is drawn: then they follow this one's std, or nothing.
        """
        before = None if self.measured is None else (self.std_before, self.measured)
        following, self.measured = next_std(self.plan, self.std, table)
        if not self.plan.table.readouts:
            return False
        self.settled = self.measured is not None and abs(self.measured - 1) <= SETTLED
        if self.measured is not None and (self.best is None or abs(math.log(self.measured)) < self.best[0]):
            self.best = abs(math.log(self.measured)), self.std
            self.first = self.best[0] if self.first is None else self.first
        if self.settled and self.plan.mode == "analytic":
            self.why = contradiction(table, self.std, self.zero_rows)
            self.settled, self.contradicted = not self.why, bool(self.why)
            return False
        if self.settled or self.measured is None or self.why or self.rounds == ROUNDS:
            return False
        if not fits(following, self.plan.table.dtype):
            self.why = f"a std of {following:.3g} would be next, which {self.plan.table.dtype} does not hold"
            return False
        self.rounds += 1
        if alone and before is not None and has_no_effect(before, (self.std, self.measured)):
            self.why, following = self._given_up()
            self.best = None
        self.std_before, self.std = self.std, following
        return True

    def _given_up(self) -> tuple[str, float]:
        """Why, and the std to go back to, where the logits do not follow the table's std, or no further."""
        if self.best is not None and self.first is not None:
            moved = abs(math.log(self.best[1] / self.plan.std))
            if self.first - self.best[0] > 0.25 * moved > 0:
                return (
                    "what is left of the logits does not follow the table's std, so it is not the table's",
                    self.best[1],
                )
        return "the logits do not follow the table's std: the model normalises the table", self.plan.std

    def again(self, table: Any, alone: bool) -> bool:
        """Whether what had settled has not any more, for others have moved since: then it is to be written again."""
        s = next_std(self.plan, self.std, table)[1]
        if not self.plan.table.readouts or not self.settled or s is None or abs(s - 1) <= SETTLED:
            return False
        self.measured = self.best = None
        return self.learn(table, alone)

    def wait(self, written: float) -> None:
        """Be measured once more with what was written, when others have moved; once, for they may move this one."""
        if self.std != written:
            self.std, self.rounds = written, self.rounds - 1
        self.measured, self.contradicted, self.settled, self.why, self.waited = None, False, True, "", True

    def go_by_logits(self, written: float) -> None:
        """Begin anew with what was written, as an empirical plan."""
        self.plan, self.by_logits, self.std = replace(self.plan, mode="empirical"), True, written
        self.measured, self.best, self.settled, self.why = None, None, True, ""

    def back_to_best(self) -> bool:
        """Where rounds did not settle, take the std that came nearest; whether it must be written again."""
        if self.settled or self.best is None or self.best[1] == self.std:
            return False
        self.std = self.best[1]
        self.why = self.why or "the rounds led away from 1, and the nearest was taken"
        return True

    std_before: float = 0.0


def drawn(seen: Look, plans: Sequence[TablePlan], seed: int) -> Report:
    """Write, measure, and write again until what has to be measured has settled; the report of what is then.

    Whatever stops it half-way, an interrupt too, leaves the tables as they were: they are kept until it is done.
    """
    leaves = [leaf_of(seen, p) for p in plans]
    zero = [seen.model.zero_rows(seen.traced, f, p.table.vocab_axis) for f, p in zip(leaves, plans, strict=True)]
    rounds = [_Round(p, p.std, len(rows)) for p, rows in zip(plans, zero, strict=True)]
    undo = [seen.model.keep(seen.traced, f) for f in leaves]
    try:
        zeroed, unzero = seen.model.zero(tuple(b for p in plans for b in p.biases))
        undo.append(unzero)
        now, trouble = _rounds(seen, rounds, leaves, zero, seed)
        report = report_of(now)
    except BaseException:
        for put_back in undo:
            put_back()
        raise
    inits = tuple(
        replace(
            done(r.plan, r.std, _table(now, r.plan), r.measured, r.rounds, seed=seed, zeroed=zeroed),
            settled=r.settled and not trouble, zero_rows=rows[:ROWS_LISTED],
        )
        for r, rows in zip(rounds, zero, strict=True)
    )  # fmt: skip
    lost = [_unsettled(t, trouble or r.why) for t, r in zip(inits, rounds, strict=True) if not t.settled]
    findings = in_order([*report.findings, *lost, *_still(seen, report)])
    return replace(report, init=inits, findings=findings)


def _rounds(
    seen: Look, rounds: list[_Round], leaves: Sequence[Any], zero: Sequence[tuple[int, ...]], seed: int
) -> tuple[Look, str]:
    """The last look, and why measuring stopped early, if it did."""
    now, pending, over = seen, list(range(len(rounds))), False
    while pending or now is seen:
        for i in pending:
            p = rounds[i].plan
            seen.model.write(
                seen.traced, leaves[i], vocab_axis=p.table.vocab_axis, seed=seed, ordinal=p.ordinal,
                std=rounds[i].std, zero_rows=zero[i],
            )  # fmt: skip
        try:
            now = seen.again(logits=True, seed=seed)
        except (InputError, TraceError) as error:
            if any(r.plan.mode == "empirical" for r in rounds):
                raise
            return now, str(error).splitlines()[0]  # what was written is right all the same
        written = [r.std for r in rounds]
        tables = [_table(now, r.plan) for r in rounds]
        stds = [_logits(t) for t in tables]
        alone = [not any(a & b for j, b in enumerate(stds) if j != i) for i, a in enumerate(stds)]
        pending = [i for i in pending if rounds[i].learn(tables[i], alone[i])]
        waiting, switched = _contradicted(stds, rounds, pending)
        for i in waiting:
            rounds[i].wait(written[i])
        for i in switched:
            rounds[i].go_by_logits(written[i])
        again = [i for i in switched if rounds[i].learn(tables[i], alone[i])]
        pending = sorted({*pending, *waiting} - {*switched} | {*again})
        pending = pending or [i for i, r in enumerate(rounds) if r.again(tables[i], alone[i])]
        if not pending and not over:  # what did not settle may have gone astray
            over, pending = True, [i for i, r in enumerate(rounds) if r.back_to_best()]
    return now, ""


def _logits(table: Any) -> set[float]:
    """Which logits a table is read out to, known by their std: of one tensor it is the same to the last bit."""
    return {r.logit_std for r in table.readouts if r.logit_std is not None}


def _contradicted(
    stds: Sequence[set[float]], rounds: Sequence[_Round], pending: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Tables to look at once more, and those that go by the logits from now on.

    The latter are those whose logits contradict the structure, and all that share these, or share those of a table
    that goes by its logits anyway and is not at 1: added up, they are at 1 together. Where one of them has a gain to
    make up for, it does so first, or it would shrink the others. Tables with logits of their own are left alone.
    """
    free = [i for i, r in enumerate(rounds) if r.plan.measurable and r.plan.mode == "analytic" and stds[i]]
    loud = [
        i for i, r in enumerate(rounds)
        if r.plan.mode == "empirical" and not r.by_logits and (i in pending or not r.settled)
    ]  # fmt: skip
    odd = [i for i in free if rounds[i].contradicted or rounds[i].waited]
    found = [*loud, *odd, *(i for i, r in enumerate(rounds) if r.by_logits)]
    waiting = [*loud, *(i for i in odd if not rounds[i].waited)]
    early = {i for i in waiting if any(stds[i] & stds[j] for j in free if j in pending)}
    switched = [i for i in free if any(stds[i] & stds[j] for j in found if j not in early)]
    return sorted(early - {*switched}), switched


def _still(seen: Look, report: Report) -> list[Finding]:
    """Tables that were meant to be one are two independent ones now: that is no cure, and it is said of what is now."""
    lost = [f for f in report_of(seen).findings if f.code in ("copy-not-tie", "drifted") and f.severity != "info"]
    return [
        replace(
            f,
            message=f"{f.where!r} looked like one table with another before the draw; now they are two independent "
            "ones, and neither holds the other's values",
            hint="if they were meant to be one: tie them, then initialise again",
        )
        for f in lost
        if all(f.where != g.where or f.code != g.code for g in report.findings)
    ]


def leaf_of(seen: Look, plan: TablePlan) -> Any:
    """The largest leaf of the table: of two overlapping parameters one may hold a part alone."""
    names = set(plan.table.names)
    sources = [u.read.source for u in seen.uses if names.intersection(u.read.source.leaf.names)]
    return max(sources, key=lambda source: math.prod(source.shape)).leaf


def _table(now: Look, plan: TablePlan) -> Any:
    return next((t for t in now.tables if set(t.names) & set(plan.table.names)), plan.table)


def done(
    p: TablePlan, std: float, table: Any, measured: float | None, rounds: int, *, seed: int, written: bool = True,
    zeroed: Sequence[str] = (),
) -> TableInit:  # fmt: skip
    """What is reported of one table.

    Args:
        std: The one that was written, or is planned.
        table: What is known of the table now.
        measured: Std of the logits, or None.
        zeroed: Parameters that were set to zero.
    """
    predicted = table.predicted.logit_std if written else (1.0 if p.table.readouts else None)
    logits = [r.logit_std for r in table.readouts if r.logit_std is not None] if written else []
    return TableInit(
        name=p.table.name,
        mode=p.mode,
        std_before=p.table.std,
        std=std,
        predicted_logit_std=predicted,
        measured_logit_std=logits[0] if logits else measured,
        rounds=rounds,
        written=written,
        biases=tuple(b for b in p.biases if b in zeroed),
        seed=seed,
    )


def _unsettled(done: TableInit, trouble: str) -> Finding:
    why = trouble or f"after {done.rounds} rounds the logit std is {done.measured_logit_std}"
    return Finding(
        "not-settled", "warning", done.name,
        f"the measured logit std did not settle at 1 within {SETTLED:.0%}: {why}",
        hint="pass a larger batch, put a normalisation before the readout, or use mode='empirical', which goes by "
        "the logits",
    )  # fmt: skip
