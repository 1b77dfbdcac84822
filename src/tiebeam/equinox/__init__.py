"""For those who build in Equinox. Importing this imports it."""

from tiebeam.blocks.equinox import TiedEmbedding

__all__ = ["TiedEmbedding"]
