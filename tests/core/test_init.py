"""The init plan: which std follows from the structure, what has to be measured, and the rounds that measure it."""

import math
from dataclasses import replace

import pytest
from tests.core.facts import ROOT, couple, lookup_table, readout, readout_table, table

from tiebeam.core.initialising.init import (
    ROUNDS,
    SETTLED,
    contradiction,
    has_no_effect,
    measured_logit_std,
    next_std,
    plan_init,
)
from tiebeam.errors import RangeError


def plan(t, mode="auto", **facts):
    (found,) = plan_init([t], mode, **facts)
    return found


def loose(**facts):
    """A tied table whose hidden state it sizes itself."""
    return table(readouts=(readout(normalized=False, **facts),))


def test_a_normalised_hidden_state_of_rms_one_settles_the_std_by_structure():
    p = plan(table(readout_factor=-0.25))
    assert (p.mode, p.linear) == ("analytic", True)
    assert p.std == pytest.approx(4 / ROOT)


def test_the_first_std_does_not_depend_on_what_the_present_table_gives():
    assert len({plan(table(hidden_rms=rms)).std for rms in (0.9, 0.99, 1.0, 1.03)}) == 1


def test_a_gain_is_measured_once_the_table_is_drawn():
    p = plan(table(hidden_rms=3.0))
    assert (p.mode, p.linear) == ("analytic", True)
    assert p.std == pytest.approx(1 / ROOT)
    assert next_std(p, p.std, p.table) == (pytest.approx(1 / (3 * ROOT)), pytest.approx(3.0))


def test_a_hidden_state_that_the_table_sizes_is_measured():
    p = plan(loose())
    assert (p.mode, p.linear) == ("empirical", False)
    assert p.std == pytest.approx(1 / ROOT)


def test_an_unknown_readout_factor_is_measured_from_one():
    p = plan(table(readout_factor=None))
    assert (p.mode, p.std) == ("empirical", pytest.approx(1 / ROOT))


def test_one_readout_that_is_not_normalised_makes_the_table_measured():
    p = plan(table(readouts=(readout(), readout(normalized=False))))
    assert (p.mode, p.linear) == ("empirical", False)


def test_empirical_is_empirical_though_the_structure_would_tell():
    p = plan(table(readout_factor=0.5), "empirical")
    assert (p.mode, p.std) == ("empirical", pytest.approx(2 / ROOT))


def test_analytic_is_refused_where_the_structure_does_not_tell_and_says_why():
    t = replace(loose(), notes=("readout_factor differs between uses: 2, 3",))
    with pytest.raises(RangeError, match=r"embed\.weight") as caught:
        plan(t, "analytic")
    assert "differs between uses" in caught.value.got
    assert "empirical" in caught.value.hint


def test_without_a_note_the_refusal_names_the_missing_normalisation():
    with pytest.raises(RangeError) as caught:
        plan(loose(), "analytic")
    assert "no normalisation" in caught.value.got


def test_on_meta_what_would_have_to_be_measured_is_refused():
    with pytest.raises(RangeError):
        plan(loose(), meta=True)
    assert plan(table(), meta=True).mode == "analytic"


def test_an_unknown_mode_is_refused():
    with pytest.raises(RangeError, match="mode") as caught:
        plan_init([], "best")
    assert caught.value.got == "'best'"


def test_a_lookup_alone_has_the_std_of_unit_rows():
    p = plan(lookup_table(lookup_factor=-4.0))
    assert (p.mode, p.std) == ("analytic", 0.25)


def test_a_lookup_alone_of_unknown_factor_starts_at_one():
    p = plan(lookup_table(lookup_factor=None))
    assert (p.mode, p.std) == ("empirical", 1.0)


def test_each_table_of_an_untied_model_gets_the_std_of_its_role():
    a, b = plan_init(couple("untied", lookup={"lookup_factor": 2.0}), "auto")
    assert (a.std, b.std) == (0.5, pytest.approx(1 / ROOT))
    assert (a.ordinal, b.ordinal) == (0, 1)


