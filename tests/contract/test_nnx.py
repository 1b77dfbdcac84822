"""The contract, for Flax nnx modules."""

import pytest

from tiebeam.testing import BackendContract
from tiebeam.zoo.jax.nnx_blueprint import NnxBuilder

pytestmark = pytest.mark.slow  # what is compiled takes its time; functions of a tree stand for all four in `make fast`


class TestNnx(BackendContract):
    builder = NnxBuilder()
