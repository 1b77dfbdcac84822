"""One record for each call site with equal facts; numbers that another pass does not repeat are no constants."""

import math
from dataclasses import replace

import pytest
from tests.core.build import Build, D, T, V, model
from tests.core.look import lookup_of, lookups_of, readout_of, readouts_of, uses_of

from tiebeam.core.reading.records import confirm, root_mean_square, unconfirmed


def token_by_token(factors, dtype=None):
    """One lookup and one readout for each token, as a loop runs them."""
    g = Build()
    w = g.leaf("embed.weight", (V, D))
    ends = []
    for factor in factors:
        with g.at("embed"):
            x = g.gather(w, g.input_ids((2, 1)))
        x = g.norm(g.mul(x, factor))
        with g.at("head"):
            ends.append(g.mul(g.dot(x, w), factor))
    return g.returned(g.concat(*ends, axis=1))


def test_executions_of_one_place_with_equal_facts_are_one_record_with_a_count():
    g = token_by_token([2.0] * 5)
    assert [(r.factor, r.count) for r in lookups_of(g)] == [(2.0, 5)]
    assert [(r.factor, r.count) for r in readouts_of(g)] == [(2.0, 5)]


def test_executions_that_differ_are_records_of_their_own():
    g = token_by_token([2.0, 3.0, 2.0])
    assert [(r.factor, r.count) for r in lookups_of(g)] == [(2.0, 2), (3.0, 1)]
    assert [(r.factor, r.count) for r in readouts_of(g)] == [(2.0, 2), (3.0, 1)]


def test_rows_that_are_normalised_in_one_execution_alone_are_two_records():
    g = Build()
    w = g.leaf("embed.weight", (V, D))
    first, second = (g.gather(w, g.input_ids()) for _ in range(2))
    g.returned(g.dot(g.norm(g.residual(g.add(g.norm(first), g.pointwise(second)))), w))
    assert [(r.norm_after, r.count) for r in lookups_of(g)] == [(True, 1), (False, 1)]


def test_two_places_are_two_records_though_their_facts_are_equal():
    g = Build()
    w = g.leaf("shared.weight", (V, D))
    rows = []
    for where in ("encoder.embed", "decoder.embed"):
        with g.at(where):
            rows.append(g.gather(w, g.input_ids()))
    g.returned(g.dot(g.norm(g.residual(g.add(*rows))), w))
    assert [(r.where, r.count) for r in lookups_of(g)] == [("encoder.embed", 1), ("decoder.embed", 1)]


def test_a_record_of_several_executions_has_the_root_mean_square_of_what_was_measured():
    g = token_by_token([1.0, 1.0])
    hidden = [n.inputs[0] for n in g.nodes if n.label == "linear"]
    rows = [n.output for n in g.nodes if n.op.name == "GATHER"]
    measured = {hidden[0]: 1.0, hidden[1]: 7.0, rows[0]: 3.0, rows[1]: 4.0}
    assert readout_of(g, rms=measured).hidden_rms == pytest.approx(5.0)
    assert lookup_of(g, rms=measured).rms == pytest.approx(math.sqrt(12.5))


def test_the_root_mean_square_of_nothing_is_unknown():
    assert root_mean_square([]) is root_mean_square([None]) is None
    assert root_mean_square([None, -3.0]) == 3.0


def test_a_table_that_one_role_reads_through_a_mask_is_said_to_be_reparametrised_there():
    g = model(table=Build.mask)
    assert readout_of(g).reparametrized
    assert not lookup_of(g).reparametrized


# Another pass, at another length.


def of_length(t, step):
    """The uses of a model on inputs of length t, where `step` may put t into a number."""
    g = Build()
    w = g.leaf("embed.weight", (V, D))
    with g.at("embed"):
        x = g.gather(w, g.input_ids((2, t)))
    return uses_of(g.returned(g.dot(g.norm(g.residual(step(g, x, t))), w)).graph())


def by_length(g, x, t):
    return g.mul(x, t**0.5)


def test_a_number_that_follows_the_length_of_the_inputs_is_no_constant():
    lookup, readout = confirm(of_length(9, by_length), of_length(4, by_length))
    assert lookup.fact.factor is None
    assert "3 in one pass" in lookup.fact.notes[-1]
    assert "2 in a pass of another length" in lookup.fact.notes[-1]
    assert readout.fact.factor == 1.0


def test_a_number_that_another_length_repeats_is_a_constant():
    uses = of_length(9, lambda g, x, t: g.mul(x, 8.0))
    assert confirm(uses, of_length(4, lambda g, x, t: g.mul(x, 8.0))) == uses


def test_a_number_of_the_models_own_needs_no_confirmation():
    uses = of_length(9, lambda g, x, t: g.mul(x, g.buffer("scale", (), number=8.0)))
    assert not uses[0].literal
    assert confirm(uses, of_length(4, by_length))[0].fact.factor == 8.0


def test_a_buffers_number_turned_by_the_program_could_be_of_the_inputs():
    def step(g, x, t):
        return g.mul(g.mul(x, g.buffer("scale", (), number=8.0)), t**0.5)

    uses = of_length(9, step)
    assert uses[0].fact.factor == 24.0
    assert confirm(uses, of_length(4, step))[0].fact.factor is None


def test_a_place_that_another_length_does_not_run_keeps_its_number():
    uses = of_length(9, by_length)
    assert confirm(uses, uses[1:])[0].fact.factor == 3.0


def test_an_unknown_number_in_the_other_pass_confirms_nothing():
    uses = of_length(9, by_length)
    other = of_length(4, lambda g, x, t: g.mul(x, g.input(())))
    confirmed = confirm(uses, other)[0].fact
    assert confirmed.factor is None
    assert "unknown" in confirmed.notes[-1]


def test_a_soft_cap_goes_with_its_unconfirmed_factor():
    def capped(t):
        return uses_of(model(logits=lambda g, z: g.mul(g.tanh(z), float(t))).graph())

    confirmed = confirm(capped(9), capped(4))[1].fact
    assert (confirmed.factor, confirmed.soft_cap) == (None, None)


def test_without_another_length_a_number_of_the_program_is_not_known():
    lookup, readout = unconfirmed(of_length(9, by_length), "one length only")
    assert lookup.fact.factor is None
    assert "one length only" in lookup.fact.notes[-1]
    assert readout.fact.factor == 1.0


def test_without_another_length_a_soft_cap_of_the_programs_number_is_not_known_either():
    uses = uses_of(model(logits=lambda g, z: g.mul(g.tanh(z), 9.0)).graph())
    assert unconfirmed(uses, "one length only")[1].fact.soft_cap is None


def test_without_another_length_a_number_of_the_models_own_stays():
    uses = of_length(9, lambda g, x, t: g.mul(x, g.buffer("scale", (), number=8.0)))
    assert unconfirmed(uses, "one length only") == uses


def test_a_factor_of_one_needs_no_other_length():
    uses = of_length(9, lambda g, x, t: g.mul(x, 1.0))
    assert unconfirmed(uses, "one length only") == uses


def test_one_place_is_known_again_in_another_pass():
    a, b = of_length(9, by_length), of_length(4, by_length)
    assert [u.site for u in a] == [u.site for u in b]
    assert len({u.site for u in a}) == 2


def test_facts_are_frozen_and_compare_by_value():
    fact = lookup_of(model())
    assert replace(fact, count=1) == fact
    assert T > 1
