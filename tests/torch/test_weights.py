"""Writing and measuring tables: real tensors in every layout, dtype and shard."""

import itertools
import math
import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from tiebeam.backends.torch import weights
from tiebeam.backends.torch.weights import (
    Distance,
    TableStatistics,
    distance,
    table_statistics,
    write_table,
    zero_,
)
from tiebeam.core.draws import blocks, draw_block
from tiebeam.errors import InputError, RangeError, ShapeError

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn]


def drawn(vocab, width, std=0.02, seed=0, ordinal=0):
    """The table as core alone draws it."""
    parts = [draw_block(seed, "table", ordinal, b.index, b.rows, width, std) for b in blocks(vocab)]
    return torch.from_numpy(np.concatenate(parts))


def written(tensor, vocab_axis=0, *, seed=0, ordinal=0, std=0.02, **options):
    write_table(tensor, vocab_axis=vocab_axis, seed=seed, ordinal=ordinal, std=std, **options)
    return tensor


class Allocations(TorchDispatchMode):
    """The largest tensor that an operation made (views of what existed do not count)."""

    largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        old = {a.untyped_storage().data_ptr() for a in args if isinstance(a, torch.Tensor)}
        for made in out if isinstance(out, tuple | list) else (out,):
            if isinstance(made, torch.Tensor) and made.untyped_storage().data_ptr() not in old:
                self.largest = max(self.largest, made.numel())
        return out


# Writing ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("threads", [1, 3])
def test_a_table_holds_the_draws_rounded_once_to_its_dtype(dtype, threads):
    torch.set_num_threads(threads)
    assert torch.equal(written(torch.empty(1000, 24, dtype=dtype)), drawn(1000, 24).to(dtype))


@pytest.mark.parametrize("threads", [1, 3])
def test_a_table_that_lies_the_other_way_round_holds_the_same_rows(threads):
    torch.set_num_threads(threads)
    assert torch.equal(written(torch.empty(24, 1000), 1).T, drawn(1000, 24))
    assert torch.equal(written(torch.empty(24, 1000).T, 0), drawn(1000, 24))


def test_a_view_with_gaps_is_written_and_the_gaps_are_left_alone():
    whole = torch.full((300, 40), 7.0)
    written(whole[50:250:2, 1:33:2])
    assert torch.equal(whole[50:250:2, 1:33:2], drawn(100, 16))
    whole[50:250:2, 1:33:2] = 7.0
    assert (whole == 7.0).all()


def test_a_row_wider_than_one_copy_is_written():
    assert torch.equal(written(torch.empty(3, 40_000)), drawn(3, 40_000))


@pytest.mark.parametrize("vocab", [0, 1, 63, 64, 65, 130])
def test_every_number_of_rows_is_written(vocab):
    table = written(torch.full((vocab, 5), math.nan))
    assert table.shape == (vocab, 5)
    assert vocab == 0 or torch.equal(table, drawn(vocab, 5))


def test_a_padded_vocabulary_keeps_its_rows():
    assert torch.equal(written(torch.empty(200, 8))[:150], written(torch.empty(150, 8)))


def test_seed_and_ordinal_choose_the_draws():
    tables = [written(torch.empty(70, 4), seed=seed, ordinal=n) for seed in (0, 2**80) for n in (0, 1)]
    assert torch.equal(tables[3], drawn(70, 4, seed=2**80, ordinal=1))
    assert len({tuple(table.flatten().tolist()) for table in tables}) == 4


def test_padding_rows_are_zero_and_the_other_rows_as_without_them():
    table = written(torch.empty(200, 8), zero_rows=[199, 0, 64])
    expected = drawn(200, 8)
    expected[[0, 64, 199]] = 0
    assert torch.equal(table, expected)


def test_writing_twice_equals_writing_once():
    table = written(torch.empty(100, 8))
    once = table.clone()
    assert torch.equal(written(table), once)


def test_a_parameter_is_written_under_grad_mode_and_autograd_knows():
    table = nn.Parameter(torch.ones(100, 8))
    squared = (table**2).sum()
    written(table)
    assert table.requires_grad
    assert table.is_leaf
    assert table.grad_fn is None
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        squared.backward()


@pytest.mark.parametrize("threads", [1, 3])
def test_an_inference_tensor_is_written_outside_inference_mode(threads):
    torch.set_num_threads(threads)
    with torch.inference_mode():
        table = torch.empty(300, 8)
    assert torch.equal(written(table), drawn(300, 8))


@pytest.mark.parametrize("threads", [1, 3])
def test_random_states_are_left_alone(threads):
    torch.set_num_threads(threads)
    before, legacy = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    written(torch.empty(300, 8))
    assert torch.equal(torch.get_rng_state(), before)
    assert np.array_equal(np.random.get_state()[1], legacy)  # noqa: NPY002


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_way_of_accelerators_gives_the_same_table(dtype, threads):
    torch.set_num_threads(threads)
    table = torch.empty(24, 4000, dtype=dtype)
    part = weights.part_of(table, 1)
    options = {"kind": "table", "ordinal": 0, "width": 24, "std": 0.02}
    weights._write_elsewhere(
        part,
        list(weights._pieces(part.rows)),
        lambda piece, buffer: torch.from_numpy(
            draw_block(0, block=piece.block, rows=piece.last, **options, out=buffer[: piece.last])
        ),
    )
    assert torch.equal(table.T, drawn(4000, 24).to(dtype))


def test_writing_needs_one_block_of_memory():
    table = torch.empty(5000, 64, dtype=torch.bfloat16)
    tracemalloc.start()
    try:
        with Allocations() as seen:
            written(table)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert seen.largest <= 64 * 64
    assert 64 * 64 * 4 < peak < table.nbytes / 2


