"""For those who build and train in PyTorch. Importing this imports it."""

from tiebeam.backends.torch.optim import MuonSplit, param_groups, split_for_muon
from tiebeam.blocks.torch import TiedEmbedding

__all__ = ["MuonSplit", "TiedEmbedding", "param_groups", "split_for_muon"]
