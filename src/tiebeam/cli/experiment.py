"""The commands of `tiebeam experiment`: each asks the library, prints, and ends with a telling code."""

import shlex
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from tiebeam.cli.options import PlainOpt
from tiebeam.cli.output import (
    HEALTHY,
    UNHEALTHY,
    Format,
    Plain,
    check_file,
    check_suffix,
    format_for,
    note,
    outcome,
    write_text,
)

experiment_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


class EngineName(StrEnum):
    """What a sweep's runs are shared out among."""

    local = "local"
    ray = "ray"


NameArg = Annotated[str, typer.Argument(metavar="NAME", help="An experiment of `tiebeam experiment list`.")]
StoreOpt = Annotated[
    Path, typer.Option("--store", metavar="FILE", help="Keeps every run (SQLite). Tokens go into FILE.data beside it.")
]
STORE = Path("tiebeam-experiments.sqlite")
OutputOpt = Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write it there instead.")]
DebugOpt = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


@experiment_app.callback()
def experiment_command() -> None:
    """Run again what tiebeam's advice rests on, and see it beside the figures it grew from.

    Every run is kept as it happens. A sweep that was broken off goes on with the same command; what is finished
    is never done twice. Exit codes: 0 all done, or under way elsewhere; 1 a run failed; 2 could not begin or go on;
    130 interrupted.
    """


@experiment_app.command("list")
def list_command(*, form: PlainOpt = Plain.text, debug: DebugOpt = False) -> None:
    """Name every experiment, with its claim, where it comes from, and how many runs each profile has."""
    with outcome(debug):
        from tiebeam.cli import experiment_view as view

        typer.echo(view.catalogue(as_json=form is Plain.json))


@experiment_app.command("run")
def run_command(
    name: NameArg,
    *,
    profile: Annotated[
        str,
        typer.Option("--profile", help="paper: as the source did; laptop: minutes on two cores; smoke: seconds."),
    ] = "laptop",
    store: StoreOpt = STORE,
    width: Annotated[list[int] | None, typer.Option("--width", min=1, help="Again for more.")] = None,
    vocab: Annotated[int | None, typer.Option("--vocab", min=2, help="Rows of the table.")] = None,
    data: Annotated[
        list[str] | None,
        typer.Option("--data", metavar="FILE", help="Text files, or: stdlib, wikitext-2, synthetic (uniform ids)."),
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option("--tokenizer", metavar="FILE", help="A tokenizer.json; by default a BPE is trained.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any setting of the profile, as JSON; again for more."),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers", min=1, help="Processes. Default: a core each; one where there is a GPU, or no joblib."
        ),
    ] = None,
    engine: Annotated[EngineName, typer.Option("--engine", help="Local processes, or Ray.")] = EngineName.local,
    reclaim: Annotated[
        bool, typer.Option("--reclaim", help="Take over what processes on other machines had begun.")
    ] = False,
    form: PlainOpt = Plain.text,
    debug: DebugOpt = False,
) -> None:
    """Do the runs of an experiment that are not done yet, and print its tables."""
    with outcome(debug):
        from tiebeam.cli import experiment_view as view
        from tiebeam.experiments.catalog import experiment
        from tiebeam.experiments.ranks import joined
        from tiebeam.experiments.runner import Plan, run_sweep
        from tiebeam.experiments.store import Store
        from tiebeam.experiments.sweep import ask

        what = experiment(name)
        changes = view.changes(what, profile, settings or [], width, vocab)
        check_file(store)
        with joined(what.packages) as ranks:
            with ranks.in_turn():
                asked = ask(what, profile, changes, data=data or (), tokenizer=tokenizer, cache=Path(f"{store}.data"))
            for config in asked.configs:
                ranks.check_batch(config.get("batch", ranks.count))
            plan = Plan(store, asked.tokens, engine.value, workers, asked.device, reclaim, ranks)
            if not ranks.first:
                run_sweep(what, asked.configs, plan)
                return
            with Store(store) as opened:
                command = _command(name, profile, store, changes, data, tokenizer)
                opened.begin(what.name, profile, command, asked.configs)
            try:
                with view.progress(what) as on_progress:
                    counts = run_sweep(what, asked.configs, plan, on_progress)
            except KeyboardInterrupt:
                note(view.broken_off(what, store, asked.configs))
                raise
        typer.echo(view.shown(what, store, Format(form.value), counts))
        view.complain(what, store, counts)
    raise typer.Exit(UNHEALTHY if counts["failed"] else HEALTHY)


@experiment_app.command("show")
def show_command(
    name: NameArg,
    *,
    store: StoreOpt = STORE,
    form: Annotated[
        Format | None,
        typer.Option("--format", help="Default: by the suffix of --output, else text.", show_default=False),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write it there instead.")
    ] = None,
    debug: DebugOpt = False,
) -> None:
    """Print the tables of what was last run, finished or not; as HTML with its pictures."""
    with outcome(debug):
        check_file(output)
        from tiebeam.cli import experiment_view as view
        from tiebeam.experiments.catalog import experiment

        text = view.shown(experiment(name), store, form or format_for(output))
        if output is None:
            typer.echo(text)
        else:
            write_text(output, text + "\n")
            note(f"wrote {output}")


@experiment_app.command("plot")
def plot_command(
    name: NameArg,
    *,
    store: StoreOpt = STORE,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where NAME-FIGURE.svg and .png go.")] = Path(),
    form: PlainOpt = Plain.text,
    debug: DebugOpt = False,
) -> None:
    """Draw the figures of what was last run, as SVG and PNG, and print where they are."""
    with outcome(debug):
        from tiebeam.cli import experiment_view as view
        from tiebeam.experiments.catalog import experiment

        typer.echo(view.plotted(experiment(name), store, out, as_json=form is Plain.json))


@experiment_app.command("export")
def export_command(
    name: NameArg,
    *,
    store: StoreOpt = STORE,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write it there instead.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every run in the store, not those last asked for.")] = False,
    form: Annotated[
        str | None,
        typer.Option("--format", help="csv or json. Default: by the suffix of --output, else csv.", show_default=False),
    ] = None,
    debug: DebugOpt = False,
) -> None:
    """Write every result and every point of every series, for other tools."""
    with outcome(debug):
        check_file(output)
        from tiebeam.cli import experiment_view as view
        from tiebeam.experiments.catalog import experiment

        if form is None:
            check_suffix(output, ".csv", ".json", "")
        by_suffix = "json" if output is not None and output.suffix.lower() == ".json" else "csv"
        text = view.exported(experiment(name), store, form or by_suffix, every=every)
        if output is None:
            typer.echo(text, nl=False)
        else:
            write_text(output, text)
            note(f"wrote {output}")


def _command(
    name: str,
    profile: str,
    store: Path,
    changes: dict[str, Any],
    data: list[str] | None,
    tokenizer: Path | None,
) -> str:
    """The command that does the same again, however this one was spelt."""
    import json

    words = ["tiebeam", "experiment", "run", name, "--profile", profile]
    words += [] if store == STORE else ["--store", str(store)]
    for key, value in changes.items():
        words += ["--set", f"{key}={json.dumps(value)}"]
    for each in data or ():
        words += ["--data", each]
    words += ["--tokenizer", str(tokenizer)] if tokenizer else []
    return shlex.join(words)
