"""How a command ends: what it prints, where it writes, and with which code it exits."""

import json
import os
import stat
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tiebeam.errors import TargetError, TiebeamError

if TYPE_CHECKING:
    from tiebeam.core.advising.advice import Advice
    from tiebeam.core.checkpoint import CheckpointReport
    from tiebeam.core.measuring.measurement import Measurement
    from tiebeam.core.measuring.sensitivity import Sensitivity
    from tiebeam.core.report import Report

HEALTHY, UNHEALTHY, COULD_NOT_LOOK, INTERRUPTED = 0, 1, 2, 130


class Format(StrEnum):
    """What a report is printed as."""

    text = "text"
    markdown = "markdown"
    json = "json"
    html = "html"


class Plain(StrEnum):
    """What is printed of things without a page of their own."""

    text = "text"
    json = "json"


class FailOn(StrEnum):
    """The least severity of a finding that makes the exit code 1."""

    warning = "warning"
    error = "error"
    never = "never"


_SUFFIXES = {
    ".html": Format.html,
    ".htm": Format.html,
    ".md": Format.markdown,
    ".markdown": Format.markdown,
    ".json": Format.json,
    ".txt": Format.text,
    "": Format.text,
}
_FAILS = {
    FailOn.warning: frozenset({"warning", "error"}),
    FailOn.error: frozenset({"error"}),
    FailOn.never: frozenset[str](),
}


def format_for(path: Path | None) -> Format:
    """The format that a file's name asks for; text where it has no suffix.

    Raises:
        TargetError: The suffix is that of no format.
    """
    suffix = path.suffix.lower() if path else ""
    if suffix not in _SUFFIXES:
        raise TargetError(
            f"'{path}' does not tell its format",
            got=f"the suffix {suffix}",
            expected=", ".join(filter(None, _SUFFIXES)),
            hint="add --format text, markdown, json or html",
        )
    return _SUFFIXES[suffix]


def check_suffix(path: Path | None, *suffixes: str) -> None:
    """Refuse, before any work is done, a name that promises another format than what is written.

    A pipe or a device has no format of its own.

    Raises:
        TargetError: The suffix is none of `suffixes`.
    """
    if path is not None and path.suffix.lower() not in suffixes and (path.is_file() or not path.exists()):
        raise TargetError(
            f"'{path}' is named as another format than what is written to it",
            got=f"the suffix {path.suffix}" if path.suffix else "no suffix",
            expected=" or ".join(filter(None, suffixes)),
            hint=f"name it '{path.with_suffix(suffixes[0])}'",
        )


def exit_code(report: "Report | CheckpointReport", fail_on: FailOn) -> int:
    """1 where the report holds a finding at or above the severity, else 0."""
    return UNHEALTHY if any(f.severity in _FAILS[fail_on] for f in report.findings) else HEALTHY


def show(report: "Report | CheckpointReport | Measurement | Advice", form: Format, output: Path | None) -> None:
    """Print a report, or write it to a file that appears whole or not at all."""
    if output is not None:
        write_text(output, _rendered(report, form) + "\n")
        note(f"wrote {output}")
    elif form is Format.text:
        typer.echo(_for_terminal(report), color=True)  # which has decided; echo must not strip
    else:
        typer.echo(_rendered(report, form))


def _for_terminal(report: "Report | CheckpointReport | Measurement | Advice") -> str:
    from tiebeam.core.advising.advice import Advice
    from tiebeam.core.measuring.measurement import Measurement
    from tiebeam.reports import advice, measured, text

    if isinstance(report, Measurement):
        return measured.to_text(report)
    return advice.to_text(report) if isinstance(report, Advice) else text.to_text(report)


def _rendered(report: "Report | CheckpointReport | Measurement | Advice", form: Format) -> str:
    if form is Format.text:
        return str(report)
    how = {Format.markdown: report.to_markdown, Format.json: report.to_json, Format.html: report.to_html}
    return how[form]().rstrip("\n")


def show_plain(found: "Sensitivity", form: Plain) -> None:
    """Print what has no page of its own: as text, or as the plain data that it is."""
    from tiebeam.reports.jsontext import portable
    from tiebeam.reports.strings import visible

    if form is Plain.json:
        typer.echo(json.dumps(portable(found.to_dict()), indent=2, sort_keys=True))
    else:
        typer.echo(visible(str(found), keep="\n"))


def check_file(path: Path | None) -> None:
    """Refuse, before any work is done, a file that cannot be written.

    Raises:
        TargetError: Its folder is missing, or it is a folder itself.
    """
    if path is not None and (path.is_dir() or not path.resolve().parent.is_dir()):
        raise TargetError(
            f"the file '{path}' cannot be written",
            got="a folder" if path.is_dir() else f"no folder '{path.resolve().parent}'",
            expected="a file in a folder that exists",
            hint="name a file in that folder" if path.is_dir() else "make the folder first, or name another",
        )


def note(text: str) -> None:
    """Say something beside the report: on standard error, so that a pipe carries the report alone."""
    typer.echo(text, err=True)


def write_text(path: Path, text: str) -> None:
    """Write a file so that readers see the old content or the new, never a part.

    A link stays, and the file it points to is replaced. What is no regular file (a pipe, a device), or is this
    process's own output, is written to and never replaced.

    Raises:
        TargetError: The folder is missing or cannot be written to.
    """
    try:
        old = path.stat() if path.exists() else None
        own = next((fd for fd in (1, 2) if old and _is_open(fd, old)), None)
        if own is not None:
            with os.fdopen(os.dup(own), "w", encoding="utf-8") as stream:
                stream.write(text)
        elif old and not stat.S_ISREG(old.st_mode):
            with path.open("w", encoding="utf-8") as stream:
                stream.write(text)
        else:
            _replace(path.resolve(), text, stat.S_IMODE(old.st_mode) if old else permissions(folder=False))
    except OSError as e:
        raise TargetError(
            f"the file '{path}' cannot be written", got=str(e), hint="name a file in a folder that exists"
        ) from e


def _is_open(descriptor: int, file: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), file)
    except OSError:  # closed
        return False


def _replace(path: Path, text: str, mode: int) -> None:
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(name).chmod(mode)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def permissions(*, folder: bool) -> int:
    """The mode that a new file or folder would have had without a temporary name."""
    return (0o777 if folder else 0o666) & ~_umask()


@contextmanager
def outcome(debug: bool) -> Iterator[None]:
    """Turn what goes wrong inside into a message and exit code 2, never 1 (which means a finding).

    An expected error is printed without a traceback unless `debug`; an unexpected one always with it.
    """
    try:
        yield
    except TiebeamError as e:
        if debug:
            traceback.print_exc()
        else:
            note(f"{type(e).__name__}: {e}")
        raise typer.Exit(COULD_NOT_LOOK) from e
    except (typer.Exit, typer.Abort, BrokenPipeError):
        raise
    except Exception as e:
        traceback.print_exc()
        note(f"Unexpected {type(e).__name__}: a fault of tiebeam; please report it with the lines above.")
        raise typer.Exit(COULD_NOT_LOOK) from e
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as e:  # of the target's own making: nothing else raises such
        traceback.print_exc()
        note(f"{type(e).__name__}: {e}")
        raise typer.Exit(COULD_NOT_LOOK) from e


@contextmanager
def stdout_kept_clean() -> Iterator[None]:
    """Send what a model's own code prints to standard error, so that the report can be piped."""
    with redirect_stdout(sys.stderr):
        yield
