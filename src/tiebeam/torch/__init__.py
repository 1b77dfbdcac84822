"""For those who build and train in PyTorch. Importing this imports it."""

from tiebeam.backends.torch.optim import MuonSplit, param_groups, split_for_muon
from tiebeam.backends.torch.roles_mixing import Mixing, mix_roles
from tiebeam.blocks.torch import TiedEmbedding

__all__ = ["Mixing", "MuonSplit", "TiedEmbedding", "mix_roles", "param_groups", "split_for_muon"]
