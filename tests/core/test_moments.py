"""The closed forms against draws, against one another, and at the edges of what they allow."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiebeam.core.initialising import moments
from tiebeam.core.initialising.predict import predict
from tiebeam.errors import RangeError

factors = st.floats(1e-3, 1e3).flatmap(lambda f: st.sampled_from([f, -f]))
positive = st.floats(1e-3, 1e3)
widths = st.integers(1, 20_000)


def unit_hidden(rng, rows, width):
    hidden = rng.standard_normal((rows, width))
    return hidden / np.sqrt(np.mean(hidden**2, axis=1, keepdims=True))


@pytest.mark.parametrize(("factor", "rms", "std", "width"), [(1.0, 1.0, 0.02, 768), (-0.125, 3.0, 1.0, 64)])
def test_the_logit_std_is_that_of_drawn_logits(factor, rms, std, width):
    rng = np.random.default_rng(0)
    table = std * rng.standard_normal((4000, width))
    logits = factor * (rms * unit_hidden(rng, 100, width)) @ table.T
    assert moments.logit_std(factor, rms, std, width) == pytest.approx(logits.std(), rel=0.01)


def test_a_looked_up_row_has_the_rms_that_was_predicted():
    rows = np.random.default_rng(1).standard_normal((3000, 64)) * 0.02
    assert moments.lookup_rms(-8.0, 0.02) == pytest.approx(np.sqrt(np.mean((-8.0 * rows) ** 2)), rel=0.01)


@pytest.mark.parametrize("kappa", [-0.5, 0.0, 0.9, 1.0])
def test_the_own_logit_is_that_of_a_stream_at_the_given_cosine(kappa):
    rng = np.random.default_rng(2)
    width, std, factor = 256, 0.1, 0.5
    rows = std * rng.standard_normal((4000, width))
    along = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    across = rng.standard_normal(rows.shape)
    across -= along * np.sum(along * across, axis=1, keepdims=True)
    across /= np.linalg.norm(across, axis=1, keepdims=True)
    hidden = math.sqrt(width) * (kappa * along + math.sqrt(1 - kappa**2) * across)
    own = factor * np.sum(hidden * rows, axis=1).mean()
    s = moments.logit_std(factor, 1.0, std, width)
    assert moments.own_logit(kappa, s, width) == pytest.approx(own, rel=0.01, abs=0.02)


@pytest.mark.parametrize(("s", "tolerance"), [(0.1, 0.002), (1.0, 0.002), (2.0, 0.01), (12.0, 0.12), (40.0, 0.12)])
def test_phi_is_the_mean_log_of_a_sum_of_exponentials(s, tolerance):
    rng = np.random.default_rng(3)
    logits = s * rng.standard_normal((200, 30_000))
    top = logits.max(axis=1, keepdims=True)
    drawn = np.mean(top[:, 0] + np.log(np.exp(logits - top).sum(axis=1)))
    assert moments.phi(s, 30_000) == pytest.approx(drawn, rel=tolerance)


@pytest.mark.parametrize(("kappa", "pi"), [(0.0, 0.0), (0.9, 0.0125), (0.9, 0.5), (0.3, 1.0), (-0.4, 0.1)])
def test_the_first_loss_is_that_of_a_tied_readout_at_the_given_cosine(kappa, pi):
    rng = np.random.default_rng(4)
    vocab, width, positions = 5000, 128, 3000
    table = rng.standard_normal((vocab, width)) / math.sqrt(width)
    ids = rng.integers(0, vocab, positions)
    along = table[ids] / np.linalg.norm(table[ids], axis=1, keepdims=True)
    across = rng.standard_normal(along.shape)
    across -= along * np.sum(along * across, axis=1, keepdims=True)
    across /= np.linalg.norm(across, axis=1, keepdims=True)
    hidden = math.sqrt(width) * (kappa * along + math.sqrt(1 - kappa**2) * across)
    logits = hidden @ table.T
    targets = np.where(np.arange(positions) < pi * positions, ids, rng.integers(0, vocab, positions))
    top = logits.max(axis=1)
    losses = top + np.log(np.exp(logits - top[:, None]).sum(axis=1)) - logits[np.arange(positions), targets]
    assert moments.initial_loss(1.0, vocab, width, kappa, pi) == pytest.approx(losses.mean(), abs=0.1)


@given(factor=factors, rms=positive, width=widths)
def test_a_table_at_its_target_std_gives_logits_of_std_one(factor, rms, width):
    std = moments.target_std_readout(factor, rms, width)
    assert moments.logit_std(factor, rms, std, width) == pytest.approx(1.0)


@given(factor=factors)
def test_a_lookup_at_its_target_std_gives_rows_of_rms_one(factor):
    assert moments.lookup_rms(factor, moments.target_std_lookup(factor)) == pytest.approx(1.0)


@given(factor=factors, rms=positive, width=widths, a=positive)
def test_the_target_std_falls_as_the_factor_rises(factor, rms, width, a):
    whole = moments.target_std_readout(a * factor, rms, width)
    assert whole == pytest.approx(moments.target_std_readout(factor, rms, width) / a)


@given(factor=factors, rms=positive, width=widths)
def test_the_lr_ratio_is_the_target_std_in_units_of_a_model_without_factors(factor, rms, width):
    ratio = moments.target_std_readout(factor, rms, width) / moments.target_std_readout(1.0, 1.0, width)
    assert moments.lr_ratio(factor, rms) == pytest.approx(ratio)


@pytest.mark.parametrize("vocab", [2, 1000, 33_527])
def test_both_forms_of_phi_and_their_slopes_meet(vocab):
    meeting, step = math.sqrt(2 * math.log(vocab)), 1e-4
    below, at, above = (moments.phi(meeting + i * step, vocab) for i in (-1, 0, 1))
    assert at == pytest.approx(2 * math.log(vocab))
    assert above - at == pytest.approx(at - below, rel=1e-3)


def test_uniform_logits_cost_the_log_of_the_vocabulary():
    loss = moments.initial_loss(0.0, 50_257, 768, kappa=1.0, pi=0.3)
    assert loss == pytest.approx(math.log(50_257), abs=1.01 / 50_257)


def test_a_huge_own_logit_does_not_overflow():
    assert moments.initial_loss(1e6, 33_527, 1024, kappa=1.0, pi=0.0) == pytest.approx(32e6)


BAD = [
    (moments.logit_std, (math.nan, 1.0, 1.0, 8), "readout_factor"),
    (moments.logit_std, (1.0, -1.0, 1.0, 8), "hidden_rms"),
    (moments.logit_std, (1.0, 1.0, -0.1, 8), "std"),
    (moments.logit_std, (1.0, 1.0, math.inf, 8), "std"),
    (moments.logit_std, (1.0, 1.0, 1.0, 0), "width"),
    (moments.target_std_readout, (0.0, 1.0, 8), "readout_factor"),
    (moments.target_std_readout, (1.0, 0.0, 8), "hidden_rms"),
    (moments.target_std_readout, (1.0, 1.0, -8), "width"),
    (moments.target_std_lookup, (0.0,), "lookup_factor"),
    (moments.target_std_lookup, (math.inf,), "lookup_factor"),
    (moments.lr_ratio, (0.0, 1.0), "readout_factor"),
    (moments.lr_ratio, (1.0, math.nan), "hidden_rms"),
    (moments.lookup_rms, (1.0, -1.0), "std"),
    (moments.own_logit, (1.5, 1.0, 8), "kappa"),
    (moments.own_logit, (math.nan, 1.0, 8), "kappa"),
    (moments.phi, (-1.0, 10), "s is"),
    (moments.phi, (1.0, 0), "vocab"),
    (moments.initial_loss, (1.0, 10, 8, 0.5, 1.5), "pi"),
]


@pytest.mark.parametrize(("function", "arguments", "named"), BAD)
def test_a_number_out_of_range_is_refused_by_name(function, arguments, named):
    with pytest.raises(RangeError, match=named) as caught:
        function(*arguments)
    assert caught.value.got
    assert caught.value.expected


FACTS = {
    "vocab": 33_527,
    "width": 256,
    "std": 1 / 16,
    "lookup_factor": 16.0,
    "readout_factor": 1.0,
    "hidden_rms": 1.0,
}


def test_a_known_cosine_predicts_numbers_and_no_ranges():
    known = predict(**FACTS, kappa=0.9, pi=0.0125)
    assert (known.logit_std, known.lookup_rms) == (1.0, 1.0)
    assert known.own_logit == pytest.approx(0.9 * 16)
    assert known.initial_loss == moments.initial_loss(1.0, 33_527, 256, 0.9, 0.0125)
    assert known.own_logit_range is None
    assert known.initial_loss_range is None


def test_an_unknown_cosine_predicts_ranges_and_no_numbers():
    unknown = predict(**FACTS, pi=0.0125)
    assert (unknown.own_logit, unknown.initial_loss) == (None, None)
    assert unknown.own_logit_range == (0.0, 16.0)


@given(kappa=st.floats(0, 1), pi=st.floats(0, 1), std=st.floats(1e-3, 2), sign=st.sampled_from([1.0, -1.0]))
def test_the_ranges_hold_whatever_the_cosine_turns_out_to_be(kappa, pi, std, sign):
    facts = {**FACTS, "std": std, "readout_factor": sign}
    bounds, point = predict(**facts, pi=pi), predict(**facts, kappa=kappa, pi=pi)
    low, high = bounds.initial_loss_range
    assert low - 1e-9 * abs(low) <= point.initial_loss <= high + 1e-9 * abs(high)
    low, high = bounds.own_logit_range
    assert low <= point.own_logit <= high


def test_the_lowest_loss_may_lie_between_the_bounds_of_the_cosine():
    low, _ = predict(**FACTS, pi=0.5).initial_loss_range
    ends = [predict(**FACTS, kappa=kappa, pi=0.5).initial_loss for kappa in (0.0, 1.0)]
    grid = [predict(**FACTS, kappa=kappa, pi=0.5).initial_loss for kappa in np.linspace(0, 1, 2001)]
    assert low < min(ends) - 0.1
    assert low == pytest.approx(min(grid), abs=1e-4)


def test_a_negative_readout_factor_turns_the_own_logit_round():
    assert predict(**{**FACTS, "readout_factor": -1.0}, kappa=0.5).own_logit == pytest.approx(-8.0)
    assert predict(**{**FACTS, "readout_factor": -1.0}).own_logit_range == (-16.0, 0.0)


@pytest.mark.parametrize("unknown", ["std", "readout_factor", "hidden_rms"])
@pytest.mark.parametrize("value", [None, math.nan, math.inf])
def test_what_rests_on_an_unknown_fact_is_none(unknown, value):
    predicted = predict(**{**FACTS, unknown: value}, kappa=0.9)
    assert predicted.log_vocab == pytest.approx(math.log(33_527))
    assert predicted.logit_std is predicted.own_logit is predicted.initial_loss is None
    assert (predicted.lookup_rms is None) == (unknown == "std")


def test_a_table_of_zeros_predicts_uniform_logits():
    predicted = predict(**{**FACTS, "std": 0.0})
    assert (predicted.logit_std, predicted.lookup_rms) == (0.0, 0.0)
    assert predicted.initial_loss_range == pytest.approx((math.log(33_527),) * 2, abs=1.01 / 33_527)


def test_an_empty_table_predicts_nothing():
    predicted = predict(**{**FACTS, "vocab": 0})
    assert math.isnan(predicted.log_vocab)
    assert predicted.logit_std is None


def test_a_cosine_rounded_just_above_one_counts_as_one():
    assert predict(**FACTS, kappa=1.0000002).own_logit == 16.0
    with pytest.raises(RangeError, match="kappa"):
        predict(**FACTS, kappa=1.1)
