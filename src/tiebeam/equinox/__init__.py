"""For those who build in Equinox. Importing this imports it."""

from tiebeam.backends.needing import needing

with needing("jax", "equinox", what="tiebeam.equinox"):
    from tiebeam.blocks.equinox import TiedEmbedding

__all__ = ["TiedEmbedding"]
