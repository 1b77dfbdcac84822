import re
from dataclasses import replace

import pytest
from tests.reports.examples import EXAMPLES, HEALTHY, HOSTILE_NAMES, MANY_NAMES, TIED, UNHEALTHY

from tiebeam.core.finding import Finding

every_report = pytest.mark.parametrize("report", EXAMPLES.values(), ids=EXAMPLES)


def outside_code(text):
    """The text without fenced blocks and code spans."""
    text = re.sub(r"^(`{3,})python\n.*?\n\1$", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"(?<![\\`])(`+)(?!`).*?(?<!`)\1(?!`)", "", text)


@every_report
def test_every_row_of_a_table_has_two_cells(report):
    rows = [line for line in report.to_markdown().splitlines() if line.startswith("|")]
    assert all(len(re.split(r"(?<!\\)\|", line)) == 4 for line in rows)
    assert len(rows) > 5 or not report.tables


def test_hostile_names_form_no_markup():
    prose = outside_code(HOSTILE_NAMES.to_markdown())
    assert not re.search(r"(?<!\\)<", prose)
    assert not re.search(r"(?<!\\)\[(?!31m)", prose)
    assert "\x1b" not in prose
    heads = [line.split(" ")[0] for line in HOSTILE_NAMES.to_markdown().splitlines() if re.match(r"#+ ", line)]
    assert heads == ["#", "##", "##", "###", "#", "##", "##"]  # the second "#" is a comment in a fix
    assert "# [red]x[/red]" in HOSTILE_NAMES.to_markdown()


def test_a_fix_that_holds_a_fence_stays_inside_its_own():
    finding = Finding("x", "error", "", "# not a heading", fix='print("""\n```\n""")')
    text = replace(HEALTHY, findings=(finding,)).to_markdown()
    assert '````python\nprint("""\n```\n""")\n````' in text
    assert "\n\\# not a heading\n" in text


def test_a_name_with_backticks_is_still_code():
    text = replace(HEALTHY, tables=(replace(TIED, names=("a`b``c`",)),)).to_markdown()
    assert "## Table ``` a`b``c` ```" in text


def test_findings_stand_from_error_to_info():
    heads = [line for line in UNHEALTHY.to_markdown().splitlines() if line.startswith("### ")]
    assert [h.split()[1] for h in heads] == ["error:", "warning:", "info:"]


def test_every_name_is_listed():
    assert all(f"`{n}`" in MANY_NAMES.to_markdown() for n in MANY_NAMES.tables[0].names)
