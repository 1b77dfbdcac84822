"""For those who build in Keras. Importing this imports it."""

from tiebeam.blocks.keras import TiedEmbedding, UnitLogitNormal
from tiebeam.blocks.readout_loss.keras import readout_loss

__all__ = ["TiedEmbedding", "UnitLogitNormal", "readout_loss"]
