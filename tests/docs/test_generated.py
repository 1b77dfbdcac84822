"""The generated pages hold all that the code holds, and refuse what they cannot show."""

import importlib.util
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"


@dataclass(frozen=True)
class Kind:
    code: str
    severity: str
    summary: str


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("tiebeam_docs_generate", DOCS / "_generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_kind_of_finding_stands_once_on_the_page(generate: ModuleType) -> None:
    from tiebeam.core.findings import CATALOG

    page = generate.findings_page(CATALOG)
    assert CATALOG
    for kind in CATALOG:
        assert page.count(f"\n| `{kind.code}` | ") == 1


def test_a_bar_in_a_summary_does_not_break_the_table(generate: ModuleType) -> None:
    page = generate.findings_page([Kind("a-b", "info", "the size\nof |x|")])
    assert "| `a-b` | the size of \\|x\\| |" in page


@pytest.mark.parametrize(
    ("kinds", "complaint"),
    [
        ([Kind("a", "info", ""), Kind("a", "error", "")], "stands twice"),
        ([Kind("a", "fatal", "")], "unknown severity"),
    ],
    ids=["twice", "unknown"],
)
def test_a_catalogue_that_contradicts_itself_is_refused(
    generate: ModuleType, kinds: list[Kind], complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        generate.findings_page(kinds)


def test_the_page_on_the_command_line_shows_every_command(generate: ModuleType) -> None:
    from typer.main import get_command

    from tiebeam.cli.app import app

    assert sorted(get_command(app).commands) == sorted(generate.COMMANDS)
    page = generate.cli_page()
    for command in generate.COMMANDS:
        assert f"## tiebeam {command}\n" in page
    assert page.count("--help") > len(generate.COMMANDS)


def test_a_command_that_does_not_exist_fails_the_page(generate: ModuleType) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        generate.help_text("command-that-is-not-there")


def test_the_generator_runs_as_a_script_without_the_documentation_tools() -> None:
    code = "import runpy, sys; runpy.run_path(sys.argv[1]); assert 'sphinx' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code, str(DOCS / "_generate.py")], check=False)
    assert done.returncode == 0
