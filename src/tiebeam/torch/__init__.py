"""For those who build and train in PyTorch. Importing this imports it."""

from tiebeam.backends.needing import needing

with needing("torch", what="tiebeam.torch"):
    from tiebeam.backends.torch.optimizers.groups import MuonSplit, param_groups, split_for_muon
    from tiebeam.backends.torch.optimizers.mixing import Mixing, mix_roles
    from tiebeam.backends.torch.readout.in_use import ReadoutLossInUse, use_readout_loss
    from tiebeam.blocks.readout_loss.torch.call import readout_loss
    from tiebeam.blocks.readout_loss.torch.statistics import ReadoutStats
    from tiebeam.blocks.torch import TiedEmbedding
    from tiebeam.torch.llama2c import load_llama2c

__all__ = [
    "Mixing",
    "MuonSplit",
    "ReadoutLossInUse",
    "ReadoutStats",
    "TiedEmbedding",
    "load_llama2c",
    "mix_roles",
    "param_groups",
    "readout_loss",
    "split_for_muon",
    "use_readout_loss",
]
