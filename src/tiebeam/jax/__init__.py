"""For those who train JAX models. Importing this imports JAX and optax."""

from tiebeam.backends.jax.optim import optimizer
from tiebeam.blocks.readout_loss.jax import ReadoutStats, readout_loss

__all__ = ["ReadoutStats", "optimizer", "readout_loss"]
