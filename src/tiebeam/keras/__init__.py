"""For those who build and train in Keras. Importing this imports it."""

from tiebeam.backends.needing import needing

with needing("keras", what="tiebeam.keras"):
    from tiebeam.backends.keras.optimizers.groups import optimizer
    from tiebeam.blocks.keras import TiedEmbedding, UnitLogitNormal
    from tiebeam.blocks.readout_loss.keras import readout_loss

__all__ = ["TiedEmbedding", "UnitLogitNormal", "optimizer", "readout_loss"]
