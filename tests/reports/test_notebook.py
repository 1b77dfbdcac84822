import pytest
from tests.reports.examples import EXAMPLES, HOSTILE_NAMES, UNHEALTHY
from tests.reports.trees import rows, tree

from tiebeam.reports.numbers import known

every_report = pytest.mark.parametrize("report", EXAMPLES.values(), ids=EXAMPLES)


@every_report
def test_a_notebook_gets_one_fragment_that_keeps_to_itself(report):
    fragment = tree(report._repr_html_())
    (root,) = fragment.children
    assert (root.tag, root.attributes) == ("div", {"class": "tiebeam"})
    assert not {n.tag for n in root.walk()} & {"html", "body", "script", "link", "img"}
    assert not any("id" in n.attributes for n in root.walk())  # two reports may share a page
    rules = [line for line in root.all("style")[0].text.splitlines() if line.strip()]
    assert all(line.startswith((".tiebeam", ".tb-roof", "@media (max-width:34rem){.tb-roof")) for line in rules)


def test_errors_are_open_and_everything_else_can_be_opened():
    details = tree(UNHEALTHY._repr_html_()).all("details")
    opened = [d.all("summary")[0].text for d in details if "open" in d.attributes]
    assert opened == ["error init-scale at transformer.wte.weight"]
    assert len(details) == 4


@every_report
def test_the_figures_are_those_of_the_report(report):
    details = [d for d in tree(report._repr_html_()).all("details") if d.all("svg")]
    for part, table in zip(details, report.tables, strict=True):
        assert rows(part)["std now"].split(" (")[0] == known(table.std)


def test_hostile_names_stay_text():
    assert "<script" not in HOSTILE_NAMES._repr_html_()
