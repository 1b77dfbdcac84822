"""The report in a notebook: a fragment whose ink is the notebook's own, so that it fits light and dark."""

from tiebeam.core.checkpoint import CheckpointReport
from tiebeam.core.report import Report
from tiebeam.reports import beam
from tiebeam.reports.html import finding_body, finding_head, rows_table
from tiebeam.reports.markup import Markup, element, phrase
from tiebeam.reports.parts import parts
from tiebeam.reports.pieces import FindingPart, TablePart

# Colours that reach a contrast of 4.5 on neither ground alone are kept off the text: borders carry them.
_CSS = """
.tiebeam{font:14px/1.5 system-ui,sans-serif;max-width:50rem}
.tiebeam .tb-verdict{font-weight:650;font-size:1.1em;border-left:5px solid #888;padding-left:.6em}
.tiebeam .good{border-color:#2e9e57}.tiebeam .warning{border-color:#d08a1d}
.tiebeam .error{border-color:#e0483e}.tiebeam .info{border-color:#3d8be0}
.tiebeam details{margin:.4em 0;border-left:5px solid #888;padding-left:.6em}
.tiebeam summary{cursor:pointer}
.tiebeam table{border-collapse:collapse}
.tiebeam th,.tiebeam td{text-align:left;vertical-align:top;padding:.15em 1em .15em 0;font-weight:400}
.tiebeam tr{background:none}
.tiebeam th{opacity:.75}
.tiebeam pre{overflow-x:auto;margin:.4em 0;padding:.5em .7em;background:rgba(128,128,128,.15)}
"""


def to_notebook(report: Report | CheckpointReport) -> str:
    """Write a report as a compact HTML fragment.

    Args:
        report: What was seen.

    Returns:
        One `div` with its own style and no script: the verdict, then tables and findings to be opened;
        errors are open.

    Example:
        >>> to_notebook(Report(model="Tiny", framework="torch")).count("<details")
        0
    """
    said = parts(report)
    body = [element("div", said.verdict, class_=f"tb-verdict {said.tone}"), element("div", said.subtitle)]
    body += [rows_table(section.rows) for section in said.sections]
    body += [_finding(f) for f in said.findings]
    body += [_table(t) for t in said.tables]
    body += [_details(element("summary", "init ", phrase((i.name,))), rows_table(i.rows)) for i in said.init]
    body += [element("div", "note: ", phrase(n)) for n in said.notes]
    return element("div", element("style", Markup(_CSS + beam.CSS)), *body, class_="tiebeam")


def _table(part: TablePart) -> Markup:
    head = element("summary", "table ", phrase((part.name,)), f" {part.size}, {part.state}")
    return _details(head, beam.roof(part.table), rows_table(part.rows))


def _finding(finding: FindingPart) -> Markup:
    head = element("summary", *finding_head(finding))
    return _details(head, *finding_body(finding), style=finding.severity, opened=finding.severity == "error")


def _details(*children: Markup, style: str = "", opened: bool = False) -> Markup:
    return element("details", *children, class_=style, **({"open": "open"} if opened else {}))
