"""The contract, for Flax linen modules."""

import pytest

from tiebeam.testing import BackendContract
from tiebeam.zoo.jax.linen_blueprint import LinenBuilder

pytestmark = pytest.mark.slow  # what is compiled takes its time; functions of a tree stand for all four in `make fast`


class TestLinen(BackendContract):
    builder = LinenBuilder()
