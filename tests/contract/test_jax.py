"""The contract, for functions of a params tree."""

from tiebeam.testing import BackendContract
from tiebeam.zoo.jax.blueprint import FunctionBuilder


class TestFunctions(BackendContract):
    builder = FunctionBuilder()
