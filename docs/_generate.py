"""Pages written from the code itself, so that they cannot drift from it.

Run as a script, or by the documentation build. A part of the code that is missing fails the build.
"""

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

SEVERITIES = {
    "error": "Errors: results are wrong",
    "warning": "Warnings: memory, quality or a tie is at risk",
    "info": "Information: worth knowing; never fails a check",
}
COMMANDS = ("inspect", "init", "demo")
HELP_WIDTH = "100"


class Kind(Protocol):
    """A row of the catalogue of findings."""

    code: str
    severity: str
    summary: str


def findings_page(catalog: Iterable[Kind]) -> str:
    """Return the tables of findings, one for each severity, as Markdown.

    Raises:
        ValueError: A code stands twice, or a severity is unknown.
    """
    kinds = sorted(catalog, key=lambda kind: kind.code)
    codes = [kind.code for kind in kinds]
    if len(set(codes)) != len(codes):
        raise ValueError(f"a code stands twice in the catalogue: {codes}")
    if unknown := {kind.severity for kind in kinds} - set(SEVERITIES):
        raise ValueError(f"unknown severity {unknown}, expected one of {list(SEVERITIES)}")
    lines: list[str] = []
    for severity, title in SEVERITIES.items():
        rows = [kind for kind in kinds if kind.severity == severity]
        if rows:
            lines += [f"## {title}", "", "| code | what it says |", "|---|---|"]
            lines += [f"| `{kind.code}` | {_cell(kind.summary)} |" for kind in rows]
            lines += [""]
    return "\n".join(lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def help_text(*command: str) -> str:
    """Return what `tiebeam COMMAND --help` prints into a pipe."""
    done = subprocess.run(
        [sys.executable, "-m", "tiebeam.cli", *command, "--help"],
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=True,
        env={
            **_environment(),
            "COLUMNS": HELP_WIDTH,
            "TERMINAL_WIDTH": HELP_WIDTH,
            "NO_COLOR": "1",
            "TERM": "dumb",
        },
    )
    return "\n".join(line.rstrip() for line in done.stdout.strip().splitlines())


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONIOENCODING": "utf-8"}


def cli_page() -> str:
    """Return the help of every command, as Markdown."""
    lines: list[str] = []
    for command in ((), *((name,) for name in COMMANDS)):
        lines += [f"## {' '.join(('tiebeam', *command))}", "", "```text", help_text(*command), "```", ""]
    return "\n".join(lines)


def write(folder: Path) -> None:
    """Write every generated page below `folder`."""
    from tiebeam.core.findings import CATALOG

    folder.mkdir(exist_ok=True)
    for name, text in {"findings.md": findings_page(CATALOG), "cli.md": cli_page()}.items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write(Path(__file__).resolve().parent / "generated")
