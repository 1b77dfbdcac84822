"""The block of Flax nnx."""

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from tests.blocks import jax_kit
from tests.blocks.contract import BlockContract
from tests.blocks.jax_kit import ids_of, results_as_large_as
from tests.blocks.reference import IDS

import tiebeam
from tiebeam.nnx import TiedEmbedding, unit_logit_normal


class TestNnx(BlockContract):
    names: ClassVar = {"table": "embedding", "bias": "bias", "project_in": "project_in", "project_out": "project_out"}

    def make(self, seed=0, **arguments):
        return TiedEmbedding(**arguments, rngs=nnx.Rngs(seed))

    def weights(self, block):
        return {".".join(path): np.asarray(x[...]) for path, x in nnx.to_flat_state(nnx.state(block, nnx.Param))}

    def load(self, block, weights):
        for name, x in weights.items():
            getattr(block, name)[...] = jnp.asarray(x)
        return block

    def look_up(self, block, ids):
        return np.asarray(block(ids))

    def read_out(self, block, hidden):
        return np.asarray(block.attend(hidden))

    def gradients(self, block, mixing, probe):
        found = nnx.grad(lambda b: jax_kit.loss(b, b.attend, mixing, probe))(block)
        return {".".join(path): np.asarray(x[...]) for path, x in nnx.to_flat_state(found)}


class Model(nnx.Module):
    def __init__(self, rngs, **arguments):
        self.embed = TiedEmbedding(512, 64, **arguments, rngs=rngs)
        self.norm = nnx.LayerNorm(64, rngs=rngs)

    def __call__(self, ids):
        return self.embed.attend(self.norm(self.embed(ids)))


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"lookup_factor": 1.0, "readout_factor": 0.125},
        {"lookup_factor": -4.0, "readout_factor": -2.0, "soft_cap": 30.0, "use_bias": True},
        {"table_width": 16},
    ],
    ids=str,
)
def test_the_report_finds_the_tie_the_factors_and_unit_logits(arguments):
    model = Model(nnx.Rngs(0), **arguments)
    report = tiebeam.inspect(model, ids_of(2, 32, vocab=512))
    report.assert_healthy()
    [table] = report.tables
    settings = model.embed.settings
    assert (table.state, len(table.names)) == ("tied", 1)
    assert table.lookup_factor == pytest.approx(settings.lookup_factor)
    assert table.readout_factor == pytest.approx(settings.readout_factor)
    assert (table.soft_cap, table.readout_bias) == (settings.soft_cap, "use_bias" in arguments)
    assert table.predicted.logit_std == pytest.approx(1.0, rel=0.03)
    assert table.std == pytest.approx(settings.std, rel=0.02)


def test_it_is_an_embed_times_root_width_and_attend():
    model, embed, ids = Model(nnx.Rngs(0)), nnx.Embed(512, 64, rngs=nnx.Rngs(1)), ids_of(2, 8, vocab=512)
    embed.embedding[...] = model.embed.embedding[...]
    want = embed.attend(model.norm(embed(ids) * jnp.sqrt(64)))
    np.testing.assert_allclose(model(ids), want, rtol=1e-5, atol=1e-5)


def test_the_state_holds_one_param_and_builds_the_block_again():
    block = TiedEmbedding(11, 6, rngs=nnx.Rngs(0))
    graph, state = nnx.split(block)
    assert [path for path, _ in nnx.to_flat_state(state)] == [("embedding",)]
    np.testing.assert_array_equal(nnx.merge(graph, state)(IDS), block(IDS))
    assert hash(graph) == hash(nnx.split(TiedEmbedding(11, 6, rngs=nnx.Rngs(0)))[0])  # jit finds its cache


def test_sharding_comes_with_the_initializer_or_as_metadata():
    init = nnx.with_partitioning(unit_logit_normal(), ("vocab", None))
    metadata = {"out_sharding": ("vocab", None)}
    for arguments in ({"embedding_init": init}, {"embedding_metadata": metadata}):
        with jax.set_mesh(jax.make_mesh((1,), ("vocab",), axis_types=(jax.sharding.AxisType.Auto,))):
            block = TiedEmbedding(512, 64, **arguments, rngs=nnx.Rngs(0))
            assert block.attend(block(ids_of(2, 3, vocab=512))).shape == (2, 3, 512)
        assert block.embedding[...].sharding.spec == jax.sharding.PartitionSpec("vocab", None)
        assert float(block.embedding[...].std()) == pytest.approx(0.125, rel=0.02)


def test_a_step_of_an_optimizer_moves_both_roles():
    import optax

    model, ids = Model(nnx.Rngs(0)), ids_of(2, 8, vocab=512)
    optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)
    before = np.asarray(model.embed.embedding[...])

    @nnx.jit
    def step(model, optimizer):
        optimizer.update(model, nnx.grad(lambda m: jax.nn.logsumexp(m(ids), axis=-1).mean())(model))

    step(model, optimizer)
    moved = (np.asarray(model.embed.embedding[...]) != before).any(axis=-1)
    assert moved.all()


def test_dtypes_are_those_asked_for():
    block = TiedEmbedding(11, 6, table_width=4, use_bias=True, dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    assert {x.dtype for x in jax.tree.leaves(nnx.state(block))} == {jnp.dtype("float32")}
    assert block(IDS).dtype == block.attend(jnp.ones((2, 6))).dtype == jnp.bfloat16
    half = TiedEmbedding(11, 6, param_dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    assert half.embedding[...].dtype == half(IDS).dtype == jnp.bfloat16


def test_no_pass_copies_or_transposes_the_table():
    block = TiedEmbedding(4096, 32, padding_idx=0, use_bias=True, soft_cap=5.0, rngs=nnx.Rngs(0))
    graph, state = nnx.split(block)

    def run(state, ids):
        b = nnx.merge(graph, state)
        return b.attend(b(ids))

    assert not results_as_large_as(jax.make_jaxpr(run)(state, jnp.arange(8)).jaxpr, 4096 * 32)


def test_an_abstract_block_costs_no_memory():
    block = nnx.eval_shape(lambda: TiedEmbedding(50_000, 4096, rngs=nnx.Rngs(0)))
    assert block.embedding.shape == (50_000, 4096)
