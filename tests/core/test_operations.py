"""Rules of operations: which rows come from where, what a state's entries are, and all of it or nothing."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiebeam.core.operations.conflicts import conflict
from tiebeam.core.operations.loading import plan_load
from tiebeam.core.operations.rows import Moments, kept_rows, new_rows, plan_rows, resized
from tiebeam.core.operations.state import JOINS, of_new_rows, rows_axis
from tiebeam.core.operations.ties import as_named_now
from tiebeam.core.operations.transaction import Transaction
from tiebeam.errors import RangeError, ShapeError, TieError

sizes = st.integers(1, 40)


@given(sizes, sizes, st.integers(1, 16))
def test_a_plan_keeps_every_row_that_both_have_and_rounds_up(before: int, vocab: int, multiple: int) -> None:
    plan = plan_rows(before, vocab, multiple=multiple)
    assert plan.after % multiple == 0
    assert 0 <= plan.after - vocab < multiple
    kept = min(before, plan.after)
    assert plan.source[:kept].tolist() == list(range(kept))
    assert (plan.source[kept:] == -1).all()
    assert plan.changes == (plan.after != before)
    assert (plan.padding is None) == (plan.after == vocab)


@given(st.permutations(range(12)), st.integers(0, 5))
def test_ids_turned_and_turned_back_are_the_table_that_was(order: list[int], more: int) -> None:
    table = np.random.default_rng(0).normal(size=(12, 3)).astype(np.float32)
    there = plan_rows(12, ids=[*order, *[-1] * more])
    back = plan_rows(12 + more, 12, ids={old: new for new, old in enumerate(order)})
    turned = resized(table, 0, there, 0)
    assert np.array_equal(turned[:12], table[list(order)])
    assert np.array_equal(resized(turned, 0, back, 0), table)


@given(st.dictionaries(st.text(max_size=3), st.integers(0, 30), max_size=12))
def test_a_token_keeps_its_row(ids: dict[str, int]) -> None:
    old = {t: i for t, i in ids.items() if list(ids.values()).count(i) == 1}
    new = {t: i for i, t in enumerate([*sorted(old), "<new>"])}
    plan = plan_rows(31, tokens=(old, new))
    for token, i in new.items():
        assert plan.source[i] == old.get(token, -1)


@given(st.integers(2, 30), st.integers(0, 1), st.sampled_from(["covariance", "std", "mean", "zeros"]))
def test_kept_rows_are_kept_bit_by_bit_along_either_axis(after: int, axis: int, how: str) -> None:
    table = np.random.default_rng(1).normal(size=(9, 4)).astype(np.float32)
    plan = plan_rows(9, after, rows=how)  # type: ignore[arg-type]
    made = resized(table if axis == 0 else table.T.copy(), axis, plan, 0)
    made = made if axis == 0 else made.T
    kept = min(9, after)
    assert np.array_equal(made[:kept], table[:kept])
    assert made.dtype == np.float32
    assert np.isfinite(made).all()
    assert np.array_equal(kept_rows(table, 0, plan)[:kept], table[:kept])


def test_a_larger_vocabulary_keeps_the_new_rows_of_a_smaller_one() -> None:
    table = np.random.default_rng(2).normal(size=(100, 8)).astype(np.float32)
    small, large = (resized(table, 0, plan_rows(100, n, seed=3), 0) for n in (120, 300))
    assert np.array_equal(small, large[:120])
    other = resized(table, 0, plan_rows(100, 120, seed=4), 0)
    assert not np.array_equal(small, other)


@given(st.integers(1, 9))
def test_fewer_rows_than_columns_are_no_harm(rows: int) -> None:
    """The covariance is singular then: draws stay in the span of the rows."""
    table = np.random.default_rng(3).normal(size=(rows, 10)).astype(np.float32)
    seen = Moments(10, covariance=True)
    seen.take(table)
    drawn = np.concatenate([e for _, e in new_rows(plan_rows(rows, rows + 50), seen, 0)])
    centred = table - table.mean(0)
    inside = np.linalg.lstsq(centred.T, (drawn - table.mean(0)).T, rcond=None)[0]
    assert np.allclose(centred.T @ inside, (drawn - table.mean(0)).T, atol=1e-4)


def test_rows_of_padding_are_no_sample() -> None:
    seen = Moments(2, covariance=False)
    seen.take(np.array([[1.0, 1.0], [0.0, 0.0], [3.0, 1.0]]))
    assert seen.mean.tolist() == [2.0, 1.0]
    with pytest.raises(RangeError, match="covariance"):
        seen.covariance()


def test_a_bias_gets_the_mean_of_what_is_finite() -> None:
    bias = np.array([1.0, 3.0, -np.inf], np.float32)
    assert resized(bias, 0, plan_rows(3, 4), None).tolist() == [1.0, 3.0, -np.inf, 2.0]
    assert resized(bias, 0, plan_rows(3, 4, rows="zeros"), None)[3] == 0.0


BAD: dict[str, dict[str, Any]] = {
    "no rows": {"vocab": 0},
    "no multiple": {"multiple": 0},
    "a fraction": {"vocab": 2.5},
    "an old row that is not there": {"ids": [0, 9]},
    "a new row beyond the vocabulary": {"vocab": 2, "ids": {5: 0}},
    "both ways": {"ids": [0], "tokens": ({}, {})},
    "two tokens of one id": {"tokens": ({"a": 0, "b": 0}, {"a": 0})},
    "parts of a kept row": {"vocab": 12, "parts": {0: [1]}},
    "parts that are not there": {"vocab": 12, "parts": {10: [9]}},
    "no parts": {"vocab": 12, "parts": {10: []}},
    "no such rows": {"rows": "best"},
    "no seed": {"seed": -1},
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_planned_is_refused(case: str) -> None:
    with pytest.raises(RangeError) as caught:
        plan_rows(9, **{"vocab": None, **BAD[case]})
    assert caught.value.expected or caught.value.got


@pytest.mark.parametrize("axis", [0, 1])
def test_entries_of_a_state_say_which_axis_counts_rows(axis: int) -> None:
    table = (9, 4) if axis == 0 else (4, 9)
    assert rows_axis("exp_avg", table, table, axis) == axis
    assert rows_axis("step", (), table, axis) is None
    assert rows_axis("exp_avg_sq_row", table[:1], table, axis) == (0 if axis == 0 else None)
    assert rows_axis("exp_avg_sq_col", table[1:], table, axis) == (None if axis == 0 else 0)
    assert rows_axis("v", (1,), table, axis) is None
    with pytest.raises(TieError, match="blocks"):
        rows_axis("blocks", (7, 3), table, axis)


def test_where_rows_and_columns_are_as_many_only_a_name_tells() -> None:
    assert rows_axis("exp_avg_sq_row", (9,), (9, 9), 0) == 0
    assert rows_axis("exp_avg_sq_col", (9,), (9, 9), 0) is None
    with pytest.raises(TieError):
        rows_axis("scale", (9,), (9, 9), 0)


def test_a_mean_of_squares_that_starts_at_zero_would_step_too_far() -> None:
    assert {n for n in JOINS if of_new_rows(n) == "mean"} >= {"exp_avg_sq", "square_avg", "sum"}
    assert of_new_rows("momentum_buffer") == "zero"


def test_a_transaction_undoes_in_reverse_or_not_at_all() -> None:
    done: list[int] = []
    with Transaction() as undo:
        undo.did(lambda: done.append(1))
    assert done == []

    def interrupted() -> None:
        with Transaction() as undo:
            undo.did(lambda: done.append(1))
            undo.did(lambda: done.append(2))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert done == [2, 1]


def test_names_are_found_behind_a_wrapper_and_in_front_of_one() -> None:
    tie = ("model.embed.weight", "lm_head.weight")
    wrapped = ("base.model.embed.weight", "base.lm_head.weight", "base.norm.weight")
    assert as_named_now(tie, wrapped) == wrapped[:2]
    assert as_named_now(wrapped[:2], tie) == tie
    assert as_named_now(tie, ("model.embed.weight", "lm_head.weight_orig")) == tie


def test_a_file_is_planned_before_it_is_read() -> None:
    model = {"embed": (9, 4), "head": (9, 4), "norm": (4,)}
    tied = [("embed", "head")]
    assert plan_load(model, tied, {"head": (9, 4), "norm": (4,)}, {}).stored["embed"] == ("head",)
    both = plan_load(model, tied, model, {})
    assert both.stored == {"embed": ("embed", "head"), "norm": ("norm",)}
    apart = plan_load(model, [], {"embed": (9, 4), "norm": (4,)}, {}, declared=[("embed", "head")])
    assert apart.missing == {"head": "embed"}
    with pytest.raises(TieError, match="lacks 'head'"):
        plan_load(model, [], {"embed": (9, 4), "norm": (4,)}, {})
    with pytest.raises(ShapeError, match="resize"):
        plan_load(model, tied, {**model, "head": (8, 4)}, {})
    extra = plan_load({"embed": (9, 4)}, [], {"embed": (9, 4), "head": (9, 4), "x": (2,)}, {})
    assert extra.redundant == {"head": ("embed",), "x": ()}


def test_a_conflict_needs_a_word() -> None:
    with pytest.raises(TieError, match=r"entries up to 0\.5 apart"):
        conflict("error", ["a", "b"], 0.5)
    assert conflict("readout", ["a", "b"], 0.5) == "readout"
