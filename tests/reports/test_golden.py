import pytest
from tests.reports.examples import EXAMPLES

from tiebeam.reports.text import to_text


@pytest.mark.parametrize("case", EXAMPLES)
def test_the_text_is_as_it_was_last_found_right(case, assert_golden):
    assert_golden(f"{case}.txt", to_text(EXAMPLES[case], width=80, color=False, encoding="utf-8") + "\n")


@pytest.mark.parametrize("case", EXAMPLES)
def test_the_narrow_text_is_as_it_was_last_found_right(case, assert_golden):
    assert_golden(f"{case}-40.txt", to_text(EXAMPLES[case], width=40, color=False, encoding="ascii") + "\n")


@pytest.mark.parametrize("case", EXAMPLES)
def test_the_markdown_is_as_it_was_last_found_right(case, assert_golden):
    assert_golden(f"{case}.md", EXAMPLES[case].to_markdown())


@pytest.mark.parametrize("case", EXAMPLES)
def test_the_json_is_as_it_was_last_found_right(case, assert_golden):
    assert_golden(f"{case}.json", EXAMPLES[case].to_json() + "\n")


def test_a_golden_file_that_differs_is_noticed(assert_golden, request):
    if request.config.getoption("--update-golden", default=False):
        pytest.skip("nothing is compared while golden files are written")
    with pytest.raises(AssertionError):
        assert_golden("healthy.txt", "something else")
    with pytest.raises(AssertionError, match="no golden file"):
        assert_golden("no-such-case.txt", "")
