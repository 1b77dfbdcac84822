"""The report on a terminal: verdict, tables, findings, initialisation, notes."""

import os
import shutil
import sys

from rich.text import Text

from tiebeam.core.checkpoint import CheckpointReport
from tiebeam.core.report import Report
from tiebeam.reports.page import Page
from tiebeam.reports.parts import parts
from tiebeam.reports.pieces import FindingPart, InitPart, Row, Step, TablePart
from tiebeam.reports.strings import Code, Spans

_MOST = 110  # columns: longer lines of prose are hard to read
_LEAST = 20
_STACKED = 60  # below it, labels stand above their values
_NAMES = 6  # as many names as a table shows here; JSON, Markdown and HTML list all
_TONES = {"good": "green", "warning": "yellow", "error": "red", "info": "blue"}


def render(report: Report | CheckpointReport) -> str:
    """What `str(report)` is: never coloured, since a string may go anywhere."""
    return to_text(report, color=False)


def to_text(
    report: Report | CheckpointReport,
    *,
    width: int | None = None,
    color: bool | None = None,
    encoding: str | None = None,
) -> str:
    """Lay a report out for a terminal or a pipe.

    Args:
        report: What was seen.
        width: Columns, at least 20, that no line exceeds. By default those of the terminal, or 80; then the
            lines of a fix are left whole, to be copied.
        color: Whether to emit ANSI colours; by default where standard output is a terminal and `NO_COLOR`
            is not set.
        encoding: Of the place it will be written to, by default standard output's. Where it lacks arrows
            they are spelt in ASCII, and other characters it lacks become backslash escapes.

    Returns:
        Lines without trailing blanks, no line break after the last.

    Example:
        >>> print(to_text(Report(model="Tiny", framework="torch", parameters=8), width=60, color=False))
        Tiny: no vocabulary table seen, nothing to judge
        torch, 8 parameters
    """
    page = page_for(width=width, color=color, encoding=encoding)
    said = parts(report)
    page.line(page.text(said.verdict, f"bold {_TONES[said.tone]}"))
    page.line(page.text(said.subtitle, "dim"))
    for section in said.sections:
        page.gap()
        _rows(page, section.rows)
    for table in said.tables:
        _table(page, table)
    for finding in said.findings:
        _finding(page, finding)
    for init in said.init:
        _init(page, init)
    if said.notes:
        page.gap()
    for note in said.notes:
        page.line(page.text("note: ", "dim"), *_spans(page, note))
    return page.finish()


def page_for(*, width: int | None = None, color: bool | None = None, encoding: str | None = None) -> Page:
    """An empty page; see `to_text` for what is taken where nothing is said."""
    return Page(
        width=max(width or min(shutil.get_terminal_size((80, 24)).columns, _MOST), _LEAST),
        color=_wants_color() if color is None else color,
        encoding=encoding or getattr(sys.stdout, "encoding", None) or "utf-8",
        folds_code=width is not None,
    )


def _wants_color() -> bool:
    terminal = sys.stdout is not None and sys.stdout.isatty()
    return terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _table(page: Page, part: TablePart) -> None:
    page.gap()
    page.line(page.text("table ", "bold"), page.text(part.name, "bold cyan"))
    names, *others = part.rows
    flow = Row("flow", _links(part.flow))
    _rows(page, (Row("names", _shortened(names.value)), *others[:2], flow, *others[2:]))


def _links(flow: tuple[Step, ...]) -> Spans:
    return tuple(f"→ {step.text}" if i else step.text for i, step in enumerate(flow))


def _shortened(names: Spans) -> Spans:
    kept = names[: 2 * _NAMES - 1]  # names and the commas between them
    hidden = (len(names) - len(kept)) // 2
    return (*kept, f" and {hidden} more") if hidden else kept


def _rows(page: Page, rows: tuple[Row, ...]) -> None:
    """Labels in a column of their own, or at the head of their paragraphs where the page is narrow."""
    column = max(len(r.label) for r in rows) + 4
    for row in rows:
        pieces = _spans(page, row.value)
        if page.width < _STACKED:
            pieces[0] = page.text(f"{row.label}: ", "dim").append_text(pieces[0])
            indent, lead = 4, Text("  ")
        else:
            indent, lead = column, page.text(f"  {row.label}".ljust(column), "dim")
        write = page.chain if row.label == "flow" else page.line
        write(*pieces, indent=indent, lead=lead)


def _spans(page: Page, spans: Spans) -> list[Text]:
    return [page.text(s, "cyan" if isinstance(s, Code) else "") for s in spans]


def _finding(page: Page, finding: FindingPart) -> None:
    page.gap()
    head = [page.text(finding.severity, f"bold {_TONES[finding.severity]}")]
    head.append(page.text(f" {finding.code}", "bold"))
    head += [page.text(" at "), page.text(finding.where, "cyan")] if finding.where else []
    page.line(*head)
    page.line(*_spans(page, finding.message), indent=2)
    if finding.fix:
        page.line(page.text("fix:", "dim"), indent=2)
        page.code(finding.fix, indent=4)
    if finding.hint:
        page.line(page.text("hint: ", "dim"), *_spans(page, finding.hint), indent=2)


def _init(page: Page, part: InitPart) -> None:
    page.gap()
    page.line(page.text("init ", "bold"), page.text(part.name, "bold cyan"))
    _rows(page, part.rows)