@given(vocab=st.integers(1, 400), data=st.data())
def test_pieces_put_every_held_row_where_it_belongs(vocab, data):
    """Rows as any shard may hold them: some, in runs, in any order of runs."""
    cuts = sorted(data.draw(st.sets(st.integers(0, vocab), min_size=2, max_size=8)))
    runs = [range(a, b) for a, b in zip(cuts[::2], cuts[1::2], strict=False)]
    rows = np.array([row for run in data.draw(st.permutations(runs)) for row in run], dtype=np.int64)
    put = np.full(len(rows), -1)
    for piece in weights._pieces(rows):
        assert 0 <= piece.first < piece.last <= 64
        put[piece.at : piece.at + piece.last - piece.first] = 64 * piece.block + np.arange(piece.first, piece.last)
    assert np.array_equal(put, rows)


def fake(shape):
    with FakeTensorMode():
        return torch.empty(shape)


BAD = [
    (torch.zeros(4), {}, ShapeError, "matrix"),
    (torch.zeros(4, 4, 4), {}, ShapeError, "matrix"),
    (torch.zeros(1, 4).expand(6, 4), {}, ShapeError, "expanded"),
    (torch.zeros(6, 4), {"vocab_axis": 2}, RangeError, "axis"),
    (torch.zeros(6, 4), {"vocab_axis": -1}, RangeError, "axis"),
    (torch.zeros(6, 4), {"seed": -1}, RangeError, "seed"),
    (torch.zeros(6, 4), {"ordinal": -1}, RangeError, "ordinal"),
    (torch.zeros(6, 4), {"std": 0.0}, RangeError, "std"),
    (torch.zeros(6, 4), {"std": math.nan}, RangeError, "std"),
    (torch.zeros(6, 4), {"zero_rows": [6]}, RangeError, "zero row"),
    (torch.zeros(6, 4), {"zero_rows": [-1]}, RangeError, "zero row"),
    (torch.zeros(6, 4, dtype=torch.int64), {}, InputError, "cannot be written"),
    (torch.zeros(6, 4, dtype=torch.complex64), {}, InputError, "cannot be written"),
    (torch.zeros(6, 4, device="meta"), {}, InputError, "cannot be written"),
    (torch.zeros(6, 4).to_sparse(), {}, InputError, "cannot be written"),
    (fake((6, 4)), {}, InputError, "cannot be written"),
]


@pytest.mark.parametrize(("tensor", "options", "error", "named"), BAD)
def test_what_cannot_be_written_is_refused_before_anything_is(tensor, options, error, named):
    with pytest.raises(error, match=named) as caught:
        write_table(tensor, **{"vocab_axis": 0, "seed": 0, "ordinal": 0, "std": 1.0, **options})
    assert caught.value.got
    if type(tensor) is torch.Tensor and tensor.device.type == "cpu" and tensor.layout is torch.strided:
        assert not tensor.any()


def test_zeros_are_written_unseen_by_autograd():
    bias = nn.Parameter(torch.ones(5, dtype=torch.bfloat16))
    zero_(bias)
    assert bias.tolist() == [0.0] * 5
    assert bias.grad_fn is None
    with torch.inference_mode():
        frozen = torch.ones(3)
    zero_(frozen)
    assert frozen.tolist() == [0.0] * 3
    zero_(torch.empty(3, device="meta"))


# Statistics -----------------------------------------------------------------------------------------------


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


# Distance -------------------------------------------------------------------------------------------------


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


# Shards ---------------------------------------------------------------------------------------------------


def _on_each_process(rank: int, world: int, meeting: str) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)
    try:
        mesh = init_device_mesh("cpu", (2, 2))
        layouts = [
            (Shard(0), Shard(0)),
            (Shard(0), Shard(1)),
            (Shard(1), Replicate()),
            (Replicate(), Replicate()),
        ]
        for axis, places, dtype in itertools.product((0, 1), layouts, (torch.float32, torch.bfloat16)):
            expected = drawn(333, 10).to(dtype)
            expected[70] = 0
            want = expected if axis == 0 else expected.T.contiguous()
            table = nn.Parameter(distribute_tensor(torch.ones_like(want), mesh, places))
            written(table, axis, zero_rows=[70])
            assert torch.equal(table.full_tensor(), want), (axis, places)
            whole, found = table_statistics(want, axis), table_statistics(table, axis)
            assert found.std == pytest.approx(whole.std, rel=1e-5)
            assert found.spread == pytest.approx(whole.spread, rel=1e-4)
            assert (found.zero_rows, found.constant) == ((70,), False)
            other = distribute_tensor(2 * want, mesh, places)
            assert distance(table, other, vocab_axis_a=axis, vocab_axis_b=axis).relative == pytest.approx(
                distance(want, 2 * want, vocab_axis_a=axis, vocab_axis_b=axis).relative
            )
            assert distance(table, table, vocab_axis_a=axis, vocab_axis_b=axis).equal
            assert distance(table, want, vocab_axis_a=axis, vocab_axis_b=axis) is None
            zero_(table)
            assert table_statistics(table, axis).constant
        with pytest.raises(InputError, match="cannot be written"):
            written(DTensor.from_local(torch.ones(6, 4), mesh, (Partial(), Replicate()), run_check=False))
    finally:
        dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.skipif(not dist.is_available() or os.name == "nt", reason="needs gloo")
def test_shards_together_hold_what_one_process_would_have_written(tmp_path: Path):
    torch.multiprocessing.spawn(_on_each_process, args=(4, str(tmp_path / "meeting")), nprocs=4)
