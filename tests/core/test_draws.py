"""Draws: the same bits for the same key, other bits for another, and a normal distribution."""

import hashlib
import itertools
import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiebeam.core.initialising.draws import KINDS, ROWS_PER_BLOCK, Kind, blocks, draw_block, float32_std
from tiebeam.errors import RangeError, ShapeError

seeds = st.integers(0, 2**70)
keys = st.tuples(seeds, st.sampled_from(sorted(KINDS)), st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1))


def table(seed: int, vocab: int, width: int, std: float = 1.0, kind: Kind = "table", ordinal: int = 0):
    drawn = [draw_block(seed, kind, ordinal, block.index, block.rows, width, std) for block in blocks(vocab)]
    return np.concatenate(drawn) if drawn else np.empty((0, width), np.float32)


def test_the_stream_is_the_one_that_published_weights_were_drawn_from():
    """A new hash here means that NumPy changed its streams: every seed then gives other weights."""
    digest = hashlib.sha256()
    for key in [
        (0, "table", 0, 0),
        (1, "table", 0, 3),
        (0, "weight", 7, 2**40),
        (2**64, "table", 2**32 - 1, 1),
    ]:
        digest.update(draw_block(*key, 64, 48, 0.02).astype("<f4").tobytes())
    assert digest.hexdigest() == "b841768cbdc2ef698f100b864dc3e16cf33785cf6041679f6e265566445cf331"


def test_the_first_draws_are_those_that_philox_gives_under_the_documented_key():
    bits = np.random.Philox(key=np.array([5, (1 << 32) | 2], np.uint64), counter=np.array([0, 0, 9, 0], np.uint64))
    expected = np.random.Generator(bits).standard_normal((64, 8), dtype=np.float32) * np.float32(0.3)
    assert np.array_equal(draw_block(5, "table", 2, 9, 64, 8, 0.3), expected)


def test_a_large_seed_is_hashed_as_documented():
    seed = 2**64 + 12345
    word = int.from_bytes(hashlib.sha256(seed.to_bytes(9, "big")).digest()[:8], "big")
    bits = np.random.Philox(key=np.array([word, (1 << 63) | (1 << 32)], np.uint64))
    expected = np.random.Generator(bits).standard_normal((64, 8), dtype=np.float32)
    assert np.array_equal(draw_block(seed, "table", 0, 0, 64, 8, 1.0), expected)


@given(key=keys, rows=st.integers(0, 64), width=st.integers(0, 40))
def test_a_block_of_few_rows_is_the_head_of_the_whole_block(key, rows, width):
    whole = draw_block(*key, 64, width, 0.7)
    assert np.array_equal(draw_block(*key, rows, width, 0.7), whole[:rows])


@given(short=st.integers(0, 300), more=st.integers(0, 200), seed=seeds)
def test_a_padded_vocabulary_keeps_its_rows(short, more, seed):
    assert np.array_equal(table(seed, short + more, 5)[:short], table(seed, short, 5))


@given(first=keys, second=keys)
def test_another_key_gives_other_draws(first, second):
    same = np.array_equal(draw_block(*first, 1, 8, 1.0), draw_block(*second, 1, 8, 1.0))
    assert same == (first == second)


def test_neighbouring_keys_share_no_row():
    grid = itertools.product((0, 1, 2**32, 2**64 - 1, 2**64), sorted(KINDS), (0, 1), (0, 1, 2**32))
    rows = np.concatenate([draw_block(*key, 64, 4, 1.0) for key in grid])
    assert len(np.unique(rows, axis=0)) == len(rows) == 5 * 2 * 2 * 3 * 64


@pytest.mark.parametrize("threads", [2, 7])
def test_the_number_of_threads_and_their_order_change_nothing(threads):
    todo = list(blocks(1000))
    with ThreadPoolExecutor(threads) as pool:
        drawn = list(pool.map(lambda b: draw_block(3, "table", 0, b.index, b.rows, 16, 0.1), todo[::-1]))
    assert np.array_equal(np.concatenate(drawn[::-1]), table(3, 1000, 16, 0.1))


