"""For those who build in Flax nnx. Importing this imports it."""

from tiebeam.blocks.jax import unit_logit_normal
from tiebeam.blocks.nnx import TiedEmbedding

__all__ = ["TiedEmbedding", "unit_logit_normal"]
