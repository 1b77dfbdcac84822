"""For those who train JAX models. Importing this imports JAX and optax."""

from tiebeam.backends.needing import needing

with needing("jax", "optax", what="tiebeam.jax"):
    from tiebeam.backends.jax.optimizers.groups import optimizer
    from tiebeam.blocks.readout_loss.jax import ReadoutStats, readout_loss

__all__ = ["ReadoutStats", "optimizer", "readout_loss"]
