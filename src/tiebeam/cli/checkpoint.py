"""`tiebeam checkpoint`: what a file of weights holds of the tie, and whether its config agrees."""

from pathlib import Path
from typing import Annotated

import typer

from tiebeam.cli.options import DebugOpt, FailOnOpt, FormatOpt, OutputOpt
from tiebeam.cli.output import FailOn, check_file, exit_code, format_for, outcome, show

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


def checkpoint_command(
    path: PathArg,
    *,
    config: ConfigOpt = None,
    table: TableOpt = None,
    readout: ReadoutOpt = None,
    form: FormatOpt = None,
    output: OutputOpt = None,
    fail_on: FailOnOpt = FailOn.warning,
    debug: DebugOpt = False,
) -> None:
    """Say whether a checkpoint is tied, and whether file, config and family agree.

    Headers are read, and values only where two matrices have to be compared. No code of a file is run: a pickle that
    names any is refused.
    """
    with outcome(debug):
        check_file(output)
        form = form or format_for(output)
        from tiebeam.checkpoints import inspect

        report = inspect(path, config, table=table, readout=readout)
        show(report, form, output)
        code = exit_code(report, fail_on)
    raise typer.Exit(code)
