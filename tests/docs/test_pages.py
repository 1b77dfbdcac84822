"""Every example in the README and the documentation runs; what they list is what there is."""

import doctest
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import tiebeam

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(python|pycon)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def examples(text: str) -> Iterator[tuple[str, str, int]]:
    """Language, source and line of every fenced Python block."""
    for found in FENCE.finditer(text):
        yield found[1], found[2], text.count("\n", 0, found.start()) + 1


def run_page(text: str, name: str) -> None:
    """Run the blocks of a page in order, in one namespace; `pycon` must print as shown."""
    space: dict[str, object] = {"__name__": "__page__"}
    runner = doctest.DebugRunner(optionflags=FLAGS)
    for language, source, line in examples(text):
        if language == "python":
            exec(compile("\n" * line + source, name, "exec"), space)
            continue
        test = doctest.DocTestParser().get_doctest(source, space, name, name, line)
        test.globs = space
        try:
            runner.run(test, clear_globs=False)
        except doctest.DocTestFailure as failure:
            raise AssertionError(
                f"{name}:{line + failure.example.lineno + 1}: {failure.example.source.strip()}\n"
                f"printed {failure.got!r}, the page says {failure.example.want!r}"
            ) from None
        except doctest.UnexpectedException as failure:
            raise failure.exc_info[1] from None


@pytest.mark.parametrize(
    "page", [p for p in PAGES if any(examples(p.read_text("utf-8")))], ids=lambda p: p.name
)
def test_every_example_of_the_page_runs_and_prints_what_the_page_says(page: Path) -> None:
    run_page(page.read_text("utf-8"), page.name)


def test_a_page_whose_output_is_wrong_fails_and_says_where() -> None:
    with pytest.raises(AssertionError, match=re.escape("page.md:5: x\nprinted '1\\n'")):
        run_page("```python\nx = 1\n```\n```pycon\n>>> x\n2\n```\n", "page.md")


def test_a_page_whose_code_raises_fails() -> None:
    with pytest.raises(ZeroDivisionError):
        run_page("```pycon\n>>> 1 / 0\n```\n", "page.md")


def test_the_readme_has_an_example() -> None:
    assert [language for language, _, _ in examples(PAGES[0].read_text("utf-8"))] == ["python", "pycon"]


def test_every_public_name_stands_in_the_api_reference() -> None:
    page = (ROOT / "docs" / "api.md").read_text("utf-8")
    said = re.findall(r"^\.\. auto\w+:: (\w+)$", page, re.MULTILINE)
    assert sorted(said) == sorted(tiebeam.__all__)


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
    asked = [
        r for rs in (project["project"]["dependencies"], *extras, *groups) for r in rs if isinstance(r, str)
    ]
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