def test_an_extra_lookup_beside_a_tied_table_is_left_alone_and_keeps_its_ordinal():
    tables = [lookup_table("before.weight"), table(), lookup_table("after.weight"), readout_table()]
    assert [(p.table.name, p.ordinal) for p in plan_init(tables, "auto")] == [("embed.weight", 1), ("head.weight", 3)]


@pytest.mark.parametrize("empty", [{"vocab": 0}, {"width": 0}])
def test_an_empty_table_is_left_alone(empty):
    assert plan_init([table(**empty, target_std=None)], "auto") == ()


def test_padding_rows_and_biases_go_with_the_plan():
    t = table(padding_rows=(0, 7), readouts=(readout(bias=("head.bias",)), readout(bias=("head.bias", "b"))))
    assert plan(t).biases == ("head.bias", "b")


@pytest.mark.parametrize("std", [None, 1e-3, 50.0])
@pytest.mark.parametrize("build", [table, lambda **f: replace(loose(), **f)], ids=["analytic", "empirical"])
def test_a_plan_does_not_depend_on_the_present_values(std, build):
    assert plan(build(std=std)).std == plan(build(std=0.02)).std


def test_a_square_matrix_that_is_only_multiplied_could_be_a_layer_and_is_left_alone():
    assert plan_init([readout_table(vocab=64, width=64)], "auto") == ()
    assert len(plan_init([table(vocab=64, width=64)], "auto")) == 1
    assert len(plan_init([lookup_table(vocab=64, width=64)], "auto")) == 1


# Rounds.


def test_a_logit_std_in_proportion_to_the_tables_is_divided_out():
    p = plan(table(hidden_rms=1.2))
    assert next_std(p, 0.5, table(hidden_rms=1.2))[0] == pytest.approx(1 / (1.2 * ROOT))


def test_a_logit_std_that_grows_faster_is_divided_out_by_its_root():
    p = plan(loose())
    assert next_std(p, 0.5, loose(logit_std=4.0)) == (0.25, 4.0)


@pytest.mark.parametrize("seen", [None, math.nan, math.inf, 0.0])
def test_what_was_not_measured_changes_nothing(seen):
    p = plan(table(readout_factor=None))
    after = table(readout_factor=None, readouts=(readout(logit_std=seen),))
    assert next_std(p, 0.5, after) == (0.5, None)


@pytest.mark.parametrize("rms", [math.inf, math.nan])
def test_a_hidden_state_that_is_not_finite_measures_nothing(rms):
    p = plan(table())
    assert next_std(p, 0.5, table(hidden_rms=rms)) == (0.5, None)


def test_logits_that_follow_the_std_in_any_power_have_an_effect():
    for power in (0.5, 1.0, 2.0):
        assert not has_no_effect((0.1, 3.0), (0.2, 3.0 * 2**power))


@pytest.mark.parametrize("after", [3.0, 3.1, 2.9])
def test_logits_that_stay_where_they_were_show_that_the_std_has_no_effect(after):
    assert has_no_effect((0.1, 3.0), (0.2, after))


def test_an_empirical_plan_measures_the_logits_themselves():
    p = plan(table(), "empirical")
    after = table(readouts=(readout(logit_std=3.0), readout(logit_std=4.0)))
    assert measured_logit_std(p, 0.5, after) == pytest.approx(math.sqrt(12.5))


def test_an_analytic_plan_measures_the_hidden_state():
    after = table(hidden_rms=2.0, readouts=(readout(logit_std=3.0),))
    assert measured_logit_std(plan(table()), 0.5, after) == pytest.approx(2.0 * 0.5 * ROOT)


def test_an_analytic_plan_without_a_hidden_rms_falls_back_to_the_logits():
    after = table(hidden_rms=None, readouts=(readout(logit_std=3.0),))
    assert measured_logit_std(plan(table()), 0.5, after) == 3.0


