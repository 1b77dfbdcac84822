"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

from tiebeam.cli.output import FailOn, Format, Plain

PlainOpt = Annotated[Plain, typer.Option("--format", help="What is printed on standard output.")]
FormatOpt = Annotated[
    Format | None,
    typer.Option("--format", help="Default: by the suffix of --output, else text.", show_default=False),
]
OutputOpt = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the report there instead.")
]
FailOnOpt = Annotated[FailOn, typer.Option("--fail-on", help="Least severity that makes the exit code 1.")]
DebugOpt = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
