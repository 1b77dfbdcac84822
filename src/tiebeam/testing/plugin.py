"""For pytest, where tiebeam is installed: fixtures that assert ties, without an import.

The fixtures are loaded when a test asks for them, so that a run that needs none does not pay for them.
"""

from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture
def assert_tied() -> Callable[..., None]:
    """`tiebeam.testing.assert_tied`."""
    from tiebeam.testing.ties import assert_tied as assertion

    return assertion


@pytest.fixture
def assert_survives() -> Callable[..., Any]:
    """`tiebeam.testing.assert_survives`."""
    from tiebeam.testing.ties import assert_survives as assertion

    return assertion
