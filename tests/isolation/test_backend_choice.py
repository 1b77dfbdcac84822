"""`--backends` never skips silently: what was asked for is tested, or the run is refused."""

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def conftest(pytestconfig: pytest.Config) -> ModuleType:
    plugin = pytestconfig.pluginmanager.get_plugin(str(ROOT / "tests" / "conftest.py"))
    assert isinstance(plugin, ModuleType)
    return plugin


def test_by_default_every_installed_backend_is_visited(conftest: ModuleType) -> None:
    assert conftest.chosen("", ["numpy", "framework_that_is_not_there"]) == ("numpy",)


def test_those_asked_for_are_visited_once_and_in_order(conftest: ModuleType) -> None:
    assert conftest.chosen("json, numpy,json", ["numpy", "json", "csv"]) == ("json", "numpy")


def test_a_backend_that_is_asked_for_but_not_installed_is_a_usage_error(conftest: ModuleType) -> None:
    with pytest.raises(pytest.UsageError, match="framework_that_is_not_there"):
        conftest.chosen("framework_that_is_not_there", ["numpy", "framework_that_is_not_there"])


def test_a_backend_that_nobody_registered_is_a_usage_error(conftest: ModuleType) -> None:
    with pytest.raises(pytest.UsageError, match="no backend"):
        conftest.chosen("torhc", ["torch"])


def test_the_run_itself_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--backends", "torhc", "--collect-only", str(Path(__file__))],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "no backend ['torhc']" in done.stderr


def test_a_test_that_takes_a_backend_gets_one_that_is_registered(backend: str) -> None:
    from tiebeam.backends import REGISTRY

    assert backend in REGISTRY
