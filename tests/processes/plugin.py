"""Hooks that give each framework a process of its own, and one closing line to all of them."""

import gc
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.processes import table
from tests.processes.children import banner, closing_line, processor_seconds, run_all, worst
from tests.processes.table import Part, Process

RUN = pytest.StashKey[Part]()
LEFT_OUT = pytest.StashKey[str]()
REPORTED = pytest.StashKey[set[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("processes", "one process for each framework")
    group.addoption(
        "--backends",
        default="",
        metavar="NAMES",
        help=f"comma-separated: {', '.join(table.PROCESSES)}; keras for its three (default: whatever is installed)",
    )
    group.addoption(
        "--budget",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="fail where the run takes longer: seconds of processor time, divided by the number of workers",
    )
    group.addoption("--process", default="", help="internal: comma-separated labels of what runs here")
    group.addoption("--tally", default="", help="internal: file to write the outcomes of this process to")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """Run here what needs one process, else start one for each framework."""
    option = config.option
    if option.help or option.version or option.markers or option.showfixtures or getattr(option, "cacheshow", None):
        return None
    asked = [(arg, _files(config, arg)) for arg in config.args]
    if option.process:
        _prepare(config, _labelled(option.process), asked)
        return None
    try:
        run, left_out = table.chosen(option.backends)
    except table.UnknownError as error:
        raise pytest.UsageError(str(error)) from None
    files = [file for _, found in asked for file in found]
    planned = table.parts(files, run)
    wanted = {name for file in files for name in table.homes(file)}
    config.stash[LEFT_OUT] = ", ".join(
        f"{p.name} (needs {' and '.join(p.needs)})" for p in left_out if p.name in wanted
    )
    if len(planned) == 1 and not option.budget:
        _prepare(config, planned[0], asked)
        return None
    return _run_children(config, planned) if planned else None


def _files(config: pytest.Config, arg: str) -> list[Path]:
    path = Path(config.invocation_params.dir, arg.partition("::")[0])
    return table.files_below(path.resolve()) if path.exists() else []


def _labelled(labels: str) -> Part:
    first, *rest = labels.split(",")
    return Part(table.PROCESSES.get(first, table.BARE), (first, *rest))


def _prepare(config: pytest.Config, part: Part, asked: list[tuple[str, list[Path]]]) -> None:
    """Make this the process: paths of the others are dropped, those that do not exist are left to pytest."""
    os.environ.update(part.process.environment)
    for name in part.process.folders:  # of each worker too: two that write one file at once would read halves
        folder = tempfile.TemporaryDirectory(prefix="tiebeam-")
        config.add_cleanup(folder.cleanup)
        os.environ[name] = folder.name
    config.stash[RUN] = part
    config.args[:] = [
        arg for arg, files in asked if not files or any(set(part.labels) & set(table.homes(f)) for f in files)
    ]


def _run_children(config: pytest.Config, planned: list[Part]) -> int:
    start = time.perf_counter()
    if config.stash[LEFT_OUT]:
        print(f"left out: {config.stash[LEFT_OUT]}")
    done = run_all(config, planned, lambda part: print(banner("#", part.process.name)))
    code = worst([child.code for child in done])
    seconds = time.perf_counter() - start
    if (allowed := config.option.budget) > 0:
        spent = processor_seconds() / max(1, getattr(config.option, "numprocesses", None) or 1)
        print(f"time: {spent:.0f} s of {allowed:.0f} s that the run may take")
        if spent > allowed:
            print("over the budget: make a test faster, or mark it slow")
            code = worst([code, pytest.ExitCode.TESTS_FAILED])
    print(banner("=", closing_line([child.outcomes for child in done], seconds)))
    return code


def pytest_report_header(config: pytest.Config) -> list[str]:
    if RUN not in config.stash:
        return []
    left_out = config.stash.get(LEFT_OUT, "")
    labels = ", ".join(config.stash[RUN].labels)
    return [f"process: {labels}", *([f"left out: {left_out}"] if left_out else [])]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files of other processes are not even imported."""
    if RUN not in config.stash or collection_path.suffix != ".py" or collection_path.name == "conftest.py":
        return None
    return None if set(config.stash[RUN].labels) & set(table.homes(collection_path)) else True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of a module's examples those stay that want this process."""
    if RUN not in config.stash:
        return
    labels = set(config.stash[RUN].labels)
    items[:] = [item for item in items if not isinstance(item, pytest.DoctestItem) or labels & set(_home_of(item))]


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """What the frameworks made when they were imported stays: no collection of garbage looks through it again."""
    gc.collect()
    gc.freeze()


def _home_of(item: pytest.DoctestItem) -> tuple[str, ...]:
    said = table.row(item.path)
    return table.of_examples("".join(example.source for example in item.dtest.examples)) if said is None else said


@pytest.fixture(autouse=True)
def one_framework(pytestconfig: pytest.Config) -> Iterator[None]:
    """Fail the test that loads a framework whose process this is not; each framework is reported once."""
    _check(pytestconfig, "while tests were collected, or by what this test's module imports")
    yield
    _check(pytestconfig, "by this test")


def _check(config: pytest.Config, when: str) -> None:
    if RUN not in config.stash:
        return
    seen = config.stash.setdefault(REPORTED, set())
    new = [name for name in config.stash[RUN].process.intruders(sys.modules) if name not in seen]
    seen.update(new)
    if new:
        process: Process = config.stash[RUN].process
        pytest.fail(
            f"{', '.join(new)} was loaded {when}, in the process {process.name}: move the test to where it belongs "
            "(tests/processes/table.py), or run what it needs in a process of its own",
            pytrace=False,
        )


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write down the outcomes, as the terminal counts them."""
    config = session.config
    if not config.option.tally or hasattr(config, "workerinput"):
        return
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    stats = {} if reporter is None else reporter.stats
    counted = {k: sum(getattr(r, "count_towards_summary", True) for r in v) for k, v in stats.items() if k}
    if config.option.collectonly:
        counted = {"collected": session.testscollected}
    Path(config.option.tally).write_text(json.dumps(counted), encoding="utf-8")
