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
    with_explicit_axes(hidden, table, targets)

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


def with_explicit_axes(hidden, table, targets):
    """On the mesh that `make_mesh` makes by itself; every option, eagerly and compiled."""
    mesh = jax.make_mesh((2, 2), ("data", "model"))
    hidden, targets = hidden.reshape(4, 4, 6), targets.reshape(4, 4)
    bias, weight = jnp.linspace(-1.0, 1.0, 24), jnp.linspace(0.5, 2.0, 24)

    def loss(hidden, table, bias, factor, targets, weight):
        options = {"soft_cap": 5.0, "label_smoothing": 0.1, "z_loss": 1e-3, "reduction": "none", "chunk": 4}
        losses, stats = readout_loss(
            hidden, table, targets, bias=bias, factor=factor, weight=weight, ids=targets, returns="stats", **options
        )
        return (losses * jnp.arange(4.0)).sum(), (losses, stats)

    both = jax.value_and_grad(loss, argnums=(0, 1, 2, 3), has_aux=True)
    given = (hidden, table, bias, jnp.float32(1.5), targets, weight)
    want = both(*given)
    for tokens, rows in (
        (P("data"), P("model")),
        (P("data", "model"), P()),
        (P(None, "data"), P(None, "model")),
        (P(), P(("data", "model"))),
    ):
        at = P(*tokens[:1], *tokens[1:2], *((None,) * (2 - len(tokens))), *rows[1:])  # the width, as the table's
        specs = (at, rows, P(*rows[:1]), P(), tokens, P(*rows[:1]))
        with jax.set_mesh(mesh):
            placed = [jax.device_put(a, NamedSharding(mesh, s)) for a, s in zip(given, specs, strict=True)]
            for run in (both, jax.jit(both)):
                found = run(*placed)
                for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(want), strict=True):
                    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
                (_, (losses, _)), gradients = found
                assert jax.typeof(losses).sharding == jax.typeof(placed[4]).sharding
                for gradient, of in zip(gradients[:3], placed, strict=False):
                    assert jax.typeof(gradient).sharding == jax.typeof(of).sharding


if __name__ == "__main__":
    main()
