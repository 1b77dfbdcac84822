"""The lookup and readout of one parameter: every sentence of the exercise that it comes from."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tiebeam
from tiebeam.errors import InputError
from tiebeam.zoo.jax.plain import LookupReadout
from tiebeam.zoo.numpy.tied import TiedModel

MODEL = LookupReadout(vocab=50, width=8)
IDS = jnp.array([3, 7, 3, 1])


@pytest.fixture(scope="module")
def params():
    return jax.jit(MODEL.init)(jax.random.key(0), IDS)


def test_its_one_parameter_is_a_table_of_std_two_hundredths(params):
    assert jax.tree.map(jnp.shape, params) == {"params": {"embedding": (50, 8)}}
    assert float(params["params"]["embedding"].std()) == pytest.approx(0.02, rel=0.1)


def test_logits_are_products_of_rows(params):
    table, logits = np.asarray(params["params"]["embedding"], np.float64), MODEL.apply(params, IDS)
    np.testing.assert_allclose(logits, TiedModel(table).logits(np.asarray(IDS)), rtol=1e-5, atol=1e-8)
    np.testing.assert_allclose(logits[jnp.arange(4), IDS], (table[IDS] ** 2).sum(1), rtol=1e-5)
    assert np.array_equal(logits[0], logits[2])  # a token read twice
    order = jnp.array([2, 0, 3, 1])
    np.testing.assert_array_equal(MODEL.apply(params, IDS[order]), logits[order])


def test_an_embed_that_attends_is_the_same_with_the_same_table(params):
    class Attending(nn.Module):
        @nn.compact
        def __call__(self, ids):
            embed = nn.Embed(50, 8)
            return embed.attend(embed(ids))

    same = {"params": {"Embed_0": params["params"]}}
    np.testing.assert_allclose(Attending().apply(same, IDS), MODEL.apply(params, IDS), rtol=1e-6)


def test_the_gradients_of_both_uses_add_up_and_reach_rows_that_were_not_read(params):
    def score(looked_up, read_out):
        return (looked_up[IDS] @ read_out.T)[:, 9].sum()

    table = params["params"]["embedding"]
    one, other = jax.grad(score, (0, 1))(table, table)
    whole = jax.grad(lambda p: MODEL.apply(p, IDS)[:, 9].sum())(params)["params"]["embedding"]
    np.testing.assert_allclose(whole, one + other, rtol=1e-5)
    assert not one[9].any()
    assert whole[9].any()


def test_it_is_seen_as_a_tie_without_factors(params):
    [table] = tiebeam.inspect(MODEL, IDS[None], params=params).tables
    assert (table.state, table.lookup_factor, table.readout_factor) == ("tied", 1.0, 1.0)


def test_what_is_no_token_is_refused(params):
    with pytest.raises(InputError, match="float32"):
        MODEL.apply(params, jnp.ones(3))
