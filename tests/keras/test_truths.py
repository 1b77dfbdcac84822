"""What tiebeam sees in every model, and the truths themselves held against numbers."""

from collections.abc import Callable

import numpy as np
import pytest
from tests.keras.models.kit import STAGED, VOCAB, WIDTH, Case, Truth, load, numbers

import tiebeam

CASES = load()
every_case = pytest.mark.parametrize("build", [pytest.param(b, id=n) for n, b in CASES.items()])
every_staged = pytest.mark.parametrize("build", [pytest.param(b, id=n) for n, b in CASES.items() if n in STAGED])


def table_of(report: tiebeam.Report, truth: Truth) -> tiebeam.Table:
    found = [t for t in report.tables if set(truth.names) & set(t.names)]
    assert len(found) == 1, f"{truth.names}: the report has {[(t.names, t.state) for t in report.tables]}"
    return found[0]


@every_case
def test_what_is_seen_is_what_is_so(build: Callable[[], Case]) -> None:
    case = build()
    truth = case.truth
    report = tiebeam.inspect(case.model, case.inputs)
    table = table_of(report, truth)
    assert table.state == truth.state, (table.state, table.notes)
    assert table.names == truth.names
    assert (table.vocab, table.width, table.vocab_axis) == (VOCAB, WIDTH, truth.vocab_axis)
    for field in ("lookup_factor", "readout_factor", "soft_cap"):
        got, want = getattr(table, field), getattr(truth, field)
        assert got is None if want is None else got == pytest.approx(want, rel=truth.rel), (field, got, table.notes)
    assert table.readout_bias == truth.readout_bias
    assert table.norm_after_lookup == truth.norm_after_lookup
    assert table.partner == truth.partner
    if truth.counts is not None:
        lookups, readouts, executions = truth.counts
        assert (len(table.lookups), len(table.readouts)) == (lookups, readouts)
        assert not readouts or table.readouts[0].count == executions
    if table.readouts:
        assert table.readouts[0].normalized == truth.normalized
    if case.look is not None:
        hidden = case.body(case.look(case.inputs))
        if numbers(case.read(hidden)).ndim < numbers(hidden).ndim:
            hidden = hidden[:, -1:]  # the model reads out there alone
        rms = float(np.sqrt(np.mean(np.square(numbers(hidden)))))
        assert table.hidden_rms is None or table.hidden_rms == pytest.approx(rms, rel=max(1e-4, truth.noise / 5))


@every_staged
def test_moving_the_table_in_one_role_moves_that_role_alone_as_the_factors_say(build: Callable[[], Case]) -> None:
    case = build()
    truth = case.truth
    delta = np.random.default_rng(11).standard_normal((VOCAB, WIDTH)).astype("float32")
    if truth.noise < 1e-3:
        delta *= 1e-2 if truth.soft_cap else 0.5
    tolerance = {"rtol": truth.noise, "atol": truth.noise if truth.noise < 1e-3 else 4 * truth.noise}
    moved = delta if truth.vocab_axis == 0 else delta.T

    rows = case.look(case.inputs)
    with case.moved(moved):
        change = numbers(case.look(case.inputs)) - numbers(rows)
    np.testing.assert_allclose(change, truth.lookup_factor * delta[case.inputs], **tolerance)

    hidden = case.body(rows)
    close = {"rtol": truth.noise, "atol": truth.noise}
    np.testing.assert_allclose(numbers(case.read(hidden)), numbers(case.model(case.inputs)), **close)
    before = numbers(case.read(hidden * 1e-2 if truth.soft_cap else hidden))
    with case.moved(moved):
        change = numbers(case.read(hidden * 1e-2 if truth.soft_cap else hidden)) - before
    expected = truth.readout_factor * (numbers(hidden) * (1e-2 if truth.soft_cap else 1.0)) @ delta.T
    np.testing.assert_allclose(change, expected[:, -1] if change.ndim < expected.ndim else expected, **tolerance)

    if truth.soft_cap:
        assert np.abs(numbers(case.read(hidden * 1e5))).max() == pytest.approx(truth.soft_cap, rel=1e-4)


def test_there_are_models_of_every_kind() -> None:
    assert len(CASES) >= 45
    assert len(STAGED) >= 30
