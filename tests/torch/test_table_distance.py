"""How far two tables are apart, whichever way they lie."""

import math

import pytest
import torch
from tests.torch.weights_kit import DTYPES, Allocations, drawn, fake

from tiebeam.backends.torch import weights
from tiebeam.backends.torch.weights import Distance, distance
from tiebeam.errors import ShapeError


@pytest.mark.parametrize(("axis_a", "axis_b"), [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_the_distance_is_that_of_the_formula_whichever_way_the_tables_lie(axis_a, axis_b):
    a = drawn(700, 48, std=1.0)
    b = a + 0.1 * drawn(700, 48, std=1.0, seed=1)
    expected = float((a - b).norm()) / math.sqrt((float(a.norm()) ** 2 + float(b.norm()) ** 2) / 2)
    laid = [table if axis == 0 else table.T.contiguous() for table, axis in ((a, axis_a), (b, axis_b))]
    found = distance(*laid, vocab_axis_a=axis_a, vocab_axis_b=axis_b)
    assert found.relative == pytest.approx(expected, rel=1e-5)
    assert (found.equal, found.rows) == (False, 700)


@pytest.mark.parametrize("std", [1.0, 0.01])
def test_independent_draws_are_the_root_of_two_apart_whatever_their_stds(std):
    found = distance(drawn(2000, 64, std=1.0), drawn(2000, 64, std=std, seed=1))
    assert found.relative == pytest.approx(math.sqrt(2), abs=0.02)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_copy_is_equal_also_after_a_cast_either_way(dtype):
    a = drawn(300, 16, std=1.0)
    for x, y in ((a, a.to(dtype)), (a.to(dtype), a)):
        found = distance(x, y.T.contiguous(), vocab_axis_b=1)
        assert found.equal
        assert found.relative < 0.05
    assert distance(a, a.clone()) == Distance(0.0, True, 300)


def test_one_changed_entry_ends_equality_but_hardly_the_distance():
    a = drawn(3000, 16)
    b = a.clone()
    b[2999, 15] += 1e-6
    found = distance(a, b)
    assert not found.equal
    assert 0 < found.relative < 1e-4


@pytest.mark.parametrize("more", [1, 64, 500])
def test_tables_of_unequal_vocab_are_compared_over_common_rows(more):
    assert distance(drawn(300, 16), drawn(300 + more, 16)) == Distance(0.0, True, 300)
    assert distance(drawn(300 + more, 16).T, drawn(300, 16), vocab_axis_a=1) == Distance(0.0, True, 300)


def test_entries_that_are_not_finite_leave_no_distance_but_a_copy_a_copy():
    a = drawn(300, 16)
    a[7, 7] = math.nan
    assert distance(a, a.clone()) == Distance(None, True, 300)
    assert distance(a, drawn(300, 16)) == Distance(None, False, 300)


def test_tables_of_zeros_are_equal_and_far_from_all_others():
    zeros = torch.zeros(100, 8)
    assert distance(zeros, zeros.clone()) == Distance(0.0, True, 100)
    assert distance(zeros, drawn(100, 8)).relative == pytest.approx(math.sqrt(2))


def test_small_numbers_that_a_cast_would_make_zero_are_no_copy_of_zeros():
    found = distance(drawn(100, 8, std=1e-12), torch.zeros(100, 8, dtype=torch.float16))
    assert not found.equal


def test_codes_of_a_quantised_table_are_no_copy_of_a_table_they_could_be_cast_from():
    found = distance(torch.tensor([[1.25, -1.0]]), torch.tensor([[1, -1]], dtype=torch.int8))
    assert not found.equal


@pytest.mark.parametrize("size", [1e25, 1e-25])
def test_the_distance_survives_numbers_whose_squares_leave_float32(size):
    a, b = drawn(100, 8, std=1.0), drawn(100, 8, std=1.0, seed=1)
    assert distance(a * size, b * size).relative == pytest.approx(distance(a, b).relative, rel=1e-4)


@pytest.mark.parametrize("blank", [torch.empty(6, 4, device="meta"), fake((6, 4))], ids=["meta", "fake"])
def test_a_table_without_values_has_no_distance(blank):
    assert distance(drawn(6, 4), blank) is None
    assert distance(blank, drawn(6, 4)) is None


def test_tables_without_common_rows_have_no_distance():
    assert distance(torch.zeros(0, 4), drawn(6, 4)).relative is None


def test_unequal_widths_are_refused():
    with pytest.raises(ShapeError, match="unequal width"):
        distance(drawn(6, 4), drawn(6, 5))


def test_comparing_copies_a_chunk_at_most(monkeypatch):
    monkeypatch.setattr(weights, "CHUNK_ON_HOST", 4096)
    a, b = drawn(3000, 64), drawn(3000, 64).bfloat16().T.contiguous()
    with Allocations() as seen:
        assert distance(a, b, vocab_axis_b=1).equal
    assert 0 < seen.largest <= 4096
