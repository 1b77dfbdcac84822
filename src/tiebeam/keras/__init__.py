"""For those who build and train in Keras. Importing this imports it."""

from tiebeam.backends.keras.optim import optimizer
from tiebeam.blocks.keras import TiedEmbedding, UnitLogitNormal

__all__ = ["TiedEmbedding", "UnitLogitNormal", "optimizer"]
