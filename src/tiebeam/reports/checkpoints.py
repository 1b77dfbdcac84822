"""What a report on a checkpoint says, in words."""

from tiebeam.core.checkpoint import CheckpointReport, Stored
from tiebeam.reports.numbers import count, number
from tiebeam.reports.pieces import Parts, Row, Section
from tiebeam.reports.strings import joined, name, spans, visible
from tiebeam.reports.verdicts import finding_parts, health, plural, tone

_STATES = {
    "omitted": "tied: no readout is stored, and config, family or file say that the table is it",
    "equal": "both ends are stored, bit for bit the same",
    "equal-after-cast": "both ends are stored, the one is the other rounded",
    "transposed": "both ends are stored, the one is the other transposed",
    "sliced": "both ends are stored, equal as far as the shorter goes",
    "different": "two tables",
    "no-readout": "no readout is stored, and nothing says that the table is it",
    "no-table": "no vocabulary table is stored",
    "unknown": "could not be told",
}
_SAID = {True: "tied", False: "not tied", None: "nothing, or nothing clear"}
_BUILT = {True: "one table", False: "two tables", None: "unknown"}
_FILES = 6


def checkpoint_parts(report: CheckpointReport) -> Parts:
    """Word a report on a checkpoint.

    Example:
        >>> checkpoint_parts(CheckpointReport(path="m.gguf", format="gguf", state="omitted")).verdict
        'm.gguf: omitted, healthy'
    """
    model = visible(report.path)
    summary = f"{report.state}, {health(report.findings)}"
    return Parts(
        verdict=f"{model}: {summary}",
        summary=summary,
        tone=tone(report.findings),
        model=model,
        subtitle=_subtitle(report),
        tables=(),
        findings=finding_parts(report.findings),
        init=(),
        notes=tuple(spans(n) for n in report.notes),
        versions=(),
        sections=(Section("Checkpoint", tuple(_rows(report))),),
    )


def _subtitle(report: CheckpointReport) -> str:
    words = [visible(report.format), plural(report.tensors, "tensor")]
    words += [plural(report.elements, "element")] if report.elements is not None else []
    words += [plural(report.nbytes, "byte")] if report.nbytes is not None else []
    return ", ".join([*words, plural(len(report.files), "file")])


def _rows(report: CheckpointReport) -> list[Row]:
    rows = [Row("state", (f"{report.state}: {_STATES[report.state]}",))]
    for label, wanted in (("table", report.table), ("readout", report.readout)):
        stored = next((e for e in report.ends if e.name == wanted), None)
        rows.append(Row(label, ("none",) if wanted is None else (name(wanted), _size(stored))))
    rows += [
        Row("the config says", (_SAID[report.declared],)),
        Row("a model built from it", (_BUILT[report.effective],)),
    ]
    rows += [Row("vocabulary", (plural(report.vocab, "token"),))] if report.vocab is not None else []
    rows += [Row("they differ by", (_gap(report),))] if report.gap is not None else []
    more = len(report.files) - _FILES
    files = joined(report.files[:_FILES])
    return [*rows, Row("files", (*files, f" and {more} more") if more > 0 else files)]


def _size(stored: Stored | None) -> str:
    if stored is None or stored.shape is None:
        return ", size unknown: the file is not there"
    shape = " × ".join(map(count, stored.shape))
    std = "" if stored.std is None else f", std {number(stored.std)}"
    return f", {shape}, {visible(stored.dtype)}, {plural(stored.nbytes, 'byte')}{std}"


def _gap(report: CheckpointReport) -> str:
    gap = report.gap
    if gap is None:
        return ""
    rows = f"{count(gap.rows_differing)} of {count(gap.rows_seen)} rows looked at"
    return (
        f"relative distance {number(gap.distance)}, at most {number(gap.largest)}, in {rows} ({count(gap.rows)} in all)"
    )
