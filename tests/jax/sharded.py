"""Run in a process that was given four host devices: a table in shards, and a model in parts."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import tiebeam

VOCAB, WIDTH = 256, 16


def main() -> None:
    mesh = jax.make_mesh((2, 2), ("data", "model"), axis_types=(AxisType.Auto, AxisType.Auto))
    rows, everywhere = PartitionSpec("model", None), PartitionSpec()
    ids = jnp.arange(24).reshape(2, 12)

    def lookup(table: Any, tokens: Any) -> Any:
        return jax.lax.psum(lookup_of_part(table, tokens), "model")

    def apply(params: Any, tokens: Any) -> Any:
        split = {"mesh": mesh, "in_specs": (rows, everywhere)}
        x = jax.shard_map(lookup, out_specs=everywhere, **split)(params["table"], tokens) * 4.0
        h = x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)
        out = PartitionSpec(None, None, "model")
        return jax.shard_map(lambda t, v: v @ t.T, out_specs=out, **split)(params["table"], h) * 0.5

    assert jax.device_count() == 4
    whole = jnp.ones((VOCAB, WIDTH))
    params = {"table": jax.device_put(whole, NamedSharding(mesh, rows))}
    [table] = tiebeam.inspect(apply, ids, params=params).tables
    assert (table.state, table.vocab, table.lookup_factor, table.readout_factor) == ("tied", VOCAB, 4.0, 0.5), table
    fresh, _ = tiebeam.initialize_params(apply, ids, params)
    assert fresh["table"].sharding == params["table"].sharding
    assert len({s.data.shape for s in fresh["table"].addressable_shards}) == 1
    assert fresh["table"].addressable_shards[0].data.shape == (VOCAB // 2, WIDTH)

    def plain(params: Any, tokens: Any) -> Any:
        x = params["table"][tokens] * 4.0
        return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) @ params["table"].T * 0.5

    alone, _ = tiebeam.initialize_params(plain, ids, {"table": whole})
    assert np.array_equal(alone["table"], fresh["table"])
    assert abs(float(apply(fresh, ids).std()) - 1) < 0.1

    free, _ = tiebeam.initialize_params(apply, ids, {"table": whole})  # JAX moves it to the mesh, before and after
    assert abs(float(apply(free, ids).std()) - 1) < 0.1

    for checked in (True, False):
        sums_over_devices(mesh, ids, whole, checked)


def sums_over_devices(mesh: Any, ids: Any, whole: Any, checked: bool) -> None:
    """A sum over devices multiplies what all of them hold alike, and puts parts together."""
    everywhere, rows, columns = PartitionSpec(), PartitionSpec("model", None), PartitionSpec(None, "model")

    def mapped(body: Any, *specs: Any) -> Any:
        return jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=everywhere, check_vma=checked)

    def positions(table: Any, tokens: Any) -> Any:
        mine = jnp.arange(tokens.shape[1]) % 2 == jax.lax.axis_index("model")
        return jax.lax.psum(jnp.where(mine[:, None], table[tokens], 0.0), "model")

    lookups: list[tuple[float, Any, Any]] = [
        (2.0, lambda t, i: jax.lax.psum(t[i], "model"), everywhere),
        (4.0, lambda t, i: jax.lax.psum(t[i], ("data", "model")), everywhere),
        (1.0, lambda t, i: jax.lax.pmean(t[i], "model"), everywhere),
        (1.0, lambda t, i: jax.lax.psum(lookup_of_part(t, i), "model"), rows),
        (1.0, positions, everywhere),
    ]
    if not checked:  # JAX itself refuses to sum what is checked to differ along one of two axes
        lookups.append((2.0, lambda t, i: jax.lax.psum(lookup_of_part(t, i), ("data", "model")), rows))
    readouts = [
        (1.0, lambda h, t: jax.lax.psum(h @ t.T, "model")),
        (0.5, lambda h, t: jax.lax.pmean(h @ t.T, "model")),
    ]
    for look, (factor, body, spec) in enumerate(lookups):
        times, product = readouts[look % 2]

        def apply(params: Any, tokens: Any, body: Any = body, spec: Any = spec, product: Any = product) -> Any:
            x = mapped(body, spec, everywhere)(params["table"], tokens)
            h = x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)
            return mapped(product, PartitionSpec(None, None, "model"), columns)(h, params["table"])

        [table] = tiebeam.inspect(apply, ids, params={"table": whole}).tables
        assert (table.state, table.lookup_factor, table.readout_factor) == ("tied", factor, times), (look, table)


def lookup_of_part(table: Any, tokens: Any) -> Any:
    local = tokens - jax.lax.axis_index("model") * table.shape[0]
    ours = (local >= 0) & (local < table.shape[0])
    return jnp.where(ours[..., None], table[jnp.where(ours, local, 0)], 0.0)


if __name__ == "__main__":
    main()
