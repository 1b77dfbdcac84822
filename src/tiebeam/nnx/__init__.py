"""For those who build in Flax nnx. Importing this imports it."""

from tiebeam.backends.needing import needing

with needing("jax", "flax", what="tiebeam.nnx"):
    from tiebeam.blocks.jax import unit_logit_normal
    from tiebeam.blocks.nnx import TiedEmbedding

__all__ = ["TiedEmbedding", "unit_logit_normal"]
