"""MiniGPT in Flax linen: the model that it is in every framework, where the weights are the same."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.zoo.minigpt_cases import CASES, DROPPING, IDS, TARGETS, drawn, wanted, wrong_weights

import tiebeam
from tiebeam.errors import InputError, RangeError, ShapeError
from tiebeam.zoo.jax.minigpt import MiniGPT, params_of, weights_of


@pytest.mark.parametrize("case", CASES)
def test_the_same_weights_give_the_references_logits_and_losses(case):
    config = CASES[case]
    weights, model = drawn(config), MiniGPT(config)

    @jax.jit
    def everything(params):
        losses = [model.apply(params, IDS, *more, method="loss") for more in ((), (TARGETS,))]
        return (model.apply(params, IDS), *losses)

    for got, right in zip(everything(params_of(config, weights)), wanted(config, weights), strict=True):
        np.testing.assert_allclose(got, right, rtol=0, atol=1e-5)


def test_the_weights_come_back_as_they_were_given():
    config = CASES["untied, rotary positions, a readout factor, a soft cap"]
    weights = drawn(config)
    back = weights_of(params_of(config, weights))
    assert set(back) == set(weights)
    assert all(np.array_equal(back[name], weights[name]) for name in weights)
    for wrong, error in zip(wrong_weights(weights), (InputError, InputError, ShapeError), strict=True):
        with pytest.raises(error, match=r"norm\.bias|more"):
            params_of(config, wrong)


@pytest.mark.parametrize("kind", [np.float16, np.float64, np.int32])
def test_weights_of_any_kind_become_float32(kind):
    weights = {name: array.astype(kind) for name, array in drawn(DROPPING).items()}
    params = params_of(DROPPING, weights)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype("float32")}
    assert MiniGPT(DROPPING).apply(params, IDS).dtype == jnp.float32


def test_it_is_seen_as_its_config_says():
    config = CASES["tied, no positions, both factors, another hidden width"]
    [table] = tiebeam.inspect(MiniGPT(config), IDS, params=params_of(config, drawn(config))).tables
    assert (table.state, table.lookup_factor, table.readout_factor, table.soft_cap) == ("tied", 0.5, 2.0, 5.0)


def test_it_is_drawn_as_its_config_says_and_dropout_acts_in_training_alone():
    model, ids = MiniGPT(DROPPING), jnp.asarray(IDS)
    params = jax.jit(model.init)(jax.random.key(0), ids)
    weights = weights_of(params)
    assert weights["embed.weight"].std() == pytest.approx(1.0, rel=0.15)
    assert weights["blocks.0.feed_forward.project.weight"].std() == pytest.approx((64 * 2) ** -0.5, rel=0.15)
    assert weights["positions.weight"].std() == pytest.approx(0.02, rel=0.4)
    noisy = jax.jit(lambda key: model.apply(params, ids, train=True, rngs={"dropout": key}))
    first, second = (noisy(jax.random.key(key)) for key in (1, 2))
    assert float(jnp.abs(first - second).max()) > 1e-3


def test_what_it_cannot_read_is_refused():
    params = params_of(DROPPING, drawn(DROPPING))
    model = MiniGPT(DROPPING)
    for call, error, said in [
        (lambda: model.apply(params, np.tile(IDS, 2)), RangeError, "at most 8 tokens"),
        (lambda: model.apply(params, IDS[0]), InputError, r"ids\[None\]"),
        (lambda: model.apply(params, np.zeros((1, 2))), InputError, "float"),
        (lambda: model.apply(params, IDS[0], method="loss"), InputError, r"ids\[None\]"),
        (lambda: model.apply(params, IDS[:, :1], method="loss"), InputError, "no next token"),
        (lambda: model.apply(params, IDS[:, :3], IDS[:, :2], method="loss"), ShapeError, "do not fit"),
    ]:
        with pytest.raises(error, match=said):
            call()
