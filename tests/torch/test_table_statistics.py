"""Measuring tables, where they lie and whatever they hold."""

import math

import pytest
import torch
from tests.torch.weights_kit import DTYPES, Allocations, drawn, fake
from torch import nn

from tiebeam.backends.torch import weights
from tiebeam.backends.torch.weights import TableStatistics, distance, table_statistics


@pytest.mark.parametrize("dtype", DTYPES[:4], ids=str)
@pytest.mark.parametrize("vocab_axis", [0, 1])
def test_the_statistics_are_those_of_the_entries(dtype, vocab_axis):
    table = drawn(1500, 96, std=0.5).to(dtype)
    table[[3, 77]] = 0
    found = table_statistics(table if vocab_axis == 0 else table.T.contiguous(), vocab_axis)
    entries = table.double()
    norms = entries.norm(dim=1)
    norms = norms[norms > 0]
    assert found.std == pytest.approx(float(entries.square().mean().sqrt()), rel=1e-5)
    assert found.spread == pytest.approx(float(norms.std(correction=0) / norms.mean()) * math.sqrt(192), rel=1e-3)
    assert (found.finite, found.constant, found.zero_rows, found.zero_count) == (True, False, (3, 77), 2)


def test_a_float8_table_is_measured():
    table = drawn(200, 64, std=1.0).to(torch.float8_e4m3fn)
    assert table_statistics(table, 0).std == pytest.approx(float(table.float().square().mean().sqrt()), rel=1e-5)


@pytest.mark.parametrize("width", [1, 16, 512])
def test_independent_draws_have_a_spread_of_one_or_less(width):
    spread = table_statistics(drawn(2000, width), 0).spread
    assert 0.9 < spread < 1.1


def test_rows_of_unlike_size_have_a_large_spread():
    table = drawn(2000, 64) * torch.linspace(0.5, 1.5, 2000)[:, None]
    assert table_statistics(table, 0).spread > 2


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", DTYPES[:4], ids=str)
@pytest.mark.parametrize("vocab_axis", [0, 1])
def test_one_entry_that_is_not_finite_is_seen(bad, dtype, vocab_axis):
    table = drawn(300, 300).to(dtype)
    table[200, 17] = bad
    assert table_statistics(table, vocab_axis) == TableStatistics(finite=False, constant=False)


@pytest.mark.parametrize("vocab_axis", [0, 1])
@pytest.mark.parametrize("size", [1e30, 1e-30])
def test_entries_whose_squares_leave_float32_are_measured_rightly(size, vocab_axis):
    table = drawn(300, 200, std=1.0) * size
    found = table_statistics(table, vocab_axis)
    assert found.finite
    assert found.zero_count == 0
    assert found.std == pytest.approx(float(table.double().square().mean().sqrt()), rel=1e-5)


def test_at_most_eight_zero_rows_are_listed_and_all_are_counted():
    table = drawn(100, 4)
    table[20:40] = 0
    found = table_statistics(table, 0)
    assert found.zero_rows == tuple(range(20, 28))
    assert found.zero_count == 20


@pytest.mark.parametrize("value", [0.0, 1.0, -0.02])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float8_e4m3fn], ids=str)
@pytest.mark.parametrize("vocab_axis", [0, 1])
def test_a_constant_table_is_told_from_one_with_equal_norms(value, dtype, vocab_axis):
    shape = (1401, 768) if vocab_axis == 0 else (768, 1401)  # one row beyond a chunk
    table = torch.full(shape, value, dtype=dtype)
    found = table_statistics(table, vocab_axis)
    assert found.constant
    assert found.std == pytest.approx(abs(value), rel=0.05)
    if value:
        table.view(-1)[5] = -value
        assert not table_statistics(table, vocab_axis).constant


@pytest.mark.parametrize(
    "table",
    [
        torch.zeros(6, 4, dtype=torch.int8),
        torch.zeros(6, 4, dtype=torch.bool),
        torch.zeros(6, 4, device="meta"),
        torch.zeros(0, 4),
        torch.zeros(6, 0),
        torch.zeros(6, 4).to_sparse(),
        fake((6, 4)),
        nn.Parameter(fake((6, 4))),
    ],
    ids=["int8", "bool", "meta", "no rows", "no width", "sparse", "fake", "fake parameter"],
)
def test_a_table_whose_values_cannot_be_read_has_no_statistics(table):
    assert table_statistics(table, 0) == TableStatistics()


def test_a_table_of_one_row_or_one_column_is_measured():
    row = table_statistics(torch.tensor([[3.0, 4.0]]), 0)
    assert (row.std, row.spread, row.constant) == (pytest.approx(math.sqrt(12.5)), None, False)
    column = table_statistics(torch.tensor([[3.0], [-3.0]]), 0)
    assert (column.std, column.spread, column.constant) == (pytest.approx(3.0), 0.0, False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocab_axis", [0, 1])
def test_measuring_copies_a_chunk_at_most(dtype, vocab_axis, monkeypatch):
    monkeypatch.setattr(weights, "CHUNK_ON_HOST", 4096)
    table = drawn(3000, 64).to(dtype)
    table[5] = 0
    table = table if vocab_axis == 0 else table.T.contiguous()
    with Allocations() as seen:
        table_statistics(table, vocab_axis)
    assert 0 < seen.largest <= 4096


def test_measuring_a_parameter_records_and_changes_nothing():
    table = nn.Parameter(drawn(100, 8))
    before, version = table.detach().clone(), table._version
    table_statistics(table, 0)
    distance(table, table)
    assert table._version == version
    assert torch.equal(table, before)
