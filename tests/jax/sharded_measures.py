"""Run in a process that was given four host devices: figures of parts, and of arrays whose types say how they lie."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import tiebeam

VOCAB, WIDTH = 64, 16
TABLE = 0.3 * jax.random.normal(jax.random.key(0), (VOCAB, WIDTH))
IDS = jnp.arange(24).reshape(4, 6)


def rms_norm(x: Any) -> Any:
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)


def rms(x: Any) -> float:
    return float(jnp.sqrt(jnp.mean(x * x)))


def close(a: float | None, b: float) -> None:
    assert a is not None, "no figure"
    assert abs(a - b) <= 1e-4 * abs(b), (a, b)


def all_inside_a_map() -> None:
    """The batch in parts: each device looks up, reads out, and sees its own rows."""
    mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,))

    def local(table: Any, tokens: Any) -> Any:
        rows = table[tokens]
        return (rms_norm(rows) * (1.0 + jax.lax.axis_index("data")) + 1e-9) @ table.T

    def model(p: Any, tokens: Any) -> Any:
        split = {"in_specs": (PartitionSpec(), PartitionSpec("data")), "out_specs": PartitionSpec("data")}
        return jax.shard_map(local, mesh=mesh, **split)(p["table"], tokens)

    [table] = tiebeam.inspect(model, IDS, params={"table": TABLE}).tables
    close(table.hidden_rms, ((1 + 4 + 9 + 16) / 4) ** 0.5)
    close(table.lookups[0].rms, rms(TABLE[IDS]))


def rows_inside_and_stream_outside() -> None:
    """Parts and wholes lie in different orders: no cosine, and a reason."""
    mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,))

    def model(p: Any, tokens: Any) -> Any:
        split = {"in_specs": (PartitionSpec(), PartitionSpec("data")), "out_specs": PartitionSpec("data")}
        rows = jax.shard_map(lambda t, i: t[i], mesh=mesh, **split)(p["table"], tokens)
        return rms_norm(rows + 1.0) @ p["table"].T

    report = tiebeam.inspect(model, IDS, params={"table": TABLE})
    assert report.tables[0].readouts[0].kappa is None
    assert any("kappa was not measured" in n for n in report.notes), report.notes


def shardings_in_types() -> None:
    mesh = jax.make_mesh((2, 2), ("data", "model"), axis_types=(AxisType.Explicit, AxisType.Explicit))

    def model(p: Any, tokens: Any) -> Any:
        x = p["table"].at[tokens].get(out_sharding=PartitionSpec("data", None, None)) * 2.0
        out = PartitionSpec("data", None, None)
        return jnp.einsum("btd,vd->btv", rms_norm(x) * 0.5, p["table"], out_sharding=out)

    with jax.set_mesh(mesh):
        params = {"table": jax.device_put(TABLE, NamedSharding(mesh, PartitionSpec(None, None)))}
        tokens = jax.device_put(IDS, NamedSharding(mesh, PartitionSpec("data", None)))
        [table] = tiebeam.inspect(model, tokens, params=params).tables
        assert (table.state, table.lookup_factor, table.readout_factor) == ("tied", 2.0, 0.5), table
        close(table.hidden_rms, 1.0)
        close(table.lookups[0].rms, 2 * rms(TABLE[IDS]))
        close(table.readouts[0].kappa, 1.0)


if __name__ == "__main__":
    assert jax.device_count() == 4
    all_inside_a_map()
    rows_inside_and_stream_outside()
    shardings_in_types()
