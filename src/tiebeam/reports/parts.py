"""What a report says, worded once for every renderer: the same figures in all of them."""

from tiebeam.core.facts import Table
from tiebeam.core.report import Finding, Report, TableInit
from tiebeam.reports.numbers import count, known, number
from tiebeam.reports.pieces import FindingPart, InitPart, Parts, Row, Tone
from tiebeam.reports.strings import joined, name, program, spans, visible
from tiebeam.reports.tables import table_part

SEVERITIES = ("error", "warning", "info")


def parts(report: Report) -> Parts:
    """Word a report.

    Example:
        >>> parts(Report(model="Tiny", framework="torch")).verdict
        'Tiny: no vocabulary table, healthy'
    """
    model = visible(report.model)
    summary = f"{_tie(report.tables)}, {_health(report)}"
    return Parts(
        verdict=f"{model}: {summary}",
        summary=summary,
        tone=_tone(report),
        model=model,
        subtitle=_subtitle(report),
        tables=tuple(table_part(t, report.meta) for t in report.tables),
        findings=tuple(_finding(f) for f in sorted(report.findings, key=_rank)),
        init=tuple(_init(i) for i in report.init),
        notes=tuple(spans(n) for n in report.notes),
        versions=tuple(f"{visible(k)} {visible(v)}" for k, v in sorted(report.versions.items())),
    )


def _tie(tables: tuple[Table, ...]) -> str:
    if not tables:
        return "no vocabulary table"
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


def _health(report: Report) -> str:
    numbers = {s: sum(f.severity == s for f in report.findings) for s in SEVERITIES}
    listed = ", ".join(plural(n, s) for s, n in numbers.items() if n)
    if numbers["error"] or numbers["warning"]:
        return f"{plural(len(report.findings), 'finding')} ({listed})"
    return "healthy" + (f" ({listed})" if listed else "")


def _tone(report: Report) -> Tone:
    severities = {f.severity for f in report.findings}
    if "error" in severities:
        return "error"
    return "warning" if "warning" in severities else "good"


def plural(amount: int, noun: str) -> str:
    """Write an amount with its noun.

    Example:
        >>> plural(2, "finding")
        '2 findings'
    """
    return f"{count(amount)} {noun}{'' if amount == 1 or noun == 'info' else 's'}"


def _subtitle(report: Report) -> str:
    words = [visible(report.framework), plural(report.parameters, "parameter")]
    return ", ".join([*words, "on meta: shapes without values"] if report.meta else words)


def _rank(finding: Finding) -> int:
    return SEVERITIES.index(finding.severity)


def _finding(finding: Finding) -> FindingPart:
    return FindingPart(
        severity=finding.severity,
        code=visible(finding.code),
        where=name(finding.where) if finding.where else None,
        message=spans(finding.message),
        fix=program(finding.fix),
        hint=spans(finding.hint),
    )


def _init(init: TableInit) -> InitPart:
    how = [init.mode, *([plural(init.rounds, "measured round")] if init.rounds else []), f"seed {init.seed}"]
    how += [] if init.settled else ["not settled within 2 %"]
    how += [] if init.written else ["plan alone: nothing was written"]
    logits = f"{known(init.predicted_logit_std)} predicted, {known(init.measured_logit_std)} measured"
    rows = [
        Row("mode", (", ".join(how),)),
        Row("std", (f"{known(init.std_before)} before, {number(init.std)} after",)),
        Row("logit std", (logits,)),
    ]
    rows += [Row("zeroed biases", joined(init.biases))] if init.biases else []
    rows += [Row("zero rows", (", ".join(map(count, init.zero_rows)),))] if init.zero_rows else []
    return InitPart(name(init.name), tuple(rows))
