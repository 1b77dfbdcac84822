"""The report as Markdown (GitHub's dialect), for issues, pull requests and pages."""

import re

from tiebeam.core.checkpoint import CheckpointReport
from tiebeam.core.report import Report
from tiebeam.reports.parts import parts
from tiebeam.reports.pieces import FindingPart, Row, TablePart
from tiebeam.reports.strings import Code, Spans

# A lone underscore inside a word is not emphasis, so parameter paths in prose stay readable.
_SPECIAL = re.compile(r"[\\`*\[\]<>|~]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
_BLOCK = re.compile(r"^(?:[#+=-]|\d+[.)])")  # what opens a heading or a list at the start of a paragraph


def to_markdown(report: Report | CheckpointReport) -> str:
    """Write a report as Markdown.

    Args:
        report: What was seen. Names and messages are escaped: they form no markup of their own.

    Returns:
        Text that ends with a line break.

    Example:
        >>> print(to_markdown(Report(model="Tiny", framework="torch", parameters=8)))
        # Tiny: no vocabulary table seen, nothing to judge
        <BLANKLINE>
        torch, 8 parameters
        <BLANKLINE>
    """
    said = parts(report)
    blocks = [f"# {prose(said.verdict)}", prose(said.subtitle)]
    blocks += [_rows(section.rows) for section in said.sections]
    for table in said.tables:
        blocks += _table(table)
    blocks += ["## Findings"] if said.findings else []
    for finding in said.findings:
        blocks += _finding(finding)
    for init in said.init:
        blocks += [f"## Initialisation of {_code(init.name)}", _rows(init.rows)]
    if said.notes:
        blocks += ["## Notes", "\n".join(f"- {spans_of(n)}" for n in said.notes)]
    if said.versions:
        blocks.append(f"Seen with {prose(', '.join(said.versions))}.")
    return "\n\n".join(blocks) + "\n"


def _table(part: TablePart) -> list[str]:
    return [f"## Table {_code(part.name)}", prose(part.flow_line), _rows(part.rows)]


def _rows(rows: tuple[Row, ...]) -> str:
    # A bar would end the cell even inside a code span, unless escaped.
    lines = [f"| {r.label} | {spans_of(r.value, bar=True)} |" for r in rows]
    return "\n".join(["| what | value |", "| --- | --- |", *lines])


def _finding(finding: FindingPart) -> list[str]:
    where = f" at {_code(finding.where)}" if finding.where else ""
    blocks = [f"### {finding.severity}: {prose(finding.code)}{where}", _paragraph(finding.message)]
    if finding.fix:
        fence = _fence(finding.fix, least=3)
        blocks.append(f"{fence}python\n{finding.fix}\n{fence}")
    return [*blocks, f"Hint: {spans_of(finding.hint)}"] if finding.hint else blocks


def spans_of(spans: Spans, bar: bool = False) -> str:
    """Prose with its code spans."""
    return "".join(_code(s, bar) if isinstance(s, Code) else prose(s) for s in spans)


def _paragraph(spans: Spans) -> str:
    return _BLOCK.sub(lambda m: f"{m[0][:-1]}\\{m[0][-1]}", spans_of(spans))


def prose(text: str) -> str:
    """Text that forms no markup."""
    return _SPECIAL.sub(lambda m: f"\\{m[0]}", text.replace("&", "&amp;"))


def _code(text: str, bar: bool = False) -> str:
    fence = _fence(text, least=1)
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{pad}{text.replace('|', chr(92) + '|') if bar else text}{pad}{fence}"


def _fence(text: str, least: int) -> str:
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    return "`" * (longest + 1 if longest >= least else least)
