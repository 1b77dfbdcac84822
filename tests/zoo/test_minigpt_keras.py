"""MiniGPT in Keras: the model that it is in every framework, where the weights are the same."""

import keras
import numpy as np
import pytest
from tests.keras.models.kit import numbers
from tests.zoo.minigpt_cases import CASES, DROPPING, IDS, TARGETS, drawn, wanted, wrong_weights

import tiebeam
from tiebeam.errors import InputError, RangeError, ShapeError
from tiebeam.zoo.keras.minigpt import MiniGPT, assign_weights, weights_of


def made(config, weights=None):
    model = MiniGPT(config)
    assign_weights(model, drawn(config) if weights is None else weights)
    return model


def at_once(function):
    """Compiled as a whole where each operation would be compiled by itself."""
    if keras.backend.backend() != "jax":
        return function
    import jax

    return jax.jit(function)


@pytest.mark.parametrize("case", CASES)
def test_the_same_weights_give_the_references_logits_and_losses(case):
    config = CASES[case]
    weights = drawn(config)
    model = made(config, weights)

    def everything(ids, targets):
        return model(ids), model.token_loss(ids), model.token_loss(ids, targets)

    for got, right in zip(at_once(everything)(IDS, TARGETS), wanted(config, weights), strict=True):
        np.testing.assert_allclose(numbers(got), right, rtol=0, atol=1e-5)


def test_the_weights_come_back_as_they_were_given():
    weights = drawn(DROPPING)
    model = made(DROPPING, weights)
    back = weights_of(model)
    assert set(back) == set(weights)
    assert all(np.array_equal(back[name], weights[name]) for name in weights)
    for wrong, error in zip(wrong_weights(weights), (InputError, InputError, ShapeError), strict=True):
        with pytest.raises(error, match=r"norm\.bias|more"):
            assign_weights(model, wrong)


def test_a_saved_model_is_tied_and_the_same_again(tmp_path):
    model = made(DROPPING)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert again.config == model.config
    assert all(np.array_equal(array, weights_of(model)[name]) for name, array in weights_of(again).items())
    assert sum(v.shape == (31, 16) for v in again.variables) == 1


@pytest.mark.parametrize(("policy", "computed", "kept"), [("mixed_bfloat16", "bfloat16", "float32"), ("bfloat16",) * 3])
def test_its_policy_is_that_of_all_its_parts_and_is_saved(policy, computed, kept, tmp_path):
    model = MiniGPT(DROPPING, dtype=policy)
    assign_weights(model, drawn(DROPPING))
    model.save(tmp_path / "model.keras")
    exact = numbers(made(DROPPING)(IDS))
    for each in (model, keras.saving.load_model(tmp_path / "model.keras")):
        logits = each(IDS)
        assert keras.backend.standardize_dtype(logits.dtype) == computed
        assert {v.dtype for v in each.trainable_variables} == {kept}
        assert np.abs(numbers(keras.ops.cast(logits, "float32")) - exact).max() < 0.1


def test_it_is_seen_as_its_config_says():
    [table] = tiebeam.inspect(made(CASES["tied, no positions, both factors, another hidden width"]), IDS).tables
    assert (table.state, table.lookup_factor, table.readout_factor, table.soft_cap) == ("tied", 0.5, 2.0, 5.0)


def test_it_is_drawn_as_its_config_says_and_dropout_acts_in_training_alone():
    model, ids = MiniGPT(DROPPING), IDS
    model.build(ids.shape)
    weights = weights_of(model)
    assert weights["embed.weight"].std() == pytest.approx(1.0, rel=0.15)
    assert weights["blocks.0.feed_forward.project.weight"].std() == pytest.approx((64 * 2) ** -0.5, rel=0.15)
    assert weights["positions.weight"].std() == pytest.approx(0.02, rel=0.4)
    assert np.array_equal(numbers(model(ids)), numbers(model(ids)))
    assert np.abs(numbers(model(ids, training=True)) - numbers(model(ids))).max() > 1e-3


def test_what_it_cannot_read_is_refused():
    model = made(DROPPING)
    for call, error, said in [
        (lambda: model.stream(np.tile(IDS, 2)), RangeError, "at most 8 tokens"),
        (lambda: model.stream(IDS[0]), InputError, r"ids\[None\]"),
        (lambda: model.stream(np.zeros((1, 2))), InputError, "float"),
        (lambda: model.token_loss(IDS[0]), InputError, r"ids\[None\]"),
        (lambda: model.token_loss(IDS[:, :1]), InputError, "no next token"),
        (lambda: model.token_loss(IDS[:, :3], IDS[:, :2]), ShapeError, "do not fit"),
    ]:
        with pytest.raises(error, match=said):
            call()
