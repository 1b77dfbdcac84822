"""Facts of a table: what its records agree on, and what follows for std, rate and first loss."""

import math

import numpy as np
import pytest
from tests.core.build import Build, D, V, model
from tests.core.look import table_of, tables_of
from tests.core.test_states import drawn, pair


def hidden_of(g):
    return [n.inputs[0] for n in g.nodes if n.label == "linear"][-1]


def test_a_tables_factors_are_those_of_its_records():
    table = table_of(model(rows=lambda g, x: g.mul(x, 4.0), logits=lambda g, z: g.mul(z, -0.5)))
    assert (table.lookup_factor, table.readout_factor) == (4.0, -0.5)


def test_a_role_that_a_table_does_not_have_has_no_factor():
    lookup, readout = tables_of(pair())
    assert (lookup.lookup_factor, lookup.readout_factor) == (1.0, None)
    assert (readout.lookup_factor, readout.readout_factor) == (None, 1.0)


def two_lookups(first, second):
    g = Build()
    w = g.leaf("embed.weight", (V, D))
    rows = []
    for where, factor in (("a", first), ("b", second)):
        with g.at(where):
            rows.append(g.norm(g.mul(g.gather(w, g.input_ids()), factor)))
    return g.returned(g.dot(g.norm(g.residual(g.add(*rows))), w))


def test_uses_that_differ_leave_the_table_none_and_say_both_numbers():
    table = table_of(two_lookups(2.0, 3.0))
    assert table.lookup_factor is None
    assert "differs between uses: 2, 3" in table.notes[0]
    assert [r.factor for r in table.lookups] == [2.0, 3.0]


def test_uses_that_agree_are_one_number():
    assert table_of(two_lookups(3.0, 3.0)).lookup_factor == 3.0


def test_an_unknown_factor_leaves_the_table_none_with_the_records_reason():
    table = table_of(model(rows=lambda g, x: g.mul(x, g.input(()))))
    assert table.lookup_factor is None
    assert table.notes[0].startswith("lookup_factor is not known: ")
    assert "depends on the inputs" in table.notes[0]


def test_a_tied_table_wants_unit_logits():
    g = model(hidden=lambda g, x: g.mul(x, 0.5), logits=lambda g, z: g.mul(z, -0.5))
    table = table_of(g, rms={hidden_of(g): 1.5})
    assert table.hidden_rms == 3.0
    assert table.target_std == pytest.approx(1 / (0.25 * 3.0 * math.sqrt(D)))
    assert table.lr_ratio == pytest.approx(table.target_std * math.sqrt(D))


def test_a_lookup_alone_wants_unit_rows_and_the_plain_rate():
    lookup, _ = tables_of(pair())
    assert (lookup.target_std, lookup.lr_ratio) == (1.0, 1.0)
    g = Build()
    x = g.mul(g.gather(g.leaf("embed.weight", (V, D)), g.input_ids()), -4.0)
    table = table_of(g.returned(g.norm(x)))
    assert (table.target_std, table.lr_ratio) == (0.25, 1.0)


@pytest.mark.parametrize("logits", [lambda g, z: g.mul(z, g.input(())), lambda g, z: g.mul(z, 0.0)], ids=["None", "0"])
def test_without_a_readout_factor_there_is_no_target(logits):
    g = model(logits=logits)
    table = table_of(g, rms={hidden_of(g): 1.0})
    assert (table.target_std, table.lr_ratio) == (None, None)


def test_without_a_hidden_rms_there_is_no_target():
    assert table_of(model()).target_std is None


def test_readout_bias_says_whether_a_bias_over_the_vocabulary_is_added():
    assert table_of(model(logits=lambda g, z: g.add(z, g.leaf("bias", (V,))))).readout_bias
    assert not table_of(model()).readout_bias


def test_a_table_is_normalised_after_the_lookup_where_every_lookup_is():
    assert table_of(model(rows=Build.norm)).norm_after_lookup
    assert not table_of(model()).norm_after_lookup
    _, readout = tables_of(pair())
    assert not readout.norm_after_lookup


def heads(*caps):
    """One tied table read out once for each cap, None for a readout without."""
    g = Build()
    w = g.leaf("embed.weight", (V, D))
    x = g.norm(g.residual(g.gather(w, g.input_ids())))
    made = [g.dot(x, w) for _ in caps]
    return g.returned(*(z if c is None else g.mul(g.tanh(z), c) for z, c in zip(made, caps, strict=True)))


