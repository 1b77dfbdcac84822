"""`tiebeam checkpoint`: what a file of weights holds of the tie, and whether its config agrees."""

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tiebeam.cli.options import DebugOpt, FailOnOpt, FormatOpt, OutputOpt
from tiebeam.cli.output import (
    HEALTHY,
    FailOn,
    Format,
    check_file,
    exit_code,
    format_for,
    note,
    outcome,
    show,
    write_text,
)
from tiebeam.errors import TargetError

if TYPE_CHECKING:
    from tiebeam.core.checkpoint_fix import FixPlan

PathArg = Annotated[
    Path,
    typer.Argument(
        metavar="PATH",
        help="A file of safetensors, PyTorch, GGUF, Keras, npz or llama2.c, an index, or a folder that holds one.",
        show_default=False,
    ),
]
ConfigOpt = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="The model's config. Default: config.json beside the file."),
]
TableOpt = Annotated[
    str | None,
    typer.Option("--table", metavar="NAME", help="The table, where names and shapes do not tell."),
]
ReadoutOpt = Annotated[str | None, typer.Option("--readout", metavar="NAME", help="The readout, likewise.")]


FixOpt = Annotated[bool, typer.Option("--fix", help="Write a corrected copy to --out.")]
OutOpt = Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Folder for the corrected copy: a new one.")]
TieOpt = Annotated[
    bool | None,
    typer.Option(
        "--tie/--untie",
        help="Store one table, or both ends. Default: what config and file ask for.",
        show_default=False,
    ),
]
DryRunOpt = Annotated[bool, typer.Option("--dry-run", help="Show what --fix would do, and write nothing.")]


class Conflict(StrEnum):
    """Whose values count where two matrices differ."""

    embedding = "embedding"
    readout = "readout"
    mean = "mean"
    untie = "untie"
    error = "error"


ConflictOpt = Annotated[
    Conflict, typer.Option("--on-conflict", help="Whose values count where one table is asked for and two differ.")
]


def checkpoint_command(
    path: PathArg,
    *,
    config: ConfigOpt = None,
    table: TableOpt = None,
    readout: ReadoutOpt = None,
    fix: FixOpt = False,
    out: OutOpt = None,
    tie: TieOpt = None,
    on_conflict: ConflictOpt = Conflict.error,
    dry_run: DryRunOpt = False,
    form: FormatOpt = None,
    output: OutputOpt = None,
    fail_on: FailOnOpt = FailOn.warning,
    debug: DebugOpt = False,
) -> None:
    """Say whether a checkpoint is tied, and whether file, config and family agree; with --fix, make them.

    Headers are read, and values only where two matrices have to be compared. No code of a file is run: a pickle that
    names any is refused. What is read is never changed: --fix writes a copy, which appears whole or not at all.
    """
    with outcome(debug):
        check_file(output)
        form = form or format_for(output)
        from tiebeam import checkpoints

        if not fix:
            _check_no_fix(out, tie, dry_run)
            report = checkpoints.inspect(path, config, table=table, readout=readout)
            show(report, form, output)
            raise typer.Exit(exit_code(report, fail_on))
        made = checkpoints.fix(
            path, _target(path, out, dry_run), config=config, tie=tie, on_conflict=on_conflict.value,
            table=table, readout=readout, dry_run=dry_run,
        )  # fmt: skip
        _show_plan(made, form, output)
    raise typer.Exit(HEALTHY)


def _check_no_fix(out: Path | None, tie: bool | None, dry_run: bool) -> None:
    if out is not None or tie is not None or dry_run:
        raise TargetError("--out, --tie, --untie and --dry-run belong to --fix", hint="add --fix")


def _target(path: Path, out: Path | None, dry_run: bool) -> Path:
    if out is not None:
        return out
    if not dry_run:
        raise TargetError("--fix writes a copy, and was not told where", hint="add --out DIR, or --dry-run")
    return path.resolve().with_name(f"{path.resolve().name}-fixed")


def _show_plan(made: "FixPlan", form: Format, output: Path | None) -> None:
    text = json.dumps(made.to_dict(), indent=2, sort_keys=True) if form is Format.json else visible_lines(str(made))
    if output is None:
        typer.echo(text)
        return
    write_text(output, text + "\n")
    note(f"wrote {output}")


def visible_lines(text: str) -> str:
    """Names out of a file, with what acts on a terminal spelt out."""
    from tiebeam.reports.strings import visible

    return visible(text, keep="\n")
