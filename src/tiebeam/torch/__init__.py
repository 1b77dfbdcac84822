"""For those who build and train in PyTorch. Importing this imports it."""

from tiebeam.backends.torch.optim import MuonSplit, param_groups, split_for_muon
from tiebeam.backends.torch.roles_mixing import Mixing, mix_roles
from tiebeam.blocks.torch import TiedEmbedding
from tiebeam.torch.llama2c import load_llama2c

__all__ = ["Mixing", "MuonSplit", "TiedEmbedding", "load_llama2c", "mix_roles", "param_groups", "split_for_muon"]
