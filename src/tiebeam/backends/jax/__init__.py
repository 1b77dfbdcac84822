"""JAX: functions of a params tree, Flax linen and nnx modules, Equinox modules."""
