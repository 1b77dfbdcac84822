"""The block of Flax linen."""

from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import serialization
from tests.blocks import jax_kit
from tests.blocks.contract import BlockContract
from tests.blocks.jax_kit import ids_of, results_as_large_as
from tests.blocks.reference import CASES, IDS

import tiebeam
from tiebeam.core.initialising.draws import draw_block
from tiebeam.errors import RangeError
from tiebeam.linen import TiedEmbedding, unit_logit_normal


class TestLinen(BlockContract):
    names: ClassVar = {"table": "embedding", "bias": "bias", "project_in": "project_in", "project_out": "project_out"}

    def make(self, seed=0, **arguments):
        block = TiedEmbedding(**arguments)
        return block, block.init(jax.random.key(seed), jnp.asarray(IDS))

    def weights(self, block):
        return {name: np.asarray(x) for name, x in block[1]["params"].items()}

    def load(self, block, weights):
        return block[0], {"params": {name: jnp.asarray(x) for name, x in weights.items()}}

    def look_up(self, block, ids):
        return np.asarray(block[0].apply(block[1], ids))

    def read_out(self, block, hidden):
        return np.asarray(block[0].apply(block[1], hidden, method="attend"))

    def gradients(self, block, mixing, probe):
        module, params = block

        def loss(params):
            return jax_kit.loss(
                lambda ids: module.apply(params, ids),
                lambda hidden: module.apply(params, hidden, method="attend"),
                mixing,
                probe,
            )

        return {name: np.asarray(x) for name, x in jax.grad(loss)(params)["params"].items()}


class Model(nn.Module):
    """A compact module: the block is made once and used twice."""

    block: dict

    @nn.compact
    def __call__(self, ids):
        embed = TiedEmbedding(**self.block, name="embed")
        return embed.attend(nn.LayerNorm(name="norm")(embed(ids)))


def made(**arguments):
    model, ids = Model({"vocab": 512, "width": 64, **arguments}), ids_of(2, 32, vocab=512)
    return model, model.init(jax.random.key(0), ids), ids


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"lookup_factor": 1.0, "readout_factor": 0.125},
        {"lookup_factor": -4.0, "readout_factor": -2.0, "soft_cap": 30.0, "use_bias": True},
        {"table_width": 16},
        {"padding_idx": 3},
    ],
    ids=str,
)
def test_the_report_finds_the_tie_the_factors_and_unit_logits(arguments):
    model, params, ids = made(**arguments)
    report = tiebeam.inspect(model, ids, params=params)
    report.assert_healthy()
    [table] = report.tables
    settings = TiedEmbedding(512, 64, **arguments).settings
    assert (table.state, table.names) == ("tied", ("params.embed.embedding",))
    assert (table.vocab, table.width) == (512, settings.table_width)
    assert table.lookup_factor == pytest.approx(settings.lookup_factor)
    assert table.readout_factor == pytest.approx(settings.readout_factor)
    assert (table.soft_cap, table.readout_bias) == (settings.soft_cap, "use_bias" in arguments)
    assert table.predicted.logit_std == pytest.approx(1.0, rel=0.03)
    assert table.std == pytest.approx(settings.std, rel=0.02)


def test_drawing_it_anew_by_the_report_gives_the_table_that_every_framework_gets():
    model, params, ids = made(readout_factor=0.5)
    params, report = tiebeam.initialize_params(model, ids, params, seed=0)
    assert report.init[0].std == pytest.approx(0.25)
    rows = draw_block(0, "table", 0, 0, 64, 64, report.init[0].std)
    np.testing.assert_array_equal(params["params"]["embed"]["embedding"][:64], rows)


def test_it_is_the_recipe_of_an_embed_times_root_width_and_attend():
    class Recipe(nn.Module):
        @nn.compact
        def __call__(self, ids):
            embed = nn.Embed(512, 64, name="embed")
            return embed.attend(nn.LayerNorm(name="norm")(embed(ids) * jnp.sqrt(64)))

    model, params, ids = made()
    np.testing.assert_allclose(model.apply(params, ids), Recipe().apply(params, ids), rtol=1e-5, atol=1e-5)