def test_a_buffer_receives_the_very_same_draws():
    buffer = np.full((64, 16), np.nan, np.float32)
    drawn = draw_block(0, "table", 0, 4, 10, 16, 0.5, out=buffer[:10])
    assert np.shares_memory(drawn, buffer)
    assert np.array_equal(buffer[:10], draw_block(0, "table", 0, 4, 10, 16, 0.5))
    assert np.isnan(buffer[10:]).all()


@given(std=st.floats(1e-6, 1e6))
def test_the_std_multiplies_unit_draws_once_in_float32(std):
    unit = draw_block(1, "table", 0, 0, 3, 4, 1.0)
    assert np.array_equal(draw_block(1, "table", 0, 0, 3, 4, std), unit * np.float32(std))


def test_draws_are_normal():
    drawn = table(0, 6400, 64).astype(np.float64)
    n = drawn.size
    assert abs(drawn.mean()) < 4 / math.sqrt(n)
    assert drawn.std() == pytest.approx(1, abs=4 / math.sqrt(2 * n))
    assert np.mean(drawn**3) == pytest.approx(0, abs=4 * math.sqrt(15 / n))
    assert np.mean(drawn**4) == pytest.approx(3, abs=4 * math.sqrt(96 / n))
    for z in (0.5, 1.0, 2.0, 3.0, 4.0):  # tails too: the ziggurat draws them another way
        share = math.erfc(z / math.sqrt(2))
        assert np.mean(np.abs(drawn) > z) == pytest.approx(share, abs=4 * math.sqrt(share / n))


def test_rows_within_and_between_blocks_are_uncorrelated():
    drawn = table(0, 256, 4096).astype(np.float64)
    correlation = np.corrcoef(drawn) - np.eye(256)
    assert np.abs(correlation).max() < 6 / math.sqrt(4096)
    assert correlation.std() == pytest.approx(1 / math.sqrt(4096), rel=0.05)


@given(vocab=st.integers(0, 5000))
def test_blocks_cover_every_row_once_in_order(vocab):
    covered = [row for block in blocks(vocab) for row in range(block.start, block.stop)]
    assert covered == list(range(vocab))
    assert all(block.start == block.index * ROWS_PER_BLOCK for block in blocks(vocab))
    assert all(0 < block.rows == block.stop - block.start <= ROWS_PER_BLOCK for block in blocks(vocab))


GOOD = {"seed": 0, "kind": "table", "ordinal": 0, "block": 0, "rows": 1, "width": 1, "std": 1.0}
BAD = [
    *[("seed", value) for value in (-1, 1.5, "1", None)],
    *[("kind", value) for value in ("tables", "")],
    *[("ordinal", value) for value in (-1, 2**32)],
    *[("block", value) for value in (-1, 2**64)],
    *[("rows", value) for value in (-1, 65)],
    ("width", -1),
    *[("std", value) for value in (0.0, -1.0, math.nan, math.inf, 1e39, 1e-60)],
]


@pytest.mark.parametrize(("name", "value"), BAD)
def test_an_argument_out_of_range_is_refused_by_name(name, value):
    with pytest.raises(RangeError, match=name) as caught:
        draw_block(**{**GOOD, name: value})
    assert caught.value.got == repr(value)


def test_numpy_integers_are_integers():
    seed, ordinal = np.uint64(2**64 - 1), np.int32(4)
    drawn = draw_block(seed, "table", ordinal, np.int64(1), np.int64(2), np.int64(3), 1.0)
    assert np.array_equal(drawn, draw_block(2**64 - 1, "table", 4, 1, 2, 3, 1.0))


@pytest.mark.parametrize(
    "out",
    [
        np.empty((3, 2), np.float32),
        np.empty((2, 3)),
        np.empty((3, 2), np.float32).T,
        np.empty((2, 6), np.float32)[:, ::2],
    ],
    ids=["shape", "dtype", "column-major", "strided"],
)
def test_a_buffer_that_does_not_fit_is_refused(out):
    with pytest.raises(ShapeError, match="does not fit"):
        draw_block(0, "table", 0, 0, 2, 3, 1.0, out=out)


def test_a_negative_vocabulary_is_refused():
    with pytest.raises(RangeError, match="vocab"):
        blocks(-1)


def test_the_std_is_rounded_to_float32_once():
    assert float32_std(0.1) == np.float32(0.1)
    assert float32_std(0.1).dtype == np.float32
