"""From a readout's product forwards: what is passed, what ends, which biases are seen."""

import pytest
from tests.core.build import B, Build, D, T, V, model
from tests.core.look import readout_of, readouts_of

from tiebeam.ir import Op

LOGITS_PASSED = {
    "a cast": lambda g, z: g.cast(z, "float32"),
    "a padded vocabulary cut": lambda g, z: g.slice(z, 2, V - 4),
    "the last position": lambda g, z: g.select(z, 1),
    "a mask": lambda g, z: g.mask(z),
    "a reshape": lambda g, z: g.flatten(z),
    "a bias": lambda g, z: g.add(z, g.leaf("head.bias", (V,))),
    "the rows of labels": lambda g, z: g.node(
        Op.GATHER, [z, g.input_ids((3,))], [(0, -1, 2), (-1, 0, -1)], (B, 3, V), axis=1
    ),
}


@pytest.mark.parametrize("step", LOGITS_PASSED.values(), ids=LOGITS_PASSED)
def test_the_walk_from_a_readout_passes_through(step):
    assert readout_of(model(logits=lambda g, z: g.mul(step(g, g.mul(z, 2.0)), -4.0))).factor == -8.0


LOGITS_END = {
    "a softmax": lambda g, z: g.softmax(z),
    "a vector of the inputs' own": lambda g, z: g.opaque(z),
}


@pytest.mark.parametrize("step", LOGITS_END.values(), ids=LOGITS_END)
def test_the_walk_from_a_readout_ends_at(step):
    def logits(g, z):
        z = g.mul(z, 2.0)
        return g.concat(z, g.mul(step(g, z), 4.0), axis=0)

    assert readout_of(model(logits=logits)).factor == 2.0


CURVED = {
    "a function of its own": lambda g, z: g.pointwise(z, label="atan"),
    "a softsign by hand": lambda g, z: g.div(z, g.add(g.pointwise(z, 1.0, label="abs"), 1.0)),
    "a gate": lambda g, z: g.mul(z, g.pointwise(z, label="sigmoid")),
    "a mixture with a soft cap": lambda g, z: g.add(g.mul(z, 0.5), g.tanh(z)),
}


@pytest.mark.parametrize("curve", CURVED.values(), ids=CURVED)
def test_logits_scaled_for_a_function_of_unknown_slope_have_no_factor(curve):
    readout = readout_of(model(logits=lambda g, z: g.mul(curve(g, g.div(z, 30.0)), 30.0)))
    assert readout.factor is None
    assert "slope" in readout.notes[0]


def test_a_number_on_the_hidden_state_counts_before_a_function_of_unknown_slope_as_well():
    g = model(hidden=lambda g, x: g.div(x, 30.0), logits=lambda g, z: g.mul(g.pointwise(z), 30.0))
    assert readout_of(g).factor is None


def test_an_activation_on_plain_logits_is_only_where_the_walk_ends():
    assert readout_of(model(logits=lambda g, z: g.mul(g.pointwise(z), 4.0))).factor == 1.0


def test_a_log_softmax_by_hand_leaves_the_factor_of_the_logits():
    def logits(g, z):
        z = g.mul(z, 2.0)
        return g.sub(z, g.reduce(z, degree=None, sums=False))

    assert readout_of(model(logits=logits)).factor == 2.0


def test_the_walk_from_a_readout_ends_where_the_logits_are_returned():
    g = model(logits=lambda g, z: g.mul(z, 2.0))
    (z,) = g.outputs
    g.returned(z, g.mul(z, 4.0))
    assert readout_of(g).factor == 2.0


def test_the_walk_from_a_readout_ends_at_the_loss():
    g = model(logits=lambda g, z: g.loss(g.mul(z, 2.0), g.input_ids()))
    assert readout_of(g).factor == 2.0


def test_a_bias_over_the_vocabulary_is_named_once():
    def step(g, z):
        bias = g.leaf("head.bias", (V,))
        return g.add(g.add(z, bias), g.mul(bias, 0.5))

    assert readout_of(model(logits=step)).bias == ("head.bias",)


def test_a_bias_times_a_number_is_the_bias_and_times_a_vector_is_not():
    def biases(by):
        def logits(g, z):
            bias = g.leaf("head.bias", (V,))
            return g.add(z, g.mul(bias, 0.5 if by is None else g.leaf("gain", by)))

        return readout_of(model(logits=logits)).bias

    assert (biases(None), biases((V,))) == (("head.bias",), ())


def test_what_is_computed_from_leaves_is_no_bias():
    readout = readout_of(model(logits=lambda g, z: g.add(z, g.tanh(g.leaf("prior", (V,))))))
    assert (readout.bias, readout.factor) == ((), 1.0)


def test_a_bias_that_is_a_number_per_position_is_none_over_the_vocabulary():
    assert readout_of(model(logits=lambda g, z: g.add(z, g.leaf("shift", (T, 1))))).bias == ()


def adapted(g=None):
    """A tied readout with a low-rank product beside it."""
    g = g or Build()
    embed = g.leaf("embed.weight", (V, D))
    x = g.norm(g.residual(g.gather(embed, g.input_ids())))
    down, up = g.leaf("head.down", (2, D)), g.leaf("head.up", (V, 2))
    return g.returned(g.add(g.dot(x, embed), g.mul(g.dot(g.dot(x, down), up), 0.5)))


def test_a_low_rank_product_on_the_logits_is_an_adapters():
    readout = next(r for r in readouts_of(adapted()) if r.name == "embed.weight")
    assert readout.delta == ("head.up",)
    assert readout.factor == 1.0


def test_an_adapters_low_rank_factor_is_no_table_of_its_own():
    assert [r.name for r in readouts_of(adapted())] == ["embed.weight"]
