"""For those who build in Flax linen. Importing this imports it."""

from tiebeam.backends.needing import needing

with needing("jax", "flax", what="tiebeam.linen"):
    from tiebeam.blocks.jax import unit_logit_normal
    from tiebeam.blocks.linen import TiedEmbedding

__all__ = ["TiedEmbedding", "unit_logit_normal"]
