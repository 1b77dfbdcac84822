"""The report as one HTML file: no network, no script, light and dark, each table drawn."""

import math
from collections.abc import Sequence
from importlib.resources import files

from tiebeam.core.checkpoint import CheckpointReport
from tiebeam.core.report import Report
from tiebeam.reports import beam
from tiebeam.reports import chart as charts
from tiebeam.reports.markup import Markup, element, joined, phrase
from tiebeam.reports.parts import parts
from tiebeam.reports.pieces import FindingPart, InitPart, Row, TablePart

# Names are anyone's: should an escape ever be missed, the browser still loads and runs nothing.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"

Extra = tuple[str, str | Sequence[Sequence[str]]]


def to_html(
    report: Report | CheckpointReport,
    *,
    curves: charts.Curves | None = None,
    title: str | None = None,
    extra: Sequence[Extra] = (),
    log_vocab: float | None = None,
) -> str:
    """Write a report as a self-contained page.

    Args:
        report: What was seen.
        curves: Loss curves to draw, label to points (step, loss). Unit of a loss: nats.
        title: Of the page; by default the model's name.
        extra: More sections, each a heading and either prose or rows of cells, the first row the header.
        log_vocab: ln V for the curves, by default that of the first tied table. Unit: nats.

    Returns:
        A whole document, in characters that UTF-8 can carry.

    Example:
        >>> to_html(Report(model="<Tiny>", framework="torch")).count("&lt;Tiny&gt;")
        2
    """
    said = parts(report)
    heading, verdict = (said.model, said.summary) if title is None else (title, said.verdict)
    body = [element("h1", heading), element("p", verdict, class_=f"verdict {said.tone}")]
    body.append(element("p", said.subtitle, class_="soft"))
    if curves is not None:
        known = _log_vocab(report) if log_vocab is None else log_vocab
        body += [element("h2", "Loss curves"), panel(charts.chart(curves, known))]
    body += [_extra(*section) for section in extra]
    body += [panel(rows_table(section.rows)) for section in said.sections]
    body += [_table(t) for t in said.tables]
    body += [element("h2", "Findings")] if said.findings else []
    body += [_finding(f) for f in said.findings]
    body += [_init(i) for i in said.init]
    if said.notes:
        body += [element("h2", "Notes"), element("ul", *(element("li", phrase(n)) for n in said.notes))]
    seen = f", with {', '.join(said.versions)}" if said.versions else ""
    body.append(element("footer", f"Written by tiebeam{seen}."))
    return document(heading, element("main", *body))


def document(title: str, body: Markup, *, pictures: bool = False) -> str:
    """A whole page around a body: no network, no script; `pictures` may stand in the page itself."""
    policy = f"{_POLICY}; img-src data:" if pictures else _POLICY
    css = files("tiebeam.reports").joinpath("page.css").read_text(encoding="utf-8")
    head = joined(
        Markup('<meta charset="utf-8">'),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{policy}">'),
        Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        element("title", f"tiebeam: {title}"),
        element("style", Markup(css + beam.CSS + charts.CSS)),
    )
    page = element("html", element("head", head), "\n", element("body", body), lang="en")
    return f"<!DOCTYPE html>\n{page}\n"


def panel(*children: str, style: str = "") -> Markup:
    """A framed section."""
    return element("section", *children, class_=f"panel {style}".strip())


def _table(part: TablePart) -> Markup:
    flow = element("p", part.flow_line, class_="flow")
    drawn = panel(beam.roof(part.table), flow, rows_table(part.rows))
    return joined(element("h2", "Table ", phrase((part.name,))), drawn)


def rows_table(rows: tuple[Row, ...]) -> Markup:
    """Labels and values as a table."""
    lines = [element("tr", element("th", r.label, scope="row"), element("td", phrase(r.value))) for r in rows]
    return element("div", element("table", element("tbody", *lines)), class_="tb-scroll")


def _finding(finding: FindingPart) -> Markup:
    return panel(element("h3", *finding_head(finding)), *finding_body(finding), style=f"finding {finding.severity}")


def finding_head(finding: FindingPart) -> tuple[Markup, ...]:
    """Severity, code and place."""
    where = joined(" at ", phrase((finding.where,))) if finding.where else Markup()
    return (element("span", finding.severity, class_=finding.severity), joined(" ", finding.code), where)


def finding_body(finding: FindingPart) -> list[Markup]:
    """Message, fix and hint."""
    said = [element("p", phrase(finding.message))]
    said += [element("pre", element("code", finding.fix))] if finding.fix else []
    return said + ([element("p", "Hint: ", phrase(finding.hint))] if finding.hint else [])


def _init(part: InitPart) -> Markup:
    return joined(element("h2", "Initialisation of ", phrase((part.name,))), panel(rows_table(part.rows)))


def _extra(heading: str, content: str | Sequence[Sequence[str]]) -> Markup:
    if isinstance(content, str):
        return joined(element("h2", heading), panel(element("p", content)))
    titles, *rows = content
    head = element("thead", element("tr", *(element("th", t, scope="col") for t in titles)))
    body = element("tbody", *(_cells(row) for row in rows))
    table = element("div", element("table", head, body), class_="tb-scroll")
    return joined(element("h2", heading), panel(table))


def _cells(row: Sequence[str]) -> Markup:
    return element("tr", element("th", row[0], scope="row"), *(element("td", c, class_="kept") for c in row[1:]))


def _log_vocab(report: Report | CheckpointReport) -> float | None:
    if isinstance(report, CheckpointReport):
        return None
    seen = (t.predicted.log_vocab for t in report.tables if t.readouts)
    return next((v for v in seen if math.isfinite(v)), None)