@pytest.mark.parametrize(("caps", "cap"), [((30.0, 30.0), 30.0), ((30.0, None), None), ((30.0, 50.0), None)])
def test_a_soft_cap_is_the_tables_where_all_readouts_have_it(caps, cap):
    assert table_of(heads(*caps)).soft_cap == cap


def test_the_std_is_that_of_the_entries_now():
    table = table_of(model(), {"embed.weight": np.full((V, D), -0.5)})
    assert (table.std, table.constant, table.finite) == (0.5, True, True)


def test_without_values_nothing_is_said_about_them():
    table = table_of(model())
    assert (table.std, table.finite, table.constant, table.fresh, table.spread) == (None,) * 5


def big(of, rows=300):
    g = Build()
    w = g.leaf("embed.weight", (rows, D))
    g.returned(g.dot(g.norm(g.residual(g.gather(w, g.input_ids()))), w))
    return table_of(g, {"embed.weight": of})


def test_independent_draws_look_fresh():
    table = big(drawn(0, (300, D)))
    assert table.fresh is True
    assert table.spread == pytest.approx(1.0, abs=0.2)


def test_rows_of_many_sizes_look_trained():
    sizes = np.random.default_rng(1).lognormal(0.0, 0.6, (300, 1))
    assert big(drawn(0, (300, D)) * sizes).fresh is False


def test_few_rows_tell_nothing():
    assert table_of(model(), {"embed.weight": drawn(0)}).fresh is None


def test_rows_that_are_all_zero_are_padding():
    w = drawn(0)
    w[[0, 5]] = 0
    assert table_of(model(), {"embed.weight": w}).padding_rows == (0, 5)


@pytest.mark.parametrize("rows", [4, 300])
def test_a_table_of_zeros_has_no_padding(rows):
    assert big(np.zeros((rows, D)), rows).padding_rows == ()


def test_more_zero_rows_than_padding_needs_are_no_padding():
    w = drawn(0)
    w[:9] = 0
    assert table_of(model(), {"embed.weight": w}).padding_rows == ()


def test_the_prediction_is_of_the_present_std():
    g = model()
    readout = len(g.nodes) - 1
    stream = [n for n in g.nodes if n.op.name == "NORMALIZE"][-1].inputs[0]
    table = table_of(
        g, {"embed.weight": np.full((V, D), 0.5)}, rms={hidden_of(g): 1.0}, cosine={(readout, stream): 0.9}
    )
    assert table.predicted.logit_std == pytest.approx(0.5 * math.sqrt(D))
    assert table.predicted.own_logit == pytest.approx(0.9 * 0.5 * D)
    assert table.predicted.lookup_rms == 0.5
    assert table.predicted.log_vocab == pytest.approx(math.log(V))


def test_an_untied_readout_has_no_own_token():
    g = pair()
    _, readout = tables_of(g, {"embed.weight": drawn(0), "head.weight": drawn(1)}, rms={hidden_of(g): 1.0})
    assert readout.predicted.own_logit == 0.0


def test_the_share_of_repeated_tokens_lowers_the_first_loss():
    losses = []
    for repeats in (0.0, 0.5):
        g = model()
        stream = [n for n in g.nodes if n.op.name == "NORMALIZE"][-1].inputs[0]
        table = table_of(
            g, {"embed.weight": drawn(0)}, rms={hidden_of(g): 1.0}, cosine={(len(g.nodes) - 1, stream): 0.5},
            repeats=repeats,
        )  # fmt: skip
        losses.append(table.predicted.initial_loss)
    assert losses[0] - losses[1] == pytest.approx(0.5 * table.predicted.own_logit)


def test_a_table_is_trainable_where_one_of_its_parameters_is():
    g = pair(embed={"storage": 3, "trainable": False}, head={"storage": 3})
    assert table_of(g).trainable
    assert not table_of(
        pair(embed={"storage": 3, "trainable": False}, head={"storage": 3, "trainable": False})
    ).trainable


def test_a_table_says_its_dtype_and_which_axis_is_the_vocabulary():
    g = Build()
    w = g.leaf("embed.weight", (D, V), dtype="bfloat16")
    g.returned(g.dot(g.norm(g.residual(g.gather(g.transpose(w), g.input_ids()))), w, 0))
    table = table_of(g)
    assert (table.dtype, table.vocab_axis, table.vocab, table.width, table.state) == ("bfloat16", 1, V, D, "tied")
