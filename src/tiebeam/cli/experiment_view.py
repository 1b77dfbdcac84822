"""What the experiment commands print: the catalogue, progress, tables, where pictures went."""

import json
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table as Grid

from tiebeam.cli.output import Format, note
from tiebeam.errors import RangeError
from tiebeam.experiments.catalog import EXPERIMENTS
from tiebeam.experiments.export import to_csv
from tiebeam.experiments.records import Run, Sweep
from tiebeam.experiments.runner import Progress as Status
from tiebeam.experiments.spec import Experiment
from tiebeam.experiments.store import Store
from tiebeam.experiments.sweep import last_runs
from tiebeam.experiments.tables import Table
from tiebeam.reports.jsontext import portable
from tiebeam.reports.strings import visible

_SMOKE = "profile smoke: shows that it runs, and nothing else"
_WIDEST = 1000  # columns, to measure in
_TELLING = ("width", "rate", "task", "tie", "clip", "weight", "seed")  # parts of a config, shown with their names
_NAMED = ("scheme", "variant", "groups", "readout", "grid", "model")  # and without


def catalogue(*, as_json: bool) -> str:
    """Every experiment of the catalogue."""
    if as_json:
        return _json([_described(e) for e in EXPERIMENTS.values()])
    lines, width = [], Console().width
    for e in EXPERIMENTS.values():
        sizes = ", ".join(f"{profile} {len(e.runs(e.profiles[profile]))} runs" for profile in e.profiles)
        lines.append(e.name)
        for text in (e.claim, f"after {e.source}", sizes):
            lines += textwrap.wrap(text, width, initial_indent="    ", subsequent_indent="    ")
    return "\n".join(lines)


def _described(e: Experiment) -> dict[str, Any]:
    profiles = {name: {"runs": len(e.runs(s)), "settings": dict(s)} for name, s in e.profiles.items()}
    return {"name": e.name, "claim": e.claim, "source": e.source, "needs": e.needs, "profiles": profiles}


def changes(
    experiment: Experiment, profile: str, given: Sequence[str], width: list[int] | None, vocab: int | None
) -> dict[str, Any]:
    """The settings that a command line changes.

    Raises:
        RangeError: One is no `KEY=VALUE`, or the experiment has no width or vocabulary to set.
    """
    found: dict[str, Any] = {}
    for each in given:
        key, equals, value = each.partition("=")
        if not equals:
            raise RangeError("--set", got=each, expected="KEY=VALUE")
        try:
            found[key] = json.loads(value)
        except json.JSONDecodeError as error:
            if value.lstrip()[:1] in ("[", "{", '"'):  # meant as JSON: most often a shell has taken the quotes
                raise RangeError(
                    f"--set {key}",
                    got=value,
                    expected="JSON, or a bare word",
                    hint=f'quote the whole, and the words in it: --set \'{key}=["C", "D"]\'',
                ) from error
            found[key] = value  # a bare word is a string
    there = experiment.profiles.get(profile, {})
    if width is not None:
        found["widths" if "widths" in there else "width"] = width if "widths" in there else width[-1]
    if vocab is not None:
        found["vocab"] = vocab
    return found


@contextmanager
def progress(experiment: Experiment) -> Iterator[Callable[[Status], None]]:
    """Bars on standard error: one for the sweep, one for each run that goes on, with its loss."""
    words = TextColumn("{task.description}")
    bars = Progress(
        BarColumn(bar_width=16), MofNCompleteColumn(), TimeElapsedColumn(), words, console=Console(stderr=True)
    )
    with bars:
        whole = bars.add_task(experiment.name, total=None)
        shown: dict[str, TaskID] = {}

        def tell(status: Status) -> None:
            bars.update(whole, completed=status.done, total=status.total)
            going: set[str] = set()
            for config, step, steps, value in status.going:
                label = label_of(config)
                going.add(label)
                if label not in shown:
                    shown[label] = bars.add_task(escape(label), total=steps)
                bars.update(
                    shown[label],
                    completed=step,
                    total=steps,
                    description=escape(f"{label}: {experiment.main} {value:.3f}"),
                )
            for label in [each for each in shown if each not in going]:
                bars.remove_task(shown.pop(label))

        yield tell


def label_of(config: Mapping[str, Any]) -> str:
    """A run in a few words: what differs within a sweep, more or less.

    Example:
        >>> label_of({"scheme": "C", "width": 64, "seed": 1, "data": {}})
        'C width 64 seed 1'
    """
    words = [str(config[name]) for name in _NAMED if name in config]
    return " ".join([*words, *(f"{k} {v}" for k, v in config.items() if k in _TELLING)])


