"""Golden files: what a report looked like when someone last looked at it and found it right."""

from collections.abc import Callable
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write golden files anew instead of comparing with them"
    )


@pytest.fixture
def assert_golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare a text with the golden file of that name, or write it when asked to."""

    def compare(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden", default=False):
            path.write_text(text, encoding="utf-8")
            return
        assert path.is_file(), f"no golden file {path.name}; look at the text and run with --update-golden"
        assert text == path.read_text(encoding="utf-8")

    return compare
