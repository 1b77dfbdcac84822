"""Small JAX models."""
