"""Run with four host devices: tokens over one axis of a mesh, rows of the table over the other."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from tiebeam.jax import readout_loss


def main():
    assert jax.device_count() == 4
    mesh = jax.make_mesh((2, 2), ("data", "model"), axis_types=(AxisType.Auto, AxisType.Auto))
    rng = np.random.default_rng(0)
    hidden, table = (jnp.asarray(rng.normal(size=s), jnp.float32) for s in ((16, 6), (24, 6)))
    targets = jnp.asarray(rng.integers(0, 24, 16))

    def loss(hidden, table, targets):
        return readout_loss(hidden, table, targets, chunk=4)

    both = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))
    want = both(hidden, table, targets)
    placed = [jax.device_put(a, NamedSharding(mesh, s)) for a, s in
              ((hidden, P("data")), (table, P("model")), (targets, P("data")))]  # fmt: skip
    found = both(*placed)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)

    def of_part(hidden, table, targets):
        return jax.lax.pmean(loss(hidden, table, targets), "data")

    specs = {"mesh": mesh, "in_specs": (P("data"), P(), P("data")), "out_specs": P()}
    mapped = jax.shard_map(of_part, **specs)
    for a, b in zip(
        jax.tree.leaves(jax.jit(jax.value_and_grad(mapped, argnums=(0, 1)))(hidden, table, targets)),
        jax.tree.leaves(want),
        strict=True,
    ):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


if __name__ == "__main__":
    main()
