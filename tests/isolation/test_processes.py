"""One process for each framework: who goes where, what comes of them, and that a stranger is noticed."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.processes.children import closing_line, worst
from tests.processes.table import (
    BARE,
    HOMES,
    KERAS,
    NEUTRAL,
    PROCESSES,
    ROOT,
    Process,
    UnknownError,
    chosen,
    files_below,
    homes,
    of_examples,
    parts,
)

pytestmark = pytest.mark.slow

STRANGERS = {s for p in PROCESSES.values() for s in p.strangers}


def names(processes: tuple[Process, ...]) -> list[str]:
    return [p.name for p in processes]


def shared_out(*paths: str, run: tuple[str, ...] = tuple(PROCESSES)) -> dict[str, tuple[str, ...]]:
    files = [f for p in paths for f in files_below(ROOT / p)]
    return {part.process.name: part.labels for part in parts(files, [PROCESSES[r] for r in run])}


# -- which processes --


def test_by_default_every_installed_framework_runs_and_the_others_are_named() -> None:
    run, left_out = chosen("", lambda module: module not in ("jax", "tensorflow"))
    assert names(run) == ["torch", "keras-torch"]
    assert names(left_out) == ["jax", "keras-tensorflow", "keras-jax"]


def test_keras_is_its_three_processes_and_nothing_runs_twice() -> None:
    run, left_out = chosen("keras-jax, keras,torch,torch", lambda module: True)
    assert names(run) == ["keras-jax", "keras-tensorflow", "keras-torch", "torch"]
    assert not left_out


def test_a_framework_that_is_asked_for_and_missing_is_refused_by_name() -> None:
    with pytest.raises(UnknownError, match=r"\['keras-torch'\] asked for.*keras.*not installed"):
        chosen("torch,keras-torch", lambda module: module == "torch")


def test_a_backend_that_nobody_knows_is_refused() -> None:
    with pytest.raises(UnknownError, match="no backend"):
        chosen("torhc", lambda module: True)


# -- what goes where --


def test_a_folder_of_one_framework_needs_one_process() -> None:
    assert shared_out("tests/jax") == {"jax": ("jax",)}
    assert shared_out("tests/jax/test_zoo.py") == {"jax": ("jax",)}


def test_what_needs_no_framework_goes_with_the_first_that_has_something_to_do() -> None:
    assert shared_out("tests/core") == {"torch": ("torch", NEUTRAL)}
    assert shared_out("tests/core", "tests/jax") == {"jax": ("jax", NEUTRAL)}
    assert shared_out("tests/core", run=("jax",)) == {"jax": ("jax", NEUTRAL)}
    assert shared_out("tests/core", run=()) == {BARE.name: (NEUTRAL,)}
    assert shared_out("tests/jax", run=("torch",)) == {}


def test_the_whole_suite_visits_every_framework_that_has_tests() -> None:
    visited = shared_out("tests", "src")
    assert visited["torch"] == ("torch", NEUTRAL)
    assert visited["jax"] == ("jax",)


def test_every_framework_is_under_the_contract_and_so_gives_its_one_digest() -> None:
    assert shared_out("tests/contract").keys() == PROCESSES.keys()


def test_a_longer_row_counts_more_than_a_shorter_one() -> None:
    assert homes(ROOT / "tests/zoo/test_minigpt.py") == ("torch",)
    assert homes(ROOT / "tests/zoo/test_numpy_tied.py") == (NEUTRAL,)
    assert homes(ROOT / "src/tiebeam/backends/keras/model.py") == KERAS


def test_examples_go_where_what_they_import_is() -> None:
    assert of_examples(">>> import jax, numpy\n>>> import tiebeam") == ("jax",)
    assert of_examples(">>> import jax.numpy as jnp") == ("jax",)
    assert of_examples(">>> import numpy, torch") == ("torch",)
    assert of_examples(">>> from keras import ops") == KERAS
    assert of_examples(">>> import tiebeam.torch") == (NEUTRAL,)
    assert set(homes(ROOT / "src/tiebeam/api/initialization.py")) == {"torch", "jax"}


def imported(path: Path, anywhere: bool) -> Iterator[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree) if anywhere else tree.body:
        found = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        found += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        yield from (name.partition(".")[0] for name in found)


def test_a_file_that_imports_a_framework_goes_to_a_process_that_has_it() -> None:
    """A module where its examples are collected; what a function imports, it imports when it is called."""
    tests = [p for p in files_below(ROOT / "tests") if not p.is_relative_to(ROOT / "tests/isolation")]
    modules = files_below(ROOT / "src")
    assert len(tests) > 50 < len(modules)
    wrong = [
        f"{path.relative_to(ROOT)} imports {module} and goes to {home}"
        for path in (*tests, *modules)
        for module in STRANGERS.intersection(imported(path, anywhere=path in tests))
        for home in homes(path)
        if module in PROCESSES.get(home, BARE).strangers
    ]
    assert not wrong, "\n".join(wrong)


def test_only_processes_that_there_are_stand_in_the_table() -> None:
    assert {name for row in HOMES.values() for name in row} <= {*PROCESSES, NEUTRAL}


# -- what comes of them --


def test_the_worst_exit_code_counts_and_no_tests_only_where_none_had_any() -> None:
    assert worst([0, 5]) == 0
    assert worst([1, 5, 4]) == 4
    assert worst([5, 5]) == 5
    assert worst([0, 139]) == 139


def test_outcomes_are_added_up_in_the_form_that_pytest_has() -> None:
    line = closing_line([{"passed": 3, "warnings": 1}, {"passed": 1, "error": 1, "deselected": 0}], 3.0)
    assert line == "4 passed, 1 warning, 1 error in 3.00s"


# -- a project of two processes, run for real --

PROJECT = """
from pathlib import Path
from tests.processes import table
from tests.processes.table import Process

