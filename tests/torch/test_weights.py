"""Writing tables: real tensors in every layout, dtype and shard."""

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
from tests.torch.weights_kit import DTYPES, Allocations, drawn, fake, written
from torch import nn

from tiebeam.backends.torch import weights
from tiebeam.backends.torch.weights import distance, table_statistics, write_table, zero_
from tiebeam.core.initialising.draws import draw_block
from tiebeam.errors import InputError, RangeError, ShapeError


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
