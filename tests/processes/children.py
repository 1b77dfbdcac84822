"""One pytest for each process, one after another: what they print is shown, what came of them is added up."""

import json
import resource
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.processes.table import Part

ORDER = ("failed", "passed", "skipped", "deselected", "xfailed", "xpassed", "warnings", "error")
PLURAL = {"error": "errors", "warnings": "warnings"}
NOTHING = int(pytest.ExitCode.NO_TESTS_COLLECTED)


@dataclass(frozen=True)
class Child:
    """What came of one process: its exit code (128 and the signal that ended it), and counts of outcomes."""

    code: int
    outcomes: Mapping[str, int]


def run_all(config: pytest.Config, parts: Sequence[Part], announce: Callable[[Part], None]) -> list[Child]:
    """Run a pytest for each part with the options and paths of this one; stop where pytest would."""
    done = []
    for part in parts:
        announce(part)
        try:
            done.append(_run(config, part))
        except KeyboardInterrupt:
            done.append(Child(pytest.ExitCode.INTERRUPTED, {}))
        code = done[-1].code
        if code == pytest.ExitCode.INTERRUPTED or (code == pytest.ExitCode.TESTS_FAILED and config.option.maxfail):
            break
    return done


def _run(config: pytest.Config, part: Part) -> Child:
    with tempfile.TemporaryDirectory() as folder:
        tally = Path(folder, "tally.json")
        own = ["--process", ",".join(part.labels), "--tally", str(tally)]
        if config.option.xmlpath:  # or the last one would write over the others
            path = Path(config.option.xmlpath)
            own += [f"--junitxml={path.with_name(f'{path.stem}-{part.process.name}{path.suffix}')}"]
        command = [sys.executable, "-m", "pytest", *config.invocation_params.args, *own]
        sys.stdout.flush()  # what was announced stands above what the child prints
        code = subprocess.run(command, cwd=config.invocation_params.dir, check=False).returncode
        if not tally.is_file():  # it ended before it could say what came of its tests
            return Child(128 - code if code < 0 else code, {"error": 1})
        return Child(code, json.loads(tally.read_text(encoding="utf-8")))


def worst(codes: Iterable[int]) -> int:
    """The exit code of them all: the largest; that of a run without tests only where no run had any.

    >>> worst([0, 5, 1]), worst([5, 0]), worst([5, 5])
    (1, 0, 5)
    """
    said = [int(code) for code in codes]
    return max([code for code in said if code != NOTHING], default=NOTHING)


def closing_line(outcomes: Iterable[Mapping[str, int]], seconds: float) -> str:
    """The closing line of them all, in pytest's own form.

    >>> closing_line([{"passed": 3, "skipped": 1}, {"passed": 4, "error": 2}], 61.234)
    '7 passed, 1 skipped, 2 errors in 61.23s (0:01:01)'
    >>> closing_line([{}], 0.5)
    'no tests ran in 0.50s'
    """
    total: Counter[str] = Counter()
    for counts in outcomes:
        total.update({name: count for name, count in counts.items() if count})
    names = [*(n for n in ORDER if n in total), *(n for n in total if n not in ORDER)]
    said = [f"{total[n]} {_noun(n, total[n])}" for n in names]
    minutes, rest = divmod(int(seconds), 60)
    clock = f" ({minutes // 60}:{minutes % 60:02}:{rest:02})" if seconds >= 60 else ""
    return f"{', '.join(said) or 'no tests ran'} in {seconds:.2f}s{clock}"


def _noun(name: str, count: int) -> str:
    return {"warnings": "warning", "error": "error"}.get(name, name) if count == 1 else PLURAL.get(name, name)


def banner(line: str, text: str) -> str:
    """A text in the middle of a line, as wide as the terminal."""
    return f" {text} ".center(shutil.get_terminal_size().columns - 1, line)


def processor_seconds() -> float:
    """Processor time of all processes that this one started and that have ended, and theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
