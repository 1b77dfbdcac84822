"""The contract, for PyTorch modules."""

from tiebeam.testing import BackendContract
from tiebeam.zoo.torch.blueprint import TorchBuilder


class TestTorch(BackendContract):
    builder = TorchBuilder()