def test_the_exercise_of_one_explicit_parameter_is_what_it_replaces():
    class Exercise(nn.Module):
        @nn.compact
        def __call__(self, ids):
            table = self.param("embedding", nn.initializers.normal(stddev=0.02), (512, 64))
            return table[ids] @ table.T

    ids = ids_of(9, vocab=512)
    params = Exercise().init(jax.random.key(1), ids)
    block = TiedEmbedding(512, 64, lookup_factor=1.0, embedding_init=nn.initializers.normal(stddev=0.02))
    own = block.init(jax.random.key(1), ids)
    np.testing.assert_array_equal(own["params"]["embedding"], params["params"]["embedding"])
    logits = block.apply(own, block.apply(own, ids), method="attend")
    np.testing.assert_allclose(logits, Exercise().apply(params, ids), rtol=1e-5, atol=1e-7)
    # An `nn.Embed` and its `attend` do the same from another draw: its default std is `1/sqrt(width)`.
    default = nn.Embed(512, 16).init(jax.random.key(0), ids)["params"]["embedding"]
    assert float(default.std()) == pytest.approx(0.25, rel=0.03)


def test_tying_leaves_out_one_of_two_tables_and_no_array_is_made_to_count():
    shapes = jax.eval_shape(TiedEmbedding(50_000, 4096).init, jax.random.key(0), jnp.zeros((1, 1), jnp.int32))
    assert sum(x.size for x in jax.tree.leaves(shapes)) == 204_800_000


@pytest.mark.parametrize("name", CASES)
def test_the_params_are_the_same_whichever_role_comes_first(name):
    block = TiedEmbedding(**CASES[name].arguments("use_bias"))
    looked = block.init(jax.random.key(0), jnp.asarray(IDS))
    read = block.init(jax.random.key(0), jnp.ones((1, 6)), method="attend")
    jax.tree.map(np.testing.assert_array_equal, looked, read)


def test_axis_names_come_with_the_initializer_and_keep_the_rule():
    named = nn.with_partitioning(unit_logit_normal(0.5, padding_idx=2), ("vocab", "embed"))
    block = TiedEmbedding(512, 64, readout_factor=0.5, embedding_init=named)
    params = block.init(jax.random.key(0), jnp.asarray(IDS))
    assert params["params"]["embedding"].names == ("vocab", "embed")
    assert nn.get_partition_spec(params)["params"]["embedding"] == jax.sharding.PartitionSpec("vocab", "embed")
    table = nn.meta.unbox(params)["params"]["embedding"]
    assert float(table.std()) == pytest.approx(block.settings.std, rel=0.02)
    assert not table[2].any()
    assert block.apply(params, jnp.asarray(IDS)).shape == (2, 5, 64)


def test_params_survive_bytes():
    _, params, _ = made(use_bias=True)
    back = serialization.from_bytes(jax.tree.map(jnp.zeros_like, params), serialization.to_bytes(params))
    jax.tree.map(np.testing.assert_array_equal, params, back)


def test_dtypes_are_those_asked_for():
    ids = jnp.asarray(IDS)
    block = TiedEmbedding(11, 6, table_width=4, use_bias=True, dtype=jnp.bfloat16)
    params = block.init(jax.random.key(0), ids)
    assert {x.dtype for x in jax.tree.leaves(params)} == {jnp.dtype("float32")}
    rows = block.apply(params, ids)
    logits = block.apply(params, jnp.ones((2, 6), jnp.float32), method="attend")
    assert rows.dtype == logits.dtype == jnp.bfloat16
    half = TiedEmbedding(11, 6, param_dtype=jnp.bfloat16)
    params = half.init(jax.random.key(0), ids)
    assert half.apply(params, ids).dtype == jnp.bfloat16
    assert half.apply(params, jnp.ones((2, 6)), method="attend").dtype == jnp.float32  # promoted


def test_no_pass_copies_or_transposes_the_table():
    block = TiedEmbedding(4096, 32, padding_idx=0, use_bias=True, soft_cap=5.0, readout_factor=0.5)
    params = block.init(jax.random.key(0), jnp.asarray(IDS))

    def run(params, ids):
        return block.apply(params, block.apply(params, ids), method="attend")

    made = results_as_large_as(jax.make_jaxpr(run)(params, jnp.arange(8)).jaxpr, 4096 * 32)
    assert not made
    assert results_as_large_as(jax.make_jaxpr(lambda x: x.T @ x)(jnp.ones((4096, 32))).jaxpr, 4096 * 32)


def test_an_id_beyond_the_table_is_nan_as_in_an_embed():
    block = TestLinen().make(vocab=11, width=6)
    assert np.isnan(TestLinen().look_up(block, np.array([11], np.int32))).all()


def test_an_initializer_that_makes_no_sense_is_refused_when_it_is_made():
    with pytest.raises(RangeError):
        unit_logit_normal(0.0)


def test_under_jit_and_vmap_it_is_the_same():
    model, params, ids = made(padding_idx=3)
    want = model.apply(params, ids)
    np.testing.assert_allclose(jax.jit(model.apply)(params, ids), want, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(jax.vmap(lambda x: model.apply(params, x))(ids), want, rtol=1e-5, atol=1e-5)
