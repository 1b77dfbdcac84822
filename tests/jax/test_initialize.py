"""`initialize_params`: a new tree, unit logits, and the draws of every framework."""

from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from tests.jax.models.kit import CASES, load, rms_norm

import tiebeam
from tiebeam.core.initialising.draws import blocks, draw_block

load()
VOCAB, WIDTH = 300, 48
IDS = jax.random.randint(jax.random.key(1), (4, 32), 0, VOCAB)


class Linen(nn.Module):
    dtype: Any = jnp.float32

    def setup(self) -> None:
        self.embed = nn.Embed(VOCAB, WIDTH, param_dtype=self.dtype, dtype=self.dtype)

    def __call__(self, ids: Any) -> Any:
        return self.embed.attend(rms_norm(self.embed(ids) * WIDTH**0.5)) * 0.5


class Nnx(nnx.Module):
    def __init__(self, dtype: Any) -> None:
        self.embed = nnx.Embed(VOCAB, WIDTH, param_dtype=dtype, dtype=dtype, rngs=nnx.Rngs(0))

    def __call__(self, ids: Any) -> Any:
        return self.embed.attend(rms_norm(self.embed(ids) * WIDTH**0.5)) * 0.5


class Equinox(eqx.Module):
    embed: eqx.nn.Embedding

    def __init__(self, dtype: Any) -> None:
        self.embed = eqx.nn.Embedding(VOCAB, WIDTH, key=jax.random.key(0), dtype=dtype)

    def __call__(self, ids: Any) -> Any:
        rows = self.embed.weight[ids]
        return rms_norm(rows * WIDTH**0.5) @ self.embed.weight.T * 0.5


def apply(params: Any, ids: Any) -> Any:
    """The same model as a function, its table the other way round."""
    return rms_norm(params["wide"].T[ids] * WIDTH**0.5) @ params["wide"] * 0.5


def linen(dtype: Any) -> Any:
    model = Linen(dtype)
    params = model.init(jax.random.key(0), IDS)
    return tiebeam.initialize_params(model, IDS, params, seed=7)[0]["params"]["embed"]["embedding"]


def function(dtype: Any) -> Any:
    params = {"wide": jnp.ones((WIDTH, VOCAB), dtype)}
    return tiebeam.initialize_params(apply, IDS, params, seed=7)[0]["wide"].T


