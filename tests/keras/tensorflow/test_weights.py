"""Drawing and measuring tables that are TensorFlow's variables."""

import hashlib
import math
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from tiebeam.backends.keras.tensorflow import weights
from tiebeam.backends.keras.tensorflow.weights import check_writable, distance, draw, table_statistics, zero_rows
from tiebeam.core.initialising.draws import blocks, draw_block
from tiebeam.core.statistics import TableStatistics
from tiebeam.errors import InputError

DTYPES = [tf.float64, tf.float32, tf.float16, tf.bfloat16]
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)


@pytest.fixture(params=["whole", "in pieces"], autouse=True)
def pieces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything at once, and a few blocks at a time."""
    if request.param == "in pieces":
        monkeypatch.setattr(weights, "PIECE", 64 * 48 * 2)


def by_core(vocab: int, width: int, std: float = 0.02, seed: int = 0, ordinal: int = 0) -> Any:
    """The table as core alone draws it."""
    parts = [draw_block(seed, "table", ordinal, b.index, b.rows, width, std) for b in blocks(vocab)]
    return np.concatenate(parts)


def drawn(shape: tuple[int, ...], dtype: Any = tf.float32, vocab_axis: int = 0, **options: Any) -> Any:
    variable = tf.Variable(tf.ones(shape, dtype))
    draw(variable, vocab_axis=vocab_axis, **{"seed": 0, "ordinal": 0, "std": 0.02, **options})
    return variable


@every_dtype
def test_the_bits_are_those_of_core_rounded_once(dtype: Any) -> None:
    expected = by_core(300, 48).astype(dtype.as_numpy_dtype)
    assert np.array_equal(drawn((300, 48), dtype).numpy(), expected)
    assert np.array_equal(drawn((48, 300), dtype, vocab_axis=1).numpy(), expected.T)
    assert np.array_equal(drawn((300, 1, 48), dtype).numpy(), expected[:, None])


def test_the_stream_is_the_published_one() -> None:
    """The hash of `tests/core/test_draws.py`, its tables drawn into variables."""
    digest = hashlib.sha256()
    digest.update(drawn((64, 48)).numpy().astype("<f4").tobytes())
    digest.update(drawn((256, 48), seed=1).numpy()[192:].astype("<f4").tobytes())
    digest.update(draw_block(0, "weight", 7, 2**40, 64, 48, 0.02).astype("<f4").tobytes())
    digest.update(drawn((128, 48), seed=2**64, ordinal=2**32 - 1).numpy()[64:].astype("<f4").tobytes())
    assert digest.hexdigest() == "b841768cbdc2ef698f100b864dc3e16cf33785cf6041679f6e265566445cf331"


def test_padding_rows_are_zero_and_the_others_are_what_they_were_without() -> None:
    table = drawn((200, 48), zero_rows=[3, 150]).numpy()
    expected = by_core(200, 48)
    expected[[3, 150]] = 0
    assert np.array_equal(table, expected)
    assert zero_rows(tf.Variable(table), 0) == (3, 150)
    assert zero_rows(tf.Variable(table.T), 1) == (3, 150)


@every_dtype
@pytest.mark.parametrize("vocab_axis", [0, 1])
def test_statistics_are_those_of_the_entries(dtype: Any, vocab_axis: int) -> None:
    table = drawn((300, 48) if vocab_axis == 0 else (48, 300), dtype, vocab_axis, std=0.5, zero_rows=[7])
    host = table.numpy().astype(np.float64)
    rows = host if vocab_axis == 0 else host.T
    norms = np.linalg.norm(rows, axis=1)
    kept = norms[norms > 0]
    found = table_statistics(table, vocab_axis)
    assert found.std == pytest.approx(math.sqrt((host**2).mean()), rel=1e-5)
    assert found.spread == pytest.approx(kept.std() / kept.mean() * math.sqrt(2 * 48), rel=1e-4)
    assert (found.finite, found.constant, found.zero_rows, found.zero_count) == (True, False, (7,), 1)


def test_numbers_that_float32_cannot_square_are_measured_all_the_same() -> None:
    tiny = tf.Variable(tf.fill((100, 8), 1e-30))
    assert table_statistics(tiny, 0).std == pytest.approx(1e-30)
    huge = tf.Variable(tf.fill((100, 8), 1e30))
    assert table_statistics(huge, 0).std == pytest.approx(1e30)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_an_entry_that_is_not_finite_is_told(bad: float) -> None:
    table = by_core(200, 48)
    table[190, 3] = bad
    found = table_statistics(tf.Variable(table), 0)
    assert (found.finite, found.std) == (False, None)


def test_integers_and_empty_tables_have_no_statistics() -> None:
    assert table_statistics(tf.Variable(tf.ones((4, 3), tf.int8)), 0) == TableStatistics()
    assert table_statistics(tf.Variable(tf.ones((0, 3))), 0) == TableStatistics()
    assert zero_rows(tf.Variable(tf.zeros((4, 3), tf.int8)), 0) == ()


def test_integers_cannot_be_drawn() -> None:
    with pytest.raises(InputError, match="'lm/table' cannot be drawn"):
        check_writable(tf.Variable(tf.ones((4, 3), tf.int8)), "lm/table")
    check_writable(tf.Variable(tf.ones((4, 3))), "lm/table")


@every_dtype
def test_a_copy_is_equal_also_after_a_cast_and_a_transpose(dtype: Any) -> None:
    table = drawn((200, 48))
    found = distance(table, tf.Variable(tf.cast(tf.transpose(table), dtype)), vocab_axis_b=1)
    assert found is not None
    assert found.equal
    assert found.rows == 200
    assert found.relative == pytest.approx(0, abs=1e-2)


@given(scale=st.floats(-3, 3))
def test_the_distance_of_a_multiple_is_what_algebra_says(scale: float) -> None:
    table = drawn((130, 16), std=1.0)
    found = distance(table, tf.Variable(tf.cast(scale, tf.float32) * table), vocab_axis_b=0)
    assert found is not None
    expected = abs(1 - scale) / math.sqrt((1 + scale**2) / 2)
    assert found.relative == pytest.approx(expected, abs=1e-4)
    assert found.equal == (scale == 1.0)


def test_independent_tables_are_at_the_root_of_two_over_the_rows_that_both_have() -> None:
    found = distance(drawn((300, 48)), drawn((200, 48), seed=1, std=0.02))
    assert found is not None
    assert (found.relative, found.rows) == (pytest.approx(math.sqrt(2), rel=0.02), 200)


def test_integers_have_no_distance() -> None:
    assert distance(drawn((4, 3)), tf.Variable(tf.ones((4, 3), tf.int8))) is None
