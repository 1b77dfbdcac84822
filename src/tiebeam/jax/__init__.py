"""What JAX models are trained with."""

from tiebeam.backends.jax.optim import optimizer as optimizer
