"""A measurement, for people and programs: its figures are few enough for one table."""

import json
from importlib.resources import files
from typing import Any

from tiebeam.core.measuring.measurement import SCHEMA_VERSION, Measurement, figures
from tiebeam.reports.html import document, panel, rows_table
from tiebeam.reports.jsontext import portable
from tiebeam.reports.markdown import prose, spans_of
from tiebeam.reports.markup import element, phrase
from tiebeam.reports.pieces import Row
from tiebeam.reports.strings import spans, visible
from tiebeam.reports.text import page_for

_WORDS = {"torch": "PyTorch", "jax": "JAX", "keras": "Keras"}


def to_text(found: Measurement, *, width: int | None = None, color: bool | None = None) -> str:
    """Lay a measurement out for a terminal or a pipe.

    Args:
        width: Columns, at least 20; by default those of the terminal.
        color: Whether to emit ANSI colours; by default where standard output is a terminal that wants them.
    """
    page = page_for(width=width, color=color)
    page.line(page.text(visible(found.model), "bold"), page.text(f" ({found.framework})", "dim"))
    rows = figures(found)
    column = max(len(label) for label, _ in rows) + 4
    for label, value in rows:
        page.line(page.text(visible(value)), indent=column, lead=page.text(f"  {visible(label)}".ljust(column), "dim"))
    for note in found.notes:
        page.line(page.text("note: ", "dim"), page.text(visible(note)), indent=2)
    return page.finish()


def to_markdown(found: Measurement) -> str:
    """Write a measurement as Markdown that ends with a line break."""
    rows = [f"| {prose(label)} | {prose(value)} |" for label, value in figures(found)]
    blocks = [f"# {prose(_title(found))}", "\n".join(["| what | value |", "| --- | --- |", *rows])]
    if found.notes:
        blocks += ["## Notes", "\n".join(f"- {spans_of(spans(n))}" for n in found.notes)]
    return "\n\n".join(blocks) + "\n"


def to_json(found: Measurement) -> str:
    """Write a measurement as indented JSON with sorted keys; NaN and infinities are null."""
    return json.dumps(portable(found.to_dict()), indent=2, sort_keys=True, allow_nan=False)


def schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of what `to_json` writes.

    Example:
        >>> schema()["title"]
        'tiebeam measurement'
    """
    text = files("tiebeam.reports").joinpath(f"measurement-{SCHEMA_VERSION}.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def to_html(found: Measurement) -> str:
    """Write a measurement as a self-contained page."""
    rows = tuple(Row(label, (value,)) for label, value in figures(found))
    body = [element("h1", _title(found)), panel(rows_table(rows))]
    if found.notes:
        body += [element("h2", "Notes"), element("ul", *(element("li", phrase(spans(n))) for n in found.notes))]
    body.append(element("footer", "Written by tiebeam."))
    return document(found.model, element("main", *body))


def _title(found: Measurement) -> str:
    return f"{found.model}: one batch, {_WORDS.get(found.framework, found.framework)}"
