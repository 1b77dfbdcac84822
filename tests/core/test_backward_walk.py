"""From the readout's product backwards: constants on the hidden state and on the table itself."""

import math

import pytest
from tests.core.build import B, Build, D, T, V, model
from tests.core.look import lookup_of, readout_of, table_of

from tiebeam.core.initialising.init import plan_init
from tiebeam.errors import RangeError

PASSED = {
    "a cast": lambda g, x: g.cast(x),
    "dropout": lambda g, x: g.dropout(x),
    "the last position": lambda g, x: g.select(x, 1),
    "a reshape": lambda g, x: g.flatten(x),
    "a mask": lambda g, x: g.mask(x),
    "a product with a random mask": lambda g, x: g.mul(x, g.random((B, T, D))),
    "a bias": lambda g, x: g.add(x, g.leaf("bias", (D,))),
}


@pytest.mark.parametrize("step", PASSED.values(), ids=PASSED)
def test_the_walk_back_from_a_readout_passes_through(step):
    g = model(hidden=lambda g, x: g.mul(step(g, g.mul(x, 2.0)), 4.0))
    assert readout_of(g).factor == 8.0


COLLECTED = {
    "a number": (lambda g, x: g.mul(x, 0.125), 0.125),
    "a number in front": (lambda g, x: g.mul(0.125, x), 0.125),
    "a divisor": (lambda g, x: g.div(x, 8.0), 0.125),
    "a negation": (lambda g, x: g.neg(x), -1.0),
    "itself taken from a bias": (lambda g, x: g.sub(g.leaf("bias", (D,)), x), -1.0),
    "a buffer": (lambda g, x: g.mul(x, g.buffer("scale", (1,), number=0.5)), 0.5),
    "a parameter": (lambda g, x: g.mul(x, g.leaf("temperature", (), number=7.0)), 7.0),
    "a chain": (lambda g, x: g.neg(g.div(g.mul(x, 3.0), 4.0)), -0.75),
}


@pytest.mark.parametrize(("step", "factor"), COLLECTED.values(), ids=COLLECTED)
def test_the_walk_back_from_a_readout_collects(step, factor):
    assert readout_of(model(hidden=step)).factor == pytest.approx(factor)


@pytest.mark.parametrize("share", [1 / T, 2.0 / T])
def test_a_mean_of_different_positions_is_no_factor_but_another_number_is(share):
    g = model(hidden=lambda g, x: g.mul(g.reduce(x, 1), share))
    assert readout_of(g).factor == pytest.approx(1.0 if share == 1 / T else share)


@pytest.mark.parametrize(
    "norm", [Build.norm, Build.decomposed_rms_norm, Build.decomposed_layer_norm, Build.decomposed_l2_norm]
)
def test_the_walk_back_ends_at_a_normalisation_however_it_is_written(norm):
    g = model(body=lambda g, x: g.mul(g.residual(x), 16.0), norm=norm, hidden=lambda g, x: g.mul(x, 2.0))
    readout = readout_of(g)
    assert (readout.factor, readout.normalized) == (2.0, True)


def test_the_vector_gain_of_a_normalisation_belongs_to_it():
    g = model(norm=lambda g, x: g.decomposed_rms_norm(x, g.leaf("norm.weight", (D,))))
    assert (readout_of(g).factor, readout_of(g).normalized) == (1.0, True)


@pytest.mark.parametrize(
    ("step", "factor"),
    [(lambda g, x: g.add(x, x), 2.0), (lambda g, x: g.sub(g.mul(x, 3.0), x), 2.0)],
    ids=["doubled", "multiples"],
)
def test_a_sum_of_multiples_stands_behind_a_normalisation_with_a_gain(step, factor):
    g = model(norm=lambda g, x: g.decomposed_rms_norm(x, g.leaf("norm.weight", (D,))), hidden=step)
    assert (readout_of(g).factor, readout_of(g).normalized) == (factor, True)


