"""What `tiebeam.advise` says, for a terminal, as Markdown, as JSON and as a page: one wording for all of them."""

import json
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from tiebeam.core.advising.advice import SCHEMA_VERSION, Advice, Counted, Sizes
from tiebeam.reports import chart as charts
from tiebeam.reports.html import document, panel, rows_table
from tiebeam.reports.jsontext import portable
from tiebeam.reports.markdown import prose, spans_of
from tiebeam.reports.markup import Markup, element
from tiebeam.reports.numbers import count, number, percent, size
from tiebeam.reports.page import Page
from tiebeam.reports.pieces import Row
from tiebeam.reports.strings import spans, visible
from tiebeam.reports.text import page_for

_TONES = {"tie": "good", "untie": "good", "either": "info", "nothing to tie": "info", "cannot tie": "warning"}
_COLORS = {"good": "green", "info": "blue", "warning": "yellow"}
_HOW = {
    "built": "built without memory for its weights, and counted",
    "seen": "in the model, by what one pass of it does",
    "file": "by the headers of the files",
    "given": "by the sizes that were given",
    "formula": "by formula",
}
_NARROW = 60
CURVE = ("width", "layers", "tied", "untied", "saved", "share")


@dataclass(frozen=True, slots=True)
class _Words:
    """An advice in words."""

    verdict: str
    tone: str
    model: str
    reason: str
    rows: tuple[Row, ...]
    evidence: tuple[Row, ...]
    curve: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]


def to_text(advice: Advice, *, width: int | None = None, color: bool | None = None, encoding: str | None = None) -> str:
    """Lay an advice out for a terminal or a pipe.

    Args:
        advice: What was weighed.
        width, color, encoding: As for a report's `to_text`.
    """
    page, said = page_for(width=width, color=color, encoding=encoding), _words(advice)
    page.line(page.text(said.verdict, f"bold {_COLORS[said.tone]}"))
    page.line(page.text(said.reason))
    page.gap()
    _write(page, said.rows)
    if said.evidence:
        page.gap()
        page.line(page.text("what is known", "bold"))
        _write(page, said.evidence)
    if said.curve:
        page.gap()
        page.line(page.text("at other sizes, width and depth together", "bold"))
        for row in (CURVE, *said.curve):
            page.line(page.text("  " + _columns(row, (CURVE, *said.curve))))
    if said.notes:
        page.gap()
    for note in said.notes:
        page.line(page.text("note: ", "dim"), page.text(note))
    return page.finish()


def _write(page: Page, rows: tuple[Row, ...]) -> None:
    """Labels in a column of their own, or at the head of their lines where the page is narrow."""
    column = max(len(r.label) for r in rows) + 4
    narrow = page.width < _NARROW
    for row in rows:
        label = f"  {row.label}: " if narrow else f"  {row.label}".ljust(column)
        value = "".join(row.value)
        if narrow:
            page.line(page.text(label, "dim"), page.text(value), indent=0)
        else:
            page.line(page.text(value), indent=column, lead=page.text(label, "dim"))


def render(advice: Advice) -> str:
    """What `str(advice)` is: never coloured."""
    return to_text(advice, color=False)


def _columns(row: tuple[str, ...], rows: tuple[tuple[str, ...], ...]) -> str:
    wide = [max(len(r[i]) for r in rows) for i in range(len(row))]
    return "  ".join(cell.rjust(w) for cell, w in zip(row, wide, strict=True))


def to_markdown(advice: Advice) -> str:
    """Write an advice as Markdown."""
    said = _words(advice)
    blocks = [f"# {prose(said.verdict)}", prose(said.reason), _markdown(said.rows)]
    if said.evidence:
        blocks += ["## What is known", _markdown(said.evidence)]
    if said.curve:
        lines = [" | ".join(row) for row in (CURVE, ("---:",) * len(CURVE), *said.curve)]
        blocks += ["## At other sizes, width and depth together", "\n".join(f"| {line} |" for line in lines)]
    if said.notes:
        blocks += ["## Notes", "\n".join(f"- {prose(n)}" for n in said.notes)]
    return "\n\n".join(blocks) + "\n"


def _markdown(rows: tuple[Row, ...]) -> str:
    lines = [f"| {r.label} | {spans_of(r.value, bar=True)} |" for r in rows]
    return "\n".join(["| what | value |", "| --- | --- |", *lines])


def to_json(advice: Advice) -> str:
    """Write an advice as JSON: indented ASCII with sorted keys."""
    return json.dumps(portable(advice.to_dict()), indent=2, sort_keys=True, allow_nan=False)


def schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of what `to_json` writes.

    Example:
        >>> schema()["title"]
        'tiebeam advice'
    """
    text = files("tiebeam.reports").joinpath(f"advice-{SCHEMA_VERSION}.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def to_html(advice: Advice) -> str:
    """Write an advice as one self-contained page, the curve drawn."""
    said = _words(advice)
    body = [element("h1", said.model), element("p", said.verdict, class_=f"verdict {said.tone}")]
    body += [element("p", said.reason), panel(rows_table(said.rows))]
    if said.curve:
        points = [(float(p.width), 100 * p.share) for p in advice.curve]
        labels = charts.Labels("width", "share", "% of the untied model")
        drawn = charts.chart({"what tying saves": points}, labels=labels)
        body += [element("h2", "At other sizes, width and depth together"), panel(drawn)]
        body += [element("h2", "In figures"), panel(_cells(said.curve))]
    if said.evidence:
        body += [element("h2", "What is known"), panel(rows_table(said.evidence))]
    if said.notes:
        body += [element("h2", "Notes"), element("ul", *(element("li", n) for n in said.notes))]
    body.append(element("footer", "Written by tiebeam."))
    return document(said.model, element("main", *body))


def _cells(rows: tuple[tuple[str, ...], ...]) -> Markup:
    head = element("tr", *(element("th", title, scope="col") for title in CURVE))
    body = [element("tr", *(element("td", cell, class_="kept") for cell in row)) for row in rows]
    return element("div", element("table", element("thead", head), element("tbody", *body)), class_="tb-scroll")


def _words(advice: Advice) -> _Words:
    counted, model = advice.counted, visible(advice.model)
    verdict = {"tie": "tie", "either": "tie or not, either will do", "untie": "no need to tie"}
    now = {"tied": "tied now", "untied": "untied now", "no-readout": "no readout now", "unknown": ""}[counted.now]
    head = f"{model}: {verdict.get(advice.verdict, advice.verdict)}" + (f" ({now})" if now else "")
    evidence = [Row(e.speaks, spans(f"{e.claim} ({e.scale}; {e.source})")) for e in advice.evidence]
    if advice.practice:
        said = ", ".join(f"{p.tied} of {p.models} from {percent(p.least)} up" for p in advice.practice[:-1])
        rest = advice.practice[-1]
        said = f"by the share that one table is, {said}, {rest.tied} of {rest.models} below"
        evidence.append(Row("practice", (f"public configs that tie: {said}",)))
    return _Words(
        verdict=head,
        tone=_TONES[advice.verdict],
        model=model,
        reason=f"{advice.reason[:1].upper()}{advice.reason[1:]}. Sureness: {advice.sure}.",
        rows=tuple(_rows(advice)),
        evidence=tuple(evidence),
        curve=tuple(
            (
                count(p.width),
                "" if p.layers is None else count(p.layers),
                *map(count, (p.tied, p.untied, p.saved)),
                percent(p.share),
            )
            for p in advice.curve
        ),
        notes=tuple(visible(n) for n in (*counted.notes, *advice.notes)),
    )


def _rows(advice: Advice) -> list[Row]:
    counted, memory, flops, setting = advice.counted, advice.memory, advice.flops, advice.setting
    rows = [
        Row("one table", (f"vocab {count(counted.vocab)} × width {count(counted.width)} = {count(counted.table)}",)),
        Row("parameters", (_three(advice.tied, advice.untied, advice.saved),)),
        Row("saved", (f"{percent(advice.share)} of the untied model",)),
        Row("tables", (_tables(advice),)),
        Row("counted", (_how(counted),)),
    ]
    rows += [Row(dtype, (_held(held),)) for dtype, held in advice.bytes.items()]
    rows += [
        Row("gradients", (f"{_held(memory.gradients)} ({setting.dtype})",)),
        Row(setting.optimizer, (f"{_held(memory.optimizer)} (states in float32)",)),
    ]
    if flops.readout:
        batch = f"{count(setting.batch)} × {count(setting.length)} tokens"
        logits = f"{size(memory.logits)}, {size(memory.logits_training)} in training"
        share = "" if flops.readout_share is None else f", {percent(flops.readout_share)} of a forward pass"
        rows += [
            Row("logits", (f"{logits} for {batch}; the same tied or untied",)),
            Row("arithmetic", (f"{number(flops.readout)} a token for the readout{share}; tying saves none of it",)),
        ]
    return rows


def _three(tied: int | None, untied: int | None, saved: int) -> str:
    said = ["unknown" if n is None else count(n) for n in (tied, untied)]
    return f"{said[0]} tied, {said[1]} untied, {count(saved)} saved"


def _held(sizes: Sizes) -> str:
    said = ["unknown" if n is None else size(n) for n in (sizes.tied, sizes.untied)]
    return f"{said[0]} tied, {said[1]} untied, {size(sizes.saved)} saved"


def _tables(advice: Advice) -> str:
    shares = {name: percent(share) for name, share in advice.tables.items()}
    return f"{shares['tied']} of the tied model, {shares['untied']} of the untied one"


def _how(counted: Counted) -> str:
    return _HOW[counted.how] + (f": {counted.formula}" if counted.formula else "")
