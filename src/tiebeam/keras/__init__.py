"""For those who build in Keras. Importing this imports it."""

from tiebeam.blocks.keras import TiedEmbedding, UnitLogitNormal

__all__ = ["TiedEmbedding", "UnitLogitNormal"]