def test_a_vector_on_a_hidden_state_that_no_normalisation_made_has_no_factor():
    g = model(norm=lambda g, x: x, hidden=lambda g, x: g.mul(x, g.leaf("gain", (D,))))
    readout = readout_of(g)
    assert readout.factor is None
    assert "hidden state" in readout.notes[0]


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (lambda g, x: g.mul(x, g.input(())), "depends on the inputs"),
        (lambda g, x: g.mul(x, g.buffer("scale", (), lost=True)), "lost on meta"),
        (lambda g, x: g.mul(x, g.random(())), "random"),
        (lambda g, x: g.div(x, 0.0), "zero"),
    ],
)
def test_a_hidden_state_times_what_is_no_known_constant_has_no_factor(step, reason):
    readout = readout_of(model(hidden=step))
    assert readout.factor is None
    assert reason in readout.notes[0]


def test_the_hidden_rms_is_that_where_the_walk_ends():
    g = model(hidden=lambda g, x: g.mul(x, -0.25))
    assert readout_of(g, rms={g.nodes[-1].inputs[0]: 0.5}).hidden_rms == 2.0


def test_the_cut_does_not_move_the_logit_std():
    """A factor in the walk, or hidden in a weight behind it: factor times rms is the same."""
    for hidden in (lambda g, x: g.mul(x, 4.0), lambda g, x: g.opaque(x)):
        g = model(hidden=hidden)
        readout = readout_of(g, rms={g.nodes[-1].inputs[0]: 4.0})
        assert readout.factor * readout.hidden_rms == 4.0


def test_equal_terms_before_the_readout_change_no_product_of_factor_and_rms():
    g = model(hidden=lambda g, x: g.add(x, x))
    readout = readout_of(g, rms={g.nodes[-1].inputs[0]: 2.0})
    assert readout.factor * readout.hidden_rms == 2.0


def test_on_meta_no_std_is_planned_on_a_hidden_state_of_unknown_size():
    """Twice a normalised state has rms 2: half of what is planned would be right, or no plan."""
    table = table_of(model(Build(meta=True), hidden=lambda g, x: g.add(x, x)))
    try:
        (plan,) = plan_init([table], "auto", meta=True)
    except RangeError:
        return
    assert plan.std == pytest.approx(0.5 / math.sqrt(D))


def test_on_meta_a_normalised_hidden_state_has_rms_one():
    assert readout_of(model(Build(meta=True), hidden=lambda g, x: g.mul(x, 2.0))).hidden_rms == 1.0


def test_on_meta_a_hidden_state_that_was_not_normalised_has_no_known_rms():
    assert readout_of(model(Build(meta=True), norm=lambda g, x: x)).hidden_rms is None


def test_kappa_is_the_cosine_of_the_stream_that_enters_the_normalisation():
    g = model(hidden=lambda g, x: g.mul(x, 2.0))
    norm = [n for n in g.nodes if n.op.name == "NORMALIZE"][-1]
    readout = len(g.nodes) - 1
    assert readout_of(g, cosine={(readout, norm.inputs[0]): 0.9, (readout, norm.output): 0.1}).kappa == 0.9


ON_TABLE = {
    "a number": (lambda g, w: g.mul(w, 0.5), 0.5),
    "a number in front": (lambda g, w: g.mul(0.5, w), 0.5),
    "a divisor": (lambda g, w: g.div(w, -4.0), -0.25),
    "a cast in between": (lambda g, w: g.mul(g.cast(g.mul(w, 3.0)), 2.0), 6.0),
    "a buffer": (lambda g, w: g.mul(w, g.buffer("scale", (1,), number=2.0)), 2.0),
}


@pytest.mark.parametrize(("step", "factor"), ON_TABLE.values(), ids=ON_TABLE)
def test_the_tables_own_factor_counts_for_the_role_that_reads_it(step, factor):
    g = model(table=step, logits=lambda g, z: g.mul(z, 2.0))
    assert readout_of(g).factor == 2.0 * factor
    assert lookup_of(g).factor == 1.0


def test_the_tables_own_factor_counts_in_a_lookup_too():
    g = Build()
    rows = g.gather(g.mul(g.leaf("embed.weight", (V, D)), 3.0), g.input_ids())
    g.returned(g.norm(g.mul(rows, 2.0)))
    assert lookup_of(g).factor == 6.0


def test_a_table_times_a_vector_has_no_factor_and_is_not_read_as_it_is():
    readout = readout_of(model(table=lambda g, w: g.mul(w, g.leaf("gain", (D,)))))
    assert readout.factor is None
    assert readout.reparametrized
    assert "table" in readout.notes[0]