pytest_plugins = ["tests.processes.plugin"]
table.ROOT = Path(__file__).parent
table.PROCESSES = {
    "one": Process("one", ("json",), ("colorsys",), environment={"OF_ONE": "1"}),
    "two": Process("two", ("csv",), ()),
    "three": Process("three", ("module_that_is_not_there",)),
}
table.HOMES = {"test_one.py": ("one",), "test_two.py": ("two",), "test_three.py": ("three",)}
"""
ONE = "import os\n\ndef test_one():\n    assert os.environ['OF_ONE'] == '1'\n"
TWO = "import os\n\ndef test_two():\n    assert 'OF_ONE' not in os.environ\n\ndef test_other():\n    pass\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, text in {
        "conftest.py": PROJECT,
        "pytest.ini": "[pytest]\n",
        "test_neutral.py": "def test_neutral():\n    pass\n",
        "test_one.py": ONE,
        "test_two.py": TWO,
    }.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def run(project: Path, *args: str) -> subprocess.CompletedProcess[str]:
    plain = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    return subprocess.run(
        [sys.executable, "-m", "pytest", *args],
        cwd=project,
        capture_output=True,
        text=True,
        check=False,
        env={**plain, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )


@pytest.mark.slow
def test_each_process_runs_its_own_and_one_line_closes_them_all(project: Path) -> None:
    (project / "test_three.py").write_text("import module_that_is_not_there\n")
    done = run(project, "-p", "xdist", "-n", "1", "--junitxml=out.xml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed in " in done.stdout.splitlines()[-1]
    assert done.stdout.count("passed in") == 3
    assert "left out: three (needs module_that_is_not_there)" in done.stdout
    assert (project / "out-one.xml").is_file()
    assert (project / "out-two.xml").is_file()


@pytest.mark.slow
def test_what_needs_one_process_runs_in_place(project: Path) -> None:
    for args in (["test_one.py"], ["--backends", "two"], ["test_neutral.py"], ["test_two.py::test_other"]):
        done = run(project, *args)
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.count("passed in") == 1


@pytest.mark.slow
def test_a_selection_that_leaves_one_process_without_tests_succeeds_and_one_that_leaves_none_does_not(
    project: Path,
) -> None:
    done = run(project, "-k", "other")
    assert done.returncode == 0
    assert "1 passed, 3 deselected" in done.stdout.splitlines()[-1]
    assert run(project, "-k", "nothing_at_all").returncode == pytest.ExitCode.NO_TESTS_COLLECTED


@pytest.mark.slow
def test_a_failure_in_the_first_process_is_the_exit_code_of_all(project: Path) -> None:
    (project / "test_one.py").write_text("def test_one():\n    assert False\n")
    done = run(project)
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert "1 failed, 3 passed in " in done.stdout.splitlines()[-1]
    stopped = run(project, "-x")
    assert stopped.returncode == pytest.ExitCode.TESTS_FAILED
    assert "1 failed, 1 passed in" in stopped.stdout.splitlines()[-1]


def test_a_process_that_dies_is_an_error_and_the_others_still_run(project: Path) -> None:
    (project / "test_one.py").write_text("import os\n\ndef test_one():\n    os.abort()\n")
    done = run(project)
    assert done.returncode == 134
    assert "2 passed, 1 error in " in done.stdout.splitlines()[-1]


def test_a_stranger_is_reported_once_whether_a_test_or_its_module_loads_it(project: Path) -> None:
    (project / "test_one.py").write_text(
        "def test_before():\n    pass\n\ndef test_loads():\n    import colorsys\n\ndef test_after():\n    pass\n"
    )
    done = run(project, "test_one.py")
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert "colorsys was loaded by this test, in the process one" in done.stdout
    assert "3 passed, 1 error in " in done.stdout.splitlines()[-1]
    (project / "test_one.py").write_text("import colorsys\n\ndef test_first():\n    pass\n")
    assert "colorsys was loaded while tests were collected" in run(project, "test_one.py").stdout


def test_a_run_over_its_budget_fails_and_one_within_does_not(project: Path) -> None:
    assert run(project, "--budget", "600").returncode == 0
    over = run(project, "--budget", "0.001", "test_one.py")
    assert over.returncode == pytest.ExitCode.TESTS_FAILED
    assert "over the budget" in over.stdout


@pytest.mark.parametrize(("asked", "said"), [("four", "no backend ['four']"), ("three", "not installed")])
def test_the_run_itself_is_refused_where_it_cannot_do_what_was_asked(project: Path, asked: str, said: str) -> None:
    done = run(project, "--backends", asked)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert said in done.stderr
