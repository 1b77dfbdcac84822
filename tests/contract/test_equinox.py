"""The contract, for Equinox modules."""

import pytest

from tiebeam.testing import BackendContract
from tiebeam.zoo.jax.equinox_blueprint import EquinoxBuilder

pytestmark = pytest.mark.slow  # what is compiled takes its time; functions of a tree stand for all four in `make fast`


class TestEquinox(BackendContract):
    builder = EquinoxBuilder()
