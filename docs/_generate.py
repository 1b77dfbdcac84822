"""Pages written from the code itself, so that they cannot drift from it.

Run as a script, or by the documentation build. A part of the code that is missing fails the build.
"""

import ast
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

SEVERITIES = ("error", "warning", "info")
MARK = "<!-- below: written by the tests, pytest tests/docs --update-pages -->"
SOURCE = Path(__file__).resolve().parents[1] / "src" / "tiebeam"
COMMANDS = ("inspect", "measure", "sensitivity", "advise", "init", "checkpoint", "demo", "experiment")
PARTS = {"experiment": ("list", "run", "show", "plot", "export")}
"""Commands that are made of commands."""
HELP_WIDTH = "100"


class Kind(Protocol):
    """A row of the catalogue of findings."""

    code: str
    severity: str
    summary: str


def findings_table(catalog: Iterable[Kind], advice: Mapping[str, Sequence[str]]) -> str:
    """Return the table of findings, the most severe first, as Markdown.

    Args:
        catalog: Every kind of finding.
        advice: What to do about a code, in the words of its findings.

    Raises:
        ValueError: A code stands twice, a severity is unknown, or advice is given on an unknown code.
    """
    kinds = sorted(catalog, key=lambda kind: kind.code)
    codes = [kind.code for kind in kinds]
    if len(set(codes)) != len(codes):
        raise ValueError(f"a code stands twice in the catalogue: {codes}")
    if unknown := {kind.severity for kind in kinds} - set(SEVERITIES):
        raise ValueError(f"unknown severity {unknown}, expected one of {SEVERITIES}")
    if strange := set(advice) - set(codes):
        raise ValueError(f"advice on {strange}, which the catalogue lacks")
    kinds.sort(key=lambda kind: SEVERITIES.index(kind.severity))
    lines = ["| code | severity | what it says | what to do |", "|---|---|---|---|"]
    for kind in kinds:
        todo = "; or ".join(advice.get(kind.code, ()))
        lines.append(f"| `{kind.code}` | {kind.severity} | {_cell(kind.summary)} | {_cell(todo)} |")
    return "\n".join(lines)


def advice_in(package: Path) -> dict[str, list[str]]:
    """Return what the findings of a package advise, by code: their constant hints, and how they mend by code."""
    found: dict[str, list[str]] = {}
    for file in sorted(package.rglob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        constants = {
            node.targets[0].id: node.value.value
            for node in tree.body
            if isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and isinstance(node.value, ast.Constant)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Finding":
                code, text = _advice(node, constants)
                if code and text and text not in found.setdefault(code, []):
                    found[code].append(text)
    return {code: texts for code, texts in found.items() if texts}


def _advice(call: ast.Call, constants: Mapping[str, object]) -> tuple[str, str]:
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    code = _constant(call.args[0] if call.args else given.get("code"), constants)
    return code, _constant(given.get("hint"), constants) or _call(given.get("fix"))


def _constant(node: ast.expr | None, constants: Mapping[str, object]) -> str:
    """The text of a literal, or of an f-string of constants alone; "" for any other expression."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if not isinstance(node, ast.JoinedStr):
        return ""
    parts: list[str] = []
    for part in node.values:
        if isinstance(part, ast.Constant):
            parts.append(str(part.value))
            continue
        name = part.value.id if isinstance(part, ast.FormattedValue) and isinstance(part.value, ast.Name) else None
        if name not in constants:
            return ""
        parts.append(f"`{constants[name]}`")
    return "".join(parts)


def _call(node: ast.expr | None) -> str:
    if isinstance(node, ast.IfExp):
        node = node.body
    mends = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "initialize"
    return "`tiebeam.initialize(model, inputs)`" if mends else ""


def findings_page(page: str) -> str:
    """Return the page on findings with its table, which ends it, as the code has it now.

    Raises:
        ValueError: The page lacks the mark.
    """
    from tiebeam.core.findings import CATALOG

    above, mark, _ = page.partition(MARK)
    if not mark:
        raise ValueError(f"the page lacks the mark {MARK!r}")
    return f"{above}{mark}\n\n{findings_table(CATALOG, advice_in(SOURCE))}\n"


RULES_MARK = "<!-- rules: written by the tests, pytest tests/docs --update-pages -->"
RULES_END = "<!-- end of the rules -->"


def rules_table() -> str:
    """Return what each optimizer's settings are multiplied by for a table, as Markdown."""
    from tiebeam.core.training.optimizers import POWERS, RULES

    lines = ["| optimizer | rate | weight decay | it is | other settings | because |", "|---|---|---|---|---|---|"]
    for rule in RULES.values():
        others = ", ".join(f"`{name}` {_power(POWERS[q])}" for name, q in rule.settings.items()) or "none"
        cells = (f"`{rule.name}`", _power(rule.rate), _power(rule.decay), rule.decay_is, others, rule.why)
        lines.append(f"| {' | '.join(map(_cell, cells))} |")
    return "\n".join(lines)


def _power(n: int) -> str:
    return {0: "1", 1: "c"}.get(n, f"c^{n}" if n > 0 else f"1/c{f'^{-n}' if n < -1 else ''}")


def training_page(page: str) -> str:
    """Return the page on training with its table of rules as the code has it now.

    Raises:
        ValueError: The page lacks a mark.
    """
    above, mark, rest = page.partition(RULES_MARK)
    _, end, below = rest.partition(RULES_END)
    if not (mark and end):
        raise ValueError(f"the page lacks the marks {RULES_MARK!r} and {RULES_END!r}")
    return f"{above}{mark}\n\n{rules_table()}\n\n{end}{below}"


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
    whole = [(name, *part) for name in COMMANDS for part in ((), *((p,) for p in PARTS.get(name, ())))]
    for command in ((), *whole):
        lines += [f"## {' '.join(('tiebeam', *command))}", "", "```text", help_text(*command), "```", ""]
    return "\n".join(lines)


def write(folder: Path) -> None:
    """Write the pages that only the built documentation has, below `folder`."""
    folder.mkdir(exist_ok=True)
    (folder / "cli.md").write_text(cli_page(), encoding="utf-8")


if __name__ == "__main__":
    write(Path(__file__).resolve().parent / "generated")
