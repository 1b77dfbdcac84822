"""For those who train JAX models. Importing this imports JAX and optax."""

from tiebeam.backends.jax.optim import optimizer

__all__ = ["optimizer"]
