"""What tiebeam sees in every model, and the truths themselves held against numbers."""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
import pytest
from tests.jax.models.kit import STAGED, Case, Truth, load, normal

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
    report = tiebeam.inspect(case.model, case.inputs, params=case.params)
    table = table_of(report, truth)
    assert table.state == truth.state, (table.state, table.notes)
    assert table.names == truth.names
    assert (table.vocab, table.width, table.vocab_axis) == (truth.vocab, truth.width, truth.vocab_axis)
    for field in ("lookup_factor", "readout_factor", "soft_cap"):
        got, want = getattr(table, field), getattr(truth, field)
        assert got is None if want is None else got == pytest.approx(want, rel=1e-6), (field, got, table.notes)
    assert table.readout_bias == truth.readout_bias
    assert truth.norm_after_lookup in (None, table.norm_after_lookup)
    if truth.partner is not None:
        assert table.partner == truth.partner
    if truth.counts is not None:
        lookups, readouts, executions = truth.counts
        assert (len(table.lookups), len(table.readouts)) == (lookups, readouts)
        assert not readouts or table.readouts[0].count == executions
    if table.readouts:
        assert table.readouts[0].normalized == truth.normalized


@every_staged
def test_moving_the_table_in_one_role_moves_that_role_alone_as_the_factors_say(build: Callable[[], Case]) -> None:
    case = build()
    truth = case.truth
    delta = normal(11, *(VOCAB_FIRST if truth.vocab_axis == 0 else WIDTH_FIRST), std=0.5 if truth.rel > 1e-3 else 1e-2)
    rows_of_delta = delta if truth.vocab_axis == 0 else delta.T
    tokens = case.inputs[0]
    tolerance = {"rtol": max(1e-4, truth.rel), "atol": max(1e-5, 5 * truth.rel)}

    rows = case.look(case.weights, tokens)
    moved = case.look(case.moved(delta), tokens) - rows
    shown = ~(moved == 0).all(-1, keepdims=True)  # a row that is masked does not move
    np.testing.assert_allclose(moved, truth.lookup_factor * rows_of_delta[tokens] * shown, **tolerance)

    hidden = case.body(case.weights, rows)
    # Small, so that a soft cap is at its slope. The bias, if any, is in both.
    small = hidden * (1e-2 if truth.soft_cap else 1.0)
    change = case.read(case.moved(delta), small) - case.read(case.weights, small)
    expected = truth.readout_factor * (small @ rows_of_delta.T)
    expected = expected[:, -1] if change.ndim < expected.ndim else expected
    np.testing.assert_allclose(change, expected, **tolerance)

    if truth.soft_cap:
        limit = jnp.abs(case.read(case.weights, hidden * 1e5)).max()
        assert float(limit) == pytest.approx(truth.soft_cap, rel=1e-4)


VOCAB_FIRST, WIDTH_FIRST = (37, 8), (8, 37)


@every_staged
def test_measured_sizes_are_those_of_the_pass(build: Callable[[], Case]) -> None:
    case = build()
    table = table_of(tiebeam.inspect(case.model, case.inputs, params=case.params), case.truth)
    rows = case.look(case.weights, case.inputs[0])
    hidden = case.body(case.weights, rows)
    if case.read(case.weights, hidden).ndim < hidden.ndim:
        hidden = hidden[:, -1:]  # the model reads out there alone
    rms = [float(jnp.sqrt(jnp.mean(jnp.square(x.astype(jnp.float32))))) for x in (rows, hidden)]
    assert table.hidden_rms == pytest.approx(rms[1], rel=max(1e-4, case.truth.rel))
    if case.truth.lookup_factor is not None:
        assert table.lookups[0].rms == pytest.approx(rms[0], rel=0.35)  # positions come after it


def test_there_are_models_of_every_kind() -> None:
    kinds = {n.partition("_")[0] for n in CASES}
    assert {"linen", "nnx", "eqx"} <= kinds
    assert len(CASES) >= 60
