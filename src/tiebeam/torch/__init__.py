"""For those who build in PyTorch. Importing this imports it."""

from tiebeam.blocks.torch import TiedEmbedding

__all__ = ["TiedEmbedding"]
