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
        start = jax.lax.axis_index("model") * table.shape[0]
        local = tokens - start
        ours = (local >= 0) & (local < table.shape[0])
        found = jnp.where(ours[..., None], table[jnp.where(ours, local, 0)], 0.0)
        return jax.lax.psum(found, "model")

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


if __name__ == "__main__":
    main()
