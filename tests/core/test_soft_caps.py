"""Soft caps on the logits: a*tanh(b*z) and its sigmoid form, factors before and after, shifts."""

import math

import pytest
from tests.core.build import V, model
from tests.core.look import lookup_of, readout_of

CAPS = {
    "tanh": (lambda g, z: g.mul(g.tanh(g.div(z, 30.0)), 30.0), 30.0, 1.0),
    "tanh with a number in front": (lambda g, z: g.mul(30.0, g.tanh(g.mul(1 / 30, z))), 30.0, 1.0),
    "tanh alone": (lambda g, z: g.tanh(z), 1.0, 1.0),
    "a factor before": (lambda g, z: g.mul(g.tanh(g.div(g.mul(z, 0.25), 30.0)), 30.0), 30.0, 0.25),
    "a factor after": (lambda g, z: g.mul(g.mul(g.tanh(g.div(z, 30.0)), 30.0), 2.0), 60.0, 2.0),
    "a factor before and after": (lambda g, z: g.mul(g.tanh(g.mul(z, 0.5)), -8.0), 8.0, -4.0),
    "a negative slope": (lambda g, z: g.mul(g.tanh(g.div(z, -30.0)), 30.0), 30.0, -1.0),
    "a cast inside": (lambda g, z: g.mul(g.cast(g.tanh(g.cast(g.div(z, 30.0))), "float32"), 30.0), 30.0, 1.0),
    "sigmoid written as tanh": (
        lambda g, z: g.mul(g.sub(g.mul(g.sigmoid(g.mul(z, 2 / 30)), 2.0), 1.0), 30.0),
        30.0,
        1.0,
    ),
    "sigmoid": (lambda g, z: g.mul(g.sigmoid(g.div(z, 7.5)), 30.0), 15.0, 1.0),
    "a bias inside tanh": (lambda g, z: g.mul(g.tanh(g.add(z, g.leaf("b", (V,)))), 30.0), 30.0, 30.0),
}


@pytest.mark.parametrize(("logits", "cap", "factor"), CAPS.values(), ids=CAPS)
def test_a_cap_is_its_amplitude_and_gives_its_slope_at_zero_to_the_factor(logits, cap, factor):
    readout = readout_of(model(logits=logits))
    assert readout.soft_cap == pytest.approx(cap)
    assert readout.factor == pytest.approx(factor)


def test_a_shifted_sigmoid_has_its_slope_where_the_shift_puts_it():
    def logits(g, z):
        return g.mul(g.sigmoid(g.div(g.add(z, 5.0), 7.5)), 23.0)

    p = 1 / (1 + math.exp(-5 / 7.5))
    readout = readout_of(model(logits=logits))
    assert readout.soft_cap == pytest.approx(11.5)
    assert readout.factor == pytest.approx(23 / 7.5 * p * (1 - p))


@pytest.mark.parametrize(
    "shift", [lambda g, z: g.sub(0.5, z), lambda g, z: g.sub(g.neg(z), -0.5)], ids=["in front", "behind"]
)
def test_a_shifted_tanh_has_its_slope_where_the_shift_puts_it(shift):
    readout = readout_of(model(logits=lambda g, z: g.tanh(shift(g, z))))
    assert readout.factor == pytest.approx(-(1 - math.tanh(0.5) ** 2))


def test_behind_a_second_cap_neither_cap_nor_factor_is_known():
    def logits(g, z):
        return g.mul(g.tanh(g.mul(g.tanh(g.div(z, 30.0)), 30.0)), 5.0)

    readout = readout_of(model(logits=logits))
    assert (readout.soft_cap, readout.factor) == (None, None)
    assert readout.notes == ("a second nonlinearity follows the soft cap",)


def test_logits_without_a_cap_have_none():
    assert readout_of(model(logits=lambda g, z: g.mul(z, 30.0))).soft_cap is None


def test_a_tanh_on_the_rows_is_no_cap():
    assert lookup_of(model(rows=lambda g, x: g.mul(g.tanh(g.mul(x, 2.0)), 8.0))).factor == 2.0


def test_a_cap_of_unknown_height_is_no_number():
    def logits(g, z):
        return g.mul(g.tanh(z), g.input(()))

    readout = readout_of(model(logits=logits))
    assert readout.soft_cap is None
    assert readout.factor is None


def test_the_logit_std_is_measured_before_the_cap():
    g = model(hidden=lambda g, x: x, logits=lambda g, z: g.mul(g.tanh(g.div(z, 60.0)), 30.0))
    z = next(n.output for n in g.nodes if n.label == "linear" and g.shape(n.output)[-1] == V)
    assert readout_of(g, logit_std={z: 4.0, g.outputs[0]: 0.1}).logit_std == pytest.approx(2.0)


def test_the_logit_std_is_that_of_the_returned_logits():
    g = model(logits=lambda g, z: g.mul(z, 3.0))
    assert readout_of(g, logit_std={g.outputs[0]: 0.75}).logit_std == 0.75


def test_the_logit_std_is_followed_back_through_a_cast():
    g = model(logits=lambda g, z: g.cast(g.mul(z, 3.0)))
    before = g.nodes[-1].inputs[0]
    assert readout_of(g, logit_std={before: 0.75}).logit_std == 0.75


def test_a_logit_std_measured_at_the_product_alone_is_multiplied_by_what_follows():
    g = model(logits=lambda g, z: g.mul(z, -3.0))
    z = g.nodes[-1].inputs[0]
    assert readout_of(g, logit_std={z: 0.5}).logit_std == 1.5