@pytest.mark.parametrize("start", [1e-3, 0.02, 1.0, 30.0])
@pytest.mark.parametrize("power", [1.5, 2.0, 2.5])
def test_damped_rounds_settle_where_undamped_ones_alternate(start, power):
    """The logit std goes as std**power; at power 2 the undamped step alternates for ever."""
    p, std = plan(loose()), start

    def logits(std):
        return (std / 0.125) ** power

    for _ in range(ROUNDS):
        if abs(logits(std) - 1) <= SETTLED:
            break
        std, _ = next_std(p, std, loose(logit_std=logits(std)))
    assert logits(std) == pytest.approx(1.0, abs=SETTLED)
    undamped = [start]
    for _ in range(2):
        undamped.append(undamped[-1] / logits(undamped[-1]))
    assert power != 2 or undamped[2] == pytest.approx(start)


def measured(std, **facts):
    return table(readouts=(readout(logit_std=std, **facts),))


def test_logits_that_contradict_the_formula_are_told():
    assert "8.5" in contradiction(measured(8.5), 1 / ROOT)
    assert contradiction(measured(0.5), 1 / ROOT)


def test_logits_within_the_chance_of_a_draw_of_so_many_rows_contradict_nothing():
    t = measured(1.0)
    chance = SETTLED + 3 / math.sqrt(2 * t.vocab)
    assert contradiction(t, 1 / ROOT) == ""
    assert contradiction(measured(1 + 0.9 * chance), 1 / ROOT) == ""
    assert contradiction(measured(1 - 0.9 * chance), 1 / ROOT) == ""
    assert contradiction(measured(1 - 1.1 * chance), 1 / ROOT)


def test_the_own_token_of_a_tied_table_adds_to_the_variance_of_its_logits():
    own = math.sqrt(1 + 0.81 * table().width / table().vocab)
    chance = SETTLED + 3 / math.sqrt(2 * table().vocab)
    assert contradiction(measured(own + 0.9 * chance, kappa=0.9), 1 / ROOT) == ""
    assert contradiction(measured(own + 0.9 * chance, kappa=0.0), 1 / ROOT)


def test_an_own_token_whose_share_was_not_measured_may_have_any():
    """A batch of one token has no cosine to be told from chance: what it could add is no contradiction."""
    most = math.sqrt(1 + table().width / table().vocab) + SETTLED + 3 / math.sqrt(2 * table().vocab)
    assert contradiction(measured(0.99 * most, kappa=None), 1 / ROOT) == ""
    assert contradiction(measured(1.01 * most, kappa=None), 1 / ROOT)
    assert contradiction(replace(measured(0.99 * most, kappa=None), lookups=()), 1 / ROOT)


def test_rows_that_are_left_at_zero_take_from_the_std_of_all_logits_and_contradict_nothing():
    t = measured(math.sqrt(0.8))
    assert contradiction(t, 1 / ROOT, zero_rows=t.vocab // 5) == ""
    assert contradiction(t, 1 / ROOT)


def test_what_was_not_measured_contradicts_nothing():
    assert contradiction(measured(None), 1 / ROOT) == ""
    assert contradiction(table(readout_factor=None, readouts=(readout(logit_std=9.0),)), 1 / ROOT) == ""


def test_a_lookup_that_could_be_read_out_unseen_is_left_alone_and_the_others_are_not():
    tables = [lookup_table("words"), lookup_table("types"), readout_table("head")]
    plans = plan_init(tables, "auto", unseen={"words": "fused_loss reads it", "head": "never asked for a readout"})
    assert [(p.table.name, p.ordinal) for p in plans] == [("types", 1), ("head", 2)]


def test_a_head_over_another_number_of_outputs_than_there_are_tokens_could_be_a_classifier_and_is_left_alone():
    words = lookup_table("words")
    for vocab, drawn in ((words.vocab, True), (words.vocab + 8, True), (words.vocab // 2, False)):
        tables = [words, readout_table("head", vocab=vocab)]
        assert ("head" in [p.table.name for p in plan_init(tables, "auto")]) == drawn
    assert len(plan_init([readout_table("head", vocab=words.vocab // 2)], "auto")) == 1
