"""The block of Equinox."""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.blocks import jax_kit
from tests.blocks.contract import BlockContract
from tests.blocks.jax_kit import ids_of, norm
from tests.blocks.reference import IDS

import tiebeam
from tiebeam.equinox import TiedEmbedding


class TestEquinox(BlockContract):
    names: ClassVar = {"table": "weight", "bias": "bias", "project_in": "project_in", "project_out": "project_out"}

    def make(self, seed=0, **arguments):
        return TiedEmbedding(**arguments, key=jax.random.key(seed))

    def weights(self, block):
        return {name: np.asarray(x) for name in self.names.values() if (x := getattr(block, name)) is not None}

    def load(self, block, weights):
        return eqx.tree_at(
            lambda b: [getattr(b, name) for name in weights], block, [jnp.asarray(x) for x in weights.values()]
        )

    def look_up(self, block, ids):
        return np.asarray(block(ids))

    def read_out(self, block, hidden):
        return np.asarray(block.attend(hidden))

    def gradients(self, block, mixing, probe):
        return self.weights(eqx.filter_grad(lambda b: jax_kit.loss(b, b.attend, mixing, probe))(block))


class Model(eqx.Module):
    embed: TiedEmbedding

    def __call__(self, ids):
        return self.embed.attend(norm(self.embed(ids)))


@pytest.mark.parametrize(
    "arguments", [{}, {"lookup_factor": 1.0, "readout_factor": 0.125, "soft_cap": 30.0}, {"table_width": 16}], ids=str
)
def test_the_report_finds_the_tie_the_factors_and_unit_logits(arguments):
    block = TiedEmbedding(512, 64, **arguments, key=jax.random.key(0))
    report = tiebeam.inspect(Model(block), ids_of(32, vocab=512))
    report.assert_healthy()
    [table] = report.tables
    assert table.state == "tied"
    assert table.lookup_factor == pytest.approx(block.settings.lookup_factor)
    assert table.readout_factor == pytest.approx(block.settings.readout_factor)
    assert table.soft_cap == block.settings.soft_cap
    assert table.predicted.logit_std == pytest.approx(1.0, rel=0.03)


def test_under_vmap_over_tokens_and_jit_it_is_the_same():
    block = TiedEmbedding(11, 6, padding_idx=3, key=jax.random.key(0))
    np.testing.assert_allclose(jax.vmap(jax.vmap(block))(jnp.asarray(IDS)), block(IDS), rtol=1e-6)
    rows = block(IDS)
    np.testing.assert_allclose(jax.vmap(jax.vmap(block.attend))(rows), block.attend(rows), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(eqx.filter_jit(block)(jnp.asarray(IDS)), block(IDS), rtol=1e-6)


def test_it_survives_equinox_serialisation(tmp_path):
    a, b = (TiedEmbedding(11, 6, use_bias=True, key=jax.random.key(seed)) for seed in (0, 1))
    eqx.tree_serialise_leaves(tmp_path / "block.eqx", a)
    np.testing.assert_array_equal(eqx.tree_deserialise_leaves(tmp_path / "block.eqx", b).weight, a.weight)


def test_dtype_is_that_of_every_weight():
    block = TiedEmbedding(11, 6, table_width=4, use_bias=True, dtype=jnp.bfloat16, key=jax.random.key(0))
    assert {x.dtype for x in jax.tree.leaves(block)} == {jnp.dtype("bfloat16")}
    assert block(IDS).dtype == jnp.bfloat16