def shown(experiment: Experiment, path: Path, form: Format, counts: Mapping[str, int] | None = None) -> str:
    """What was last asked for, in any format."""
    with Store(path, create=False) as store:
        sweep, runs, missing = last_runs(store, experiment)
    if form is Format.html:
        from tiebeam.experiments.page import to_html

        return to_html(experiment, sweep, runs, missing)
    tables = experiment.tables(runs) if runs else []
    if form is Format.json:
        return _json(_as_dict(experiment, sweep, runs, missing, tables, counts))
    if form is Format.markdown:
        head = [f"# {experiment.name}", experiment.claim, f"After {experiment.source}."]
        left = [_left(missing, len(runs))] if missing else []
        left += [_SMOKE] if sweep.profile == "smoke" else []
        parts = [*head, *left, *(t.to_markdown() for t in tables), f"```text\n{visible(sweep.command)}\n```"]
        return visible("\n\n".join(parts), keep="\n")
    return _as_text(experiment, sweep, missing, len(runs), tables)


def _as_dict(
    experiment: Experiment,
    sweep: Sweep,
    runs: Sequence[Run],
    missing: int,
    tables: Sequence[Table],
    counts: Mapping[str, int] | None,
) -> dict[str, Any]:
    about = {"name": experiment.name, "claim": experiment.claim, "source": experiment.source}
    asked = {"profile": sweep.profile, "command": sweep.command, "missing": missing}
    outcomes = {} if counts is None else {"outcomes": dict(counts)}
    return {**about, **asked, **outcomes, "tables": [t.to_dict() for t in tables], "runs": [r.to_dict() for r in runs]}


def _as_text(experiment: Experiment, sweep: Sweep, missing: int, there: int, tables: Sequence[Table]) -> str:
    width = Console().width

    def wrapped(*texts: str) -> list[str]:
        return [line for text in texts for line in textwrap.wrap(text, width)]

    parts = wrapped(f"{experiment.name}: {experiment.claim}", f"after {experiment.source}")
    parts += wrapped(_left(missing, there)) if missing else []
    parts += wrapped(_SMOKE) if sweep.profile == "smoke" else []
    for table in tables:
        parts += [*wrapped(table.title), _grid(table, width), *wrapped(*table.notes)]
    return visible("\n".join([*parts, visible(sweep.command)]), keep="\n")


def _grid(table: Table, room: int) -> str:
    """Cells whole: where there is no room the heads are stacked, and a grid that is wider still stays so."""
    head, *rows = table.written()
    widths = [max(map(len, (*cells, *name.split()))) for name, *cells in zip(head, *rows, strict=True)]
    for names in (head, [textwrap.fill(name, width) for name, width in zip(head, widths, strict=True)]):
        grid = Grid()
        for i, name in enumerate(names):
            grid.add_column(escape(name), justify="right" if i else "left", no_wrap=True)
        for row in rows:
            grid.add_row(*map(escape, row))
        width = Console(width=_WIDEST).measure(grid).maximum
        if width <= room:
            break
    console = Console(highlight=False, width=width)
    with console.capture() as captured:
        console.print(grid)
    return captured.get().rstrip("\n")


def _left(missing: int, there: int) -> str:
    return f"{missing} of {missing + there} runs are not done yet"


def _runs(number: int) -> str:
    return f"{number} run{'s' * (number != 1)}"


def complain(experiment: Experiment, path: Path, counts: Mapping[str, int]) -> None:
    """Say on standard error what failed or diverged, and what others are at."""
    if counts["diverged"]:
        note(f"{_runs(counts['diverged'])} diverged")
    with Store(path) as store:
        asked = set(last_runs(store, experiment)[0].hashes)
        here = [run for run in store.runs(experiment.name) if run.hash in asked]
    if going := sum(run.status == "running" for run in here):
        note(f"{_runs(going)} under way in other processes; what one on another machine left, --reclaim takes over")
    if not counts["failed"]:
        return
    failed = [run for run in here if run.status == "failed"]
    note(f"{_runs(counts['failed'])} failed, and will be tried again by the same command; the last: {failed[-1].error}")


def broken_off(experiment: Experiment, path: Path, configs: Sequence[Mapping[str, Any]]) -> str:
    """Give back what is under way, and say how far it got."""
    with Store(path) as store:
        store.give_back(experiment.name)
        done = sum(store.done(experiment.name, configs))
    return f"\ninterrupted: {done} of {len(configs)} runs are kept in '{path}'; the same command goes on from there"


def plotted(experiment: Experiment, path: Path, folder: Path, *, as_json: bool) -> str:
    """Draw, and name the files."""
    from tiebeam.experiments.figures import save

    with Store(path, create=False) as store:
        _, runs, _ = last_runs(store, experiment)
    files = [str(file) for file in save(experiment.figures(runs) if runs else [], folder, experiment.name)]
    return _json({"files": files}) if as_json else "\n".join(files or ["nothing to draw"])


def exported(experiment: Experiment, path: Path, form: str, *, every: bool) -> str:
    """Runs as CSV or JSON.

    Raises:
        RangeError: Another format was asked for.
    """
    if form not in ("csv", "json"):
        raise RangeError("--format of an export", got=form, expected="csv or json")
    with Store(path, create=False) as store:
        runs = store.runs(experiment.name) if every else last_runs(store, experiment)[1]
    return to_csv(runs) if form == "csv" else _json([run.to_dict() for run in runs]) + "\n"


def _json(data: Any) -> str:
    return json.dumps(portable(data), indent=2, allow_nan=False)
