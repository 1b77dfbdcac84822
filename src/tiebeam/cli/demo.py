"""The demo on a terminal: progress bars while two models train, a table, a page with both curves."""

import math
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Column, Table
from rich.text import Text

from tiebeam.cli.output import write_text
from tiebeam.errors import BackendError

if TYPE_CHECKING:
    from tiebeam.core.report import Report
    from tiebeam.experiments.demo.result import DemoEvent, DemoResult

MISTAKE, MENDED = "as built", "after tiebeam.initialize"
_WRITES = 160  # characters of a sample on the terminal


def show_demo(out: Path, *, console: Console | None = None, steps: int | None = None, **sizes: Any) -> "DemoResult":
    """Run the demo, show its progress, and write its page.

    Args:
        out: The HTML file.
        console: Where to show; by default standard output.
        steps: Training steps of each model; None is the demo's own number.
        sizes: Any field of the demo's settings, such as `vocab` and `seed`.

    Raises:
        BackendError: torch or tokenizers is missing.
        TargetError: The page cannot be written.
    """
    console = console or Console(highlight=False)
    result = _run(console, steps, sizes)
    console.print(_findings(result.mistake.report))
    console.print(closing_table(result))
    console.print(_sentence(result))
    for label, run in ((MISTAKE, result.mistake), (MENDED, result.mended)):
        console.print(Text(f"\n{label}, after {len(run.curve.train)} steps:", style="bold"))
        console.print(Text(_shortened(run.sample)))
    write_text(out, page(result))
    console.print(Text(f"\nreport with both loss curves: {out.resolve()}"), soft_wrap=True)
    return result


def _run(console: Console, steps: int | None, sizes: dict[str, Any]) -> "DemoResult":
    missing = [name for name in ("torch", "tokenizers") if find_spec(name) is None]
    if missing:
        raise BackendError(
            "the demo cannot run",
            got=f"no {' and no '.join(missing)}",
            hint="pip install 'tiebeam[demo]'",
        )
    from tiebeam.experiments.demo.run import DemoSettings, run_demo

    with _progress(console) as progress:
        return run_demo(steps=steps, on_event=_Bars(progress), settings=DemoSettings(**sizes))


def _progress(console: Console) -> Progress:
    said = TextColumn("{task.description}", table_column=Column(ratio=1, overflow="fold"))
    return Progress(
        BarColumn(bar_width=12), MofNCompleteColumn(), TimeElapsedColumn(), said, console=console, expand=True
    )


class _Bars:
    """One bar for each stage, made when its first event comes."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._bars: dict[str, TaskID] = {}

    def __call__(self, event: "DemoEvent") -> None:
        from tiebeam.experiments.demo.result import STAGES

        names: dict[str, str] = dict(STAGES)
        doing = names[event.stage]
        if event.stage not in self._bars:
            self._bars[event.stage] = self._progress.add_task(doing, total=event.total)
        detail = event.detail or ("" if event.loss is None else f"loss {event.loss:.2f}")
        bar = self._bars[event.stage]
        self._progress.update(bar, completed=event.done, total=event.total)
        if detail:
            self._progress.update(bar, description=escape(f"{doing}: {detail}"))


def rows(result: "DemoResult") -> list[tuple[str, str, str]]:
    """What differs between the two models: (what, as built, mended), the closing table's body."""
    pairs = (result.mistake, result.mended)
    before, after = ((run.report.tables[0], run.curve) for run in pairs)
    numbers = [
        ("std of the table", before[0].std, after[0].std),
        ("logit std, predicted", before[0].predicted.logit_std, after[0].predicted.logit_std),
        ("first loss, predicted", before[0].predicted.initial_loss, after[0].predicted.initial_loss),
        ("first loss, measured", before[1].initial_loss, after[1].initial_loss),
        (f"loss after {len(before[1].train)} steps", before[1].final_loss, after[1].final_loss),
        ("its perplexity", _perplexity(before[1].final_loss), _perplexity(after[1].final_loss)),
        # Both train at once: neither figure says how fast a training alone would be.
        ("seconds, both trained at once", before[1].seconds, after[1].seconds),
    ]
    return [(what, _number(a), _number(b)) for what, a, b in numbers]


def closing_table(result: "DemoResult") -> Table:
    """The table that the demo ends with."""
    table = Table("", MISTAKE, MENDED, title=f"ln V = {result.log_vocab:.2f} nats for {result.vocab:,} tokens")
    for column in table.columns[1:]:
        column.justify = "right"
    for row in rows(result):
        table.add_row(*row)
    return table


def page(result: "DemoResult") -> str:
    """The HTML page: both loss curves, the closing table, samples, and the report of the mistake."""
    from tiebeam.reports.html import to_html

    samples = [("", f"continues {result.prompt!r}")]
    samples += [(MISTAKE, result.mistake.sample), (MENDED, result.mended.sample)]
    extra: list[tuple[str, str | Sequence[Sequence[str]]]] = [
        ("In short", _sentence(result)),
        ("What differs", [("", MISTAKE, MENDED), *rows(result)]),
        ("What they write", samples),
    ]
    return to_html(
        result.mistake.report,
        curves={MISTAKE: result.mistake.curve.validation, MENDED: result.mended.curve.validation},
        title="the demo",
        extra=extra,
        log_vocab=result.log_vocab,
    )


def _sentence(result: "DemoResult") -> str:
    steps = len(result.mistake.curve.train)
    caught = result.caught_up_at
    if caught is None:
        return f"In {steps} steps the mended model did not reach the loss that the other ended with."
    if caught == 0:
        return f"The mended model starts below the loss that the other reached after {steps} steps."
    return f"The mended model reached after {caught} steps the loss that the other reached after {steps}."


def _findings(report: "Report") -> Text:
    text = Text("\n")
    for finding in (f for f in report.findings if f.severity != "info"):
        style = "bold red" if finding.severity == "error" else "bold"
        text.append(f"{finding.severity} {finding.code}", style=style)
        text.append(f" at {finding.where or 'the model'}: {finding.message}\n")
        text.append(f"    {finding.fix}\n" if finding.fix else "", style="cyan")
    return text


def _number(value: float | None) -> str:
    if value is None:
        return "unknown"
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e6 else f"{value:.3g}"  # longer would be cut


def _perplexity(loss: float) -> float:
    return math.exp(loss) if loss < 700 else math.inf  # beyond it no float


def _shortened(sample: str) -> str:
    return sample if len(sample) <= _WRITES else sample[:_WRITES] + " ..."
