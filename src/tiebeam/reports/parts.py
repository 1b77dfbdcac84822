"""What a report says, worded once for every renderer: the same figures in all of them."""

from tiebeam.core.checkpoint import CheckpointReport
from tiebeam.core.facts import Table
from tiebeam.core.report import Report, TableInit
from tiebeam.reports.checkpoints import checkpoint_parts
from tiebeam.reports.numbers import ids, known, number
from tiebeam.reports.pieces import InitPart, Parts, Row, Tone
from tiebeam.reports.strings import joined, name, spans, visible
from tiebeam.reports.tables import table_part
from tiebeam.reports.verdicts import finding_parts, health, plural, tone


def parts(report: Report | CheckpointReport) -> Parts:
    """Word a report.

    Example:
        >>> parts(Report(model="Tiny", framework="torch")).verdict
        'Tiny: no vocabulary table seen, nothing to judge'
    """
    if isinstance(report, CheckpointReport):
        return checkpoint_parts(report)
    model = visible(report.model)
    well, colour = _well(report)
    summary = f"{_tie(report.tables)}, {health(report.findings, well)}"
    return Parts(
        verdict=f"{model}: {summary}",
        summary=summary,
        tone=tone(report.findings, colour),
        model=model,
        subtitle=_subtitle(report),
        tables=tuple(table_part(t, report.meta) for t in report.tables),
        findings=finding_parts(report.findings),
        init=tuple(_init(i) for i in report.init),
        notes=tuple(spans(n) for n in report.notes),
        versions=tuple(f"{visible(k)} {visible(v)}" for k, v in sorted(report.versions.items())),
    )


def _well(report: Report) -> tuple[str, Tone]:
    """What may be said where nothing needs mending: no more than was judged."""
    if not report.tables:
        return "nothing to judge", "info"
    if _unseen_role(report.tables):
        return "tie not judged", "info"
    if report.meta:
        return "structure healthy, values not seen", "good"
    return "healthy", "good"


def _unseen_role(tables: tuple[Table, ...]) -> str:
    """The role in which no table at all was read: the tie may lie in what this pass did not return or was not given."""
    if not any(t.readouts for t in tables):
        return "readout"
    return "" if any(t.lookups for t in tables) else "lookup"


def _tie(tables: tuple[Table, ...]) -> str:
    if not tables:
        return "no vocabulary table seen"
    if unseen := _unseen_role(tables):
        return f"no {unseen} seen"
    tied = sum(t.tied for t in tables)
    states = dict.fromkeys(t.state for t in tables)
    if tied == len(tables):
        detail = ["aliased"] if "aliased" in states else []
        detail += [f"{tied} tables"] if tied > 1 else []
        return "tied" + (f" ({', '.join(detail)})" if detail else "")
    if tied:
        return f"tied ({tied} of {len(tables)} tables)"
    if set(states) == {"unknown"}:
        return "tie unknown"
    detail = [s for s in states if s != "untied"]
    return "not tied" + (f" ({', '.join(detail)})" if detail else "")


def _subtitle(report: Report) -> str:
    words = [visible(report.framework), plural(report.parameters, "parameter")]
    return ", ".join([*words, "on meta: shapes without values"] if report.meta else words)


def _init(init: TableInit) -> InitPart:
    how = [init.mode, *([plural(init.rounds, "measured round")] if init.rounds else []), f"seed {init.seed}"]
    how += [] if init.settled else ["not settled within 2 %"]
    how += [] if init.written else ["plan alone: nothing was written"]
    logits = f"{known(init.predicted_logit_std)} predicted, {known(init.measured_logit_std)} measured"
    read_out = init.predicted_logit_std is not None or init.measured_logit_std is not None
    rows = [
        Row("mode", (", ".join(how),)),
        Row("std", (f"{known(init.std_before)} before, {number(init.std)} after",)),
    ]
    rows += [Row("logit std", (logits,))] if read_out else []  # a lookup alone makes no logits
    rows += [Row("zeroed biases", joined(init.biases))] if init.biases else []
    rows += [Row("zero rows", (ids(init.zero_rows),))] if init.zero_rows else []
    return InitPart(name(init.name), tuple(rows))
