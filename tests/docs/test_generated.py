"""The generated pages hold all that the code holds, and refuse what they cannot show."""

import importlib.util
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.slow

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


def test_the_page_on_findings_is_as_the_code_has_it(generate: ModuleType, pytestconfig: pytest.Config) -> None:
    page = DOCS / "findings.md"
    right = generate.findings_page(page.read_text("utf-8"))
    if pytestconfig.getoption("--update-pages"):
        page.write_text(right, encoding="utf-8")
        return
    assert page.read_text("utf-8") == right, "if the code is right: pytest tests/docs --update-pages"


def test_the_rules_on_the_page_on_training_are_as_the_code_has_them(
    generate: ModuleType, pytestconfig: pytest.Config
) -> None:
    from tiebeam.core.training.optimizers import RULES

    page = DOCS / "training.md"
    right = generate.training_page(page.read_text("utf-8"))
    assert re.findall(r"^\| `([a-z-]+)` \|", right, re.MULTILINE) == list(RULES)
    if pytestconfig.getoption("--update-pages"):
        page.write_text(right, encoding="utf-8")
        return
    assert page.read_text("utf-8") == right, "if the code is right: pytest tests/docs --update-pages"
    with pytest.raises(ValueError, match="lacks the marks"):
        generate.training_page("# Training")


def test_every_kind_of_finding_stands_once_on_the_page_the_most_severe_first() -> None:
    from tiebeam.core.findings import CATALOG

    page = (DOCS / "findings.md").read_text("utf-8")
    assert CATALOG
    for kind in CATALOG:
        assert page.count(f"\n| `{kind.code}` | {kind.severity} | ") == 1
    severities = re.findall(r"^\| `[a-z-]+` \| (\w+) \|", page, re.MULTILINE)
    assert severities == sorted(severities, key=("error", "warning", "info").index)


def test_every_error_and_warning_says_what_to_do(generate: ModuleType) -> None:
    from tiebeam.core.findings import CATALOG

    advice = generate.advice_in(generate.SOURCE)
    assert {kind.code for kind in CATALOG if kind.severity != "info"} <= set(advice)


def test_advice_is_what_the_code_says_and_nothing_that_depends_on_the_model(
    generate: ModuleType, tmp_path: Path
) -> None:
    (tmp_path / "rules.py").write_text(
        'FLAG = "tie"\n'
        'Finding("a", "info", "", "m", hint="turn it")\n'
        'Finding("a", "info", "", "m", hint="turn it")\n'
        'Finding("b", "info", "", "m", hint=f"set {FLAG}")\n'
        'Finding("c", "info", "", "m", hint=f"slice {path}")\n'
        'Finding("d", "info", "", "m", fix=fixes.initialize() if x else "")\n'
        'Finding("e", "info", "", "m", fix=fixes.tie(a, b))\n'
        'Other("f", hint="no")\n'
    )
    assert generate.advice_in(tmp_path) == {
        "a": ["turn it"],
        "b": ["set `tie`"],
        "d": ["`tiebeam.initialize(model, inputs)`"],
    }


def test_a_bar_in_a_summary_does_not_break_the_table(generate: ModuleType) -> None:
    table = generate.findings_table([Kind("a-b", "info", "the size\nof |x|")], {"a-b": ["one", "two"]})
    assert table.splitlines()[-1] == "| `a-b` | info | the size of \\|x\\| | one; or two |"


def test_a_page_without_the_mark_is_refused(generate: ModuleType) -> None:
    with pytest.raises(ValueError, match="lacks the mark"):
        generate.findings_page("# Findings")


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
        generate.findings_table(kinds, {})


def test_advice_on_a_code_that_is_not_in_the_catalogue_is_refused(generate: ModuleType) -> None:
    with pytest.raises(ValueError, match=r"advice on \{.b.\}"):
        generate.findings_table([Kind("a", "info", "")], {"b": ["x"]})


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
