"""`tiebeam-hook`: judge the checkpoints and configs among files, for pre-commit and for pull requests.

It takes what such tools pass: a list of changed files, or folders. Each checkpoint is judged once, however many of its
shards changed, and with its own code: nothing but headers, and values where two matrices have to be compared.
"""

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tiebeam.checkpoints import inspect
from tiebeam.checkpoints.bounded import read_json
from tiebeam.checkpoints.declared import declare
from tiebeam.checkpoints.declared_findings import declared_findings
from tiebeam.core.finding import Finding
from tiebeam.errors import CheckpointError, TiebeamError
from tiebeam.reports.strings import visible

WEIGHTS = (".safetensors", ".gguf", ".keras", ".weights.h5", ".npz", ".pt", ".pth", ".ckpt")
NAMED = ("pytorch_model.bin",)
NO_WEIGHTS = ("optimizer", "scheduler", "scaler", "rng_state", "training_args")
"""What training leaves beside the weights under the same suffixes, by the start of its name."""
INDEX, CONFIG = ".index.json", "config.json"

LEVELS = {"error": "error", "warning": "warning", "info": "notice"}
FAILING = {"error": ("error",), "warning": ("error", "warning"), "never": ()}


def targets(paths: Iterable[Path]) -> Iterator[Path]:
    """What is to be judged: of shards their index, of a config the weights beside it, else itself; each once."""
    seen: set[Path] = set()
    for path in paths:
        files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
        for file in files:
            target = _target(file)
            if target is not None and target not in seen:
                seen.add(target)
                yield target


def _target(file: Path) -> Path | None:
    if file.name.endswith(INDEX):
        return file
    if file.name == CONFIG:
        beside = [p for p in sorted(file.parent.iterdir()) if _is_weights(p)]
        return _target(beside[0]) if beside else file
    if not _is_weights(file):
        return None
    indexes = (p for p in sorted(file.parent.iterdir()) if p.name.endswith(INDEX))
    return next((p for p in indexes if _lists(p, file.name)), file)


def _is_weights(path: Path) -> bool:
    if path.name.startswith(NO_WEIGHTS):
        return False
    return path.is_file() and (path.name.endswith(WEIGHTS) or path.name in NAMED)


def _lists(index: Path, name: str) -> bool:
    try:
        listed = read_json(index).get("weight_map")
    except CheckpointError:
        return False
    return isinstance(listed, dict) and name in listed.values()


def judged(target: Path) -> list[Finding]:
    """What there is to say of one target.

    Raises:
        TiebeamError: It could not be read.
    """
    if target.name != CONFIG:
        return list(inspect(target).findings)
    return list(declared_findings(declare(read_json(target)), ()))


def annotation(target: Path, finding: Finding) -> str:
    r"""A line that GitHub shows beside the file.

    Example:
        >>> print(annotation(Path("config.json"), Finding("misspelt-flag", "warning", "", "a, b\nc")))
        ::warning file=config.json,title=tiebeam misspelt-flag::a, b%0Ac
    """
    where = f"{finding.where}: " if finding.where else ""
    text = where + finding.message + (f" Hint: {finding.hint}" if finding.hint else "")
    return f"::{LEVELS[finding.severity]} file={_property(str(target))},title=tiebeam {finding.code}::{_escaped(text)}"


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _escaped(text).replace(":", "%3A").replace(",", "%2C")


def main(argv: Sequence[str] | None = None) -> int:
    """Judge files; 0: nothing to mend, 1: something, 2: one could not be read."""
    parser = argparse.ArgumentParser(prog="tiebeam-hook", description="Judge the checkpoints and configs among files.")
    parser.add_argument("paths", nargs="*", type=Path, metavar="PATH", help="files, or folders that are searched")
    parser.add_argument("--fail-on", choices=[*FAILING], default="warning", help="least severity that fails")
    parser.add_argument("--annotations", choices=["text", "github"], default="text", help="how findings are printed")
    asked = parser.parse_args(argv)
    code = 0
    for path in asked.paths:
        if not path.exists():  # a path that is misspelt would pass for ever
            _print_unread(path, CheckpointError(f"'{path}' is not there"), asked.annotations)
            code = 2
    for target in targets(asked.paths):
        try:
            found = judged(target)
        except TiebeamError as error:
            _print_unread(target, error, asked.annotations)
            found, code = [], 2
        for finding in found:
            failing = finding.severity in FAILING[asked.fail_on]
            if failing or (asked.annotations == "github" and finding.severity != "info"):
                _print(target, finding, asked.annotations)
            code = max(code, int(failing))
    return code


def _print(target: Path, finding: Finding, how: str) -> None:
    if how == "github":
        sys.stdout.write(annotation(target, finding) + "\n")
        return
    where = f" at {finding.where}" if finding.where else ""
    sys.stdout.write(visible(f"{target}: {finding.severity} {finding.code}{where}: {finding.message}") + "\n")
    if finding.hint:
        sys.stdout.write(visible(f"  Hint: {finding.hint}") + "\n")


def _print_unread(target: Path, error: TiebeamError, how: str) -> None:
    if how == "github":
        place = f"file={_property(str(target))},title=tiebeam could not look"
        sys.stdout.write(f"::error {place}::{_escaped(str(error))}\n")
    else:
        sys.stdout.write(visible(f"{target}: {error}", keep="\n") + "\n")


def script() -> None:
    """The command."""
    raise SystemExit(main())
