"""Every example in the README and the documentation runs; what they list is what there is."""

import ast
import contextlib
import doctest
import io
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from inspect import Parameter, Signature, signature
from pathlib import Path

import pytest
from tests.processes.table import COMPILING, EXAMPLES, TORCH

import tiebeam
from tiebeam.core.findings.catalog import CODES

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(python|pycon)\n(.*?)^```$(?:\n\n```text\n(.*?)^```$)?", re.DOTALL | re.MULTILINE)
IMPORT = re.compile(r"^(?:>>> )?(?:import|from) (\w+)", re.MULTILINE)
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def run_page(text: str, name: str) -> str:
    """Run the Python blocks of a page in order, in one namespace.

    A `pycon` block must print as shown. What a `python` block prints stands in the `text` block below it.

    Returns:
        The page with those `text` blocks as they should be.
    """
    space: dict[str, object] = {"__name__": "__page__"}
    parts: list[str] = []
    end = 0
    for block in FENCE.finditer(text):
        language, source, shown = block.groups()
        line = text.count("\n", 0, block.start()) + 1
        parts += [text[end : block.start()], block[0]]
        end = block.end()
        if language == "pycon":
            run_session(source, space, name, line)
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile("\n" * line + source, name, "exec"), space)
        if printed.getvalue() or shown is not None:
            parts[-1] = f"```python\n{source}```\n\n```text\n{printed.getvalue()}```"
    return "".join([*parts, text[end:]])


def run_session(source: str, space: dict[str, object], name: str, line: int) -> None:
    """Run a `pycon` block of a page; fail where it prints something else, raise what it raises."""
    test = doctest.DocTestParser().get_doctest(source, space, name, name, line)
    test.globs = space
    try:
        doctest.DebugRunner(optionflags=FLAGS).run(test, clear_globs=False)
    except doctest.DocTestFailure as failure:
        raise AssertionError(
            f"{name}:{line + failure.example.lineno + 1}: {failure.example.source.strip()}\n"
            f"printed {failure.got!r}, the page says {failure.example.want!r}"
        ) from None
    except doctest.UnexpectedException as failure:
        raise failure.exc_info[1] from None


def frameworks(text: str) -> set[tuple[str, ...]]:
    """Where what the blocks of a page import would run."""
    imported = {name for block in FENCE.finditer(text) for name in IMPORT.findall(block[2])}
    return {where for module, where in EXAMPLES.items() if module in imported}


def run_apart(page: Path) -> str:
    """`run_page` in an interpreter of its own: a page may show two frameworks, a process of the tests has one."""
    code = (
        "import pathlib, sys; from tests.docs.test_pages import run_page; page = pathlib.Path(sys.argv[1]);"
        "right = run_page(page.read_text('utf-8'), page.name); pathlib.Path(sys.argv[2]).write_text(right, 'utf-8')"
    )
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder, page.name)
        done = subprocess.run(
            [sys.executable, "-c", code, str(page), str(written)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            env={
                **os.environ,
                **COMPILING,
                "KERAS_BACKEND": "jax",
            },  # not TensorFlow, which a page's PyTorch does not get on with
        )
        assert done.returncode == 0, done.stderr
        return written.read_text("utf-8")


@pytest.mark.parametrize("page", [p for p in PAGES if FENCE.search(p.read_text("utf-8"))], ids=lambda p: p.name)
def test_every_example_of_the_page_runs_and_prints_what_the_page_says(
    page: Path, pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = page.read_text("utf-8")
    right = run_apart(page) if frameworks(text) - {TORCH} else run_page(text, page.name)
    if pytestconfig.getoption("--update-pages"):
        page.write_text(right, encoding="utf-8")
        return
    assert text == right, "if the new output is right: pytest tests/docs --update-pages"


def test_a_page_whose_output_is_wrong_fails_and_says_where() -> None:
    with pytest.raises(AssertionError, match=re.escape("page.md:5: x\nprinted '1\\n'")):
        run_page("```python\nx = 1\n```\n```pycon\n>>> x\n2\n```\n", "page.md")


def test_what_a_page_prints_is_put_right_below_the_code_and_nothing_else_moves() -> None:
    page = "a\n\n```python\nprint(1)\n```\n\n```text\n2\n```\n\nb\n\n```python\nprint(3)\n```\nc\n"
    right = run_page(page, "page.md")
    assert right == page.replace("text\n2\n", "text\n1\n").replace("3)\n```", "3)\n```\n\n```text\n3\n```")
    assert run_page(right, "page.md") == right


def test_a_page_whose_code_raises_fails() -> None:
    with pytest.raises(ZeroDivisionError):
        run_page("```pycon\n>>> 1 / 0\n```\n", "page.md")


def test_a_page_of_two_frameworks_runs_apart_and_fails_there_too(tmp_path: Path) -> None:
    assert frameworks("```python\nimport torch\n```\n```pycon\n>>> import jax.numpy as jnp\n```\n") == {TORCH, ("jax",)}
    page = tmp_path / "page.md"
    page.write_text("```pycon\n>>> 1 + 1\n3\n```\n")
    with pytest.raises(AssertionError, match="the page says '3"):
        run_apart(page)


def test_the_readme_has_an_example_and_its_printed_report() -> None:
    first = FENCE.search(PAGES[0].read_text("utf-8"))
    assert first is not None
    assert "print(report)" in first[2]
    assert "lookup_factor" not in first[2]
    assert re.search(r"^  lookup .*factor 8", first[3], re.MULTILINE)


def test_the_readme_shows_the_classic_mistake_found_and_mended() -> None:
    sessions = "".join(b[2] for b in FENCE.finditer(PAGES[0].read_text("utf-8")) if b[1] == "pycon")
    order = [sessions.index(word) for word in ("init-scale", "finding.fix", "tiebeam.initialize(model, ids")]
    assert order == sorted(order)
    assert sessions.index("assert_healthy()") > order[-1]


def test_the_calls_in_the_readme_have_the_arguments_it_says() -> None:
    text = PAGES[0].read_text("utf-8")
    for call in (tiebeam.inspect, tiebeam.initialize):
        said = re.search(rf"^\| `tiebeam\.{call.__name__}\((.*?)\)`", text, re.MULTILINE)
        assert said is not None, call
        real = str(signature(call).replace(return_annotation=Signature.empty, parameters=bare(call)))
        assert said[1] == real.strip("()").replace("'", '"')


def bare(call: object) -> list[Parameter]:
    """The parameters of a call without their annotations."""
    assert callable(call)
    return [p.replace(annotation=Parameter.empty) for p in signature(call).parameters.values()]


def test_the_renderings_in_the_readme_are_all_there_are() -> None:
    said = set(re.findall(r"`report\.(to_\w+)\(\)`", PAGES[0].read_text("utf-8")))
    assert said == {name for name in dir(tiebeam.Report) if name.startswith("to_")}


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=lambda p: p.name)
def test_what_a_page_links_to_is_there(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)[^)]*\)", page.read_text("utf-8"))
    missing = [link for link in links if not (page.parent / link).exists()]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_a_finding_that_a_page_names_is_in_the_catalogue(page: Path) -> None:
    named = set(re.findall(r"finding `([a-z-]+)`|`([a-z]+(?:-[a-z]+)+)` finding", page.read_text("utf-8")))
    assert {a or b for a, b in named} <= CODES


def test_every_public_name_stands_in_the_api_reference() -> None:
    page = (ROOT / "docs" / "api.md").read_text("utf-8")
    said = re.findall(r"^\.\. auto\w+:: (\w+)$", page, re.MULTILINE)
    assert sorted(said) == sorted(tiebeam.__all__)


@pytest.mark.parametrize("module", ["torch", "linen", "nnx", "equinox", "keras"])
def test_every_name_for_one_framework_stands_in_the_api_reference(module: str) -> None:
    page = (ROOT / "docs" / "api.md").read_text("utf-8")
    source = (ROOT / "src" / "tiebeam" / module / "__init__.py").read_text("utf-8")  # read: to import is to load it
    [names] = [
        ast.literal_eval(node.value)
        for node in ast.parse(source).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    ]
    assert names
    said = set(re.findall(r"^\.\. auto\w+:: tiebeam\.\w+\.(\w+)$", page, re.MULTILINE))
    assert f"tiebeam.{module}.TiedEmbedding" in page
    assert set(names) <= said


def pinned() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    return dict(line.split("==") for line in lines if "==" in line)


def test_the_versions_the_readme_says_are_tested_are_the_ones_installed_for_the_tests() -> None:
    said = dict(re.findall(r"^\| ([a-z]+) \| ([\d.]+) \|$", PAGES[0].read_text("utf-8"), re.MULTILINE))
    assert {"torch", "transformers", "numpy"} <= set(said)
    assert said == {name: pinned()[name] for name in said}


def test_every_direct_dependency_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    extras = project["project"]["optional-dependencies"].values()
    groups = project["dependency-groups"].values()
    asked = [r for rs in (project["project"]["dependencies"], *extras, *groups) for r in rs if isinstance(r, str)]
    names = {re.split(r"[\[><=]", requirement)[0].lower() for requirement in asked} - {"tiebeam"}
    assert names <= {name.lower().replace("_", "-") for name in pinned()}


def test_the_changelog_speaks_of_this_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    assert f"## [{project['project']['version']}]" in (ROOT / "CHANGELOG.md").read_text("utf-8")


def test_every_target_that_contributing_names_is_in_the_makefile() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8") + PAGES[0].read_text("utf-8")
    named = set(re.findall(r"make ([a-z]+)(?=`|\s+#)", text))
    assert {"test", "demo", "lint"} <= named
    assert named <= targets