TABLES = {
    "linen": linen,
    "nnx": lambda dtype: tiebeam.initialize_params(Nnx(dtype), IDS, seed=7)[0].embed.embedding[...],
    "equinox": lambda dtype: tiebeam.initialize_params(Equinox(dtype), IDS, seed=7)[0].embed.weight,
    "function": function,
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", TABLES)
def test_one_seed_gives_the_bits_that_every_framework_gets(kind: str, dtype: str) -> None:
    std = 1 / (0.5 * WIDTH**0.5)
    drawn = [draw_block(7, "table", 0, b.index, b.rows, WIDTH, std) for b in blocks(VOCAB)]
    table = TABLES[kind](jnp.dtype(dtype))
    assert table.dtype == jnp.dtype(dtype)
    assert np.array_equal(np.asarray(table), np.concatenate(drawn).astype(jnp.dtype(dtype)))


def test_logits_start_at_unit_variance_and_the_old_tree_is_as_it_was() -> None:
    model = Linen()
    params = model.init(jax.random.key(0), IDS)
    before = jax.tree.map(np.array, params)
    fresh, report = tiebeam.initialize_params(model, IDS, params)
    assert jax.tree.structure(fresh) == jax.tree.structure(params)
    assert float(model.apply(fresh, IDS).std()) == pytest.approx(1.0, rel=0.1)
    assert report.init[0].settled
    assert report.tables[0].std == pytest.approx(report.init[0].std, rel=0.02)
    assert all(map(np.array_equal, jax.tree.leaves(before), jax.tree.leaves(params)))
    report.assert_healthy()


def test_drawing_twice_is_drawing_once() -> None:
    once, _ = tiebeam.initialize_params(apply, IDS, {"wide": jnp.ones((WIDTH, VOCAB))})
    twice, _ = tiebeam.initialize_params(apply, IDS, once)
    assert np.array_equal(once["wide"], twice["wide"])


def test_everything_but_the_table_is_the_same_array() -> None:
    case = CASES["biased"]()
    fresh, report = tiebeam.initialize_params(case.model, case.inputs, case.params)
    assert fresh["mid"] is case.params["mid"]
    assert not np.array_equal(fresh["table"], case.params["table"])
    assert report.init[0].biases == ("bias",)
    assert not fresh["bias"].any()


def test_dtypes_shardings_and_numpy_arrays_stay() -> None:
    mesh = jax.make_mesh((1,), ("model",), axis_types=(AxisType.Auto,))
    split = NamedSharding(mesh, PartitionSpec(None, "model"))
    params = {"wide": jax.device_put(jnp.ones((WIDTH, VOCAB), jnp.bfloat16), split)}
    fresh, _ = tiebeam.initialize_params(apply, IDS, params)
    assert fresh["wide"].sharding == split
    assert fresh["wide"].dtype == jnp.bfloat16
    host, _ = tiebeam.initialize_params(apply, IDS, {"wide": np.ones((WIDTH, VOCAB), np.float16)})
    assert type(host["wide"]) is np.ndarray
    assert host["wide"].dtype == np.float16


def test_an_array_is_placed_where_it_was_and_only_if_it_was() -> None:
    def biased(params: Any, ids: Any) -> Any:
        return apply(params, ids) + params["bias"]

    free = {"wide": jnp.ones((WIDTH, VOCAB)), "bias": jnp.ones(VOCAB)}
    fresh, _ = tiebeam.initialize_params(biased, IDS, free)
    assert not fresh["wide"].committed
    assert not fresh["bias"].committed
    placed, _ = tiebeam.initialize_params(biased, IDS, jax.device_put(free, jax.devices()[0]))
    assert placed["wide"].committed
    assert placed["bias"].committed


def test_a_row_of_zeros_stays_one() -> None:
    params = {"wide": jnp.ones((WIDTH, VOCAB)).at[:, 3].set(0.0)}
    fresh, report = tiebeam.initialize_params(apply, IDS, params)
    assert report.init[0].zero_rows == (3,)
    assert not fresh["wide"][:, 3].any()
    assert fresh["wide"][:, 4].all()


def test_every_row_of_zeros_stays_one_and_a_table_of_zeros_is_drawn_whole() -> None:
    fresh, report = tiebeam.initialize_params(apply, IDS, {"wide": jnp.ones((WIDTH, VOCAB)).at[:, 270:].set(0.0)})
    assert report.init[0].zero_rows == tuple(range(270, 278))  # the first of them are listed
    assert not fresh["wide"][:, 270:].any()
    assert fresh["wide"][:, :270].all()
    whole, report = tiebeam.initialize_params(apply, IDS, {"wide": jnp.zeros((WIDTH, VOCAB))})
    assert report.init[0].zero_rows == ()
    assert whole["wide"].all()


def test_without_a_norm_the_std_is_measured_and_settles() -> None:
    def plain(params: Any, ids: Any) -> Any:
        x = params["table"][ids]
        return (x + jnp.tanh(x @ params["mid"])) @ params["table"].T

    params = {"table": jnp.ones((VOCAB, WIDTH)), "mid": jax.random.normal(jax.random.key(2), (WIDTH, WIDTH)) * 0.1}
    fresh, report = tiebeam.initialize_params(plain, IDS, params)
    assert report.init[0].mode == "empirical"
    assert report.init[0].settled
    assert 0 < report.init[0].rounds <= 8
    assert float(plain(fresh, IDS).std()) == pytest.approx(1.0, rel=0.02)


def test_modules_that_hold_their_arrays_come_back_whole_and_as_they_were() -> None:
    for model, table in (
        (Nnx(jnp.float32), lambda m: m.embed.embedding[...]),
        (Equinox(jnp.float32), lambda m: m.embed.weight),
    ):
        before = np.array(table(model))
        fresh, _ = tiebeam.initialize_params(model, IDS)
        assert type(fresh) is type(model)
        assert np.array_equal(table(model), before)
        assert not np.array_equal(table(fresh), before)
        assert float(fresh(IDS).std()) == pytest.approx(1.0, rel=0.1)


def test_a_shared_variable_stays_shared() -> None:
    fresh, report = tiebeam.initialize_params(CASES["nnx_shared_param"]().model, IDS % 37)
    assert fresh.head.embedding is fresh.embed.embedding
    assert report.tables[0].state == "tied"


def test_abstract_params_get_the_plan_and_stay_abstract() -> None:
    model = Linen()
    shapes = jax.eval_shape(model.init, jax.random.key(0), IDS)
    fresh, report = tiebeam.initialize_params(model, IDS, shapes)
    assert jax.tree.leaves(fresh) == jax.tree.leaves(shapes)
    assert not report.init[0].written
    assert report.init[0].std == pytest.approx(2 / WIDTH**0.5)


def test_writing_in_place_is_refused_with_the_call_that_serves() -> None:
    for model in (Linen(), Nnx(jnp.float32), Equinox(jnp.float32), apply):
        with pytest.raises(tiebeam.InputError, match="initialize_params"):
            tiebeam.initialize(model, IDS)
