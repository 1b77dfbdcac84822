"""The only place that writes or measures a table: piece by piece, never through a second copy of it.

A table may lie in memory either way round, in any float dtype, on any device, or in shards over many
processes; each process writes and measures the rows and columns that it holds, of the same draws.
"""

import math
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice, pairwise

import numpy as np
import torch
from torch import Tensor

from tiebeam.backends.torch.parts import (
    Part,
    Rows,
    combined,
    gathered,
    lie_alike,
    part_of,
    readable,
    shape_of,
    sharded,
    unrecorded,
)
from tiebeam.core.initialising.draws import ROWS_PER_BLOCK, Float32, Kind, draw_block
from tiebeam.core.statistics import Distance as Distance
from tiebeam.core.statistics import TableStatistics as TableStatistics
from tiebeam.errors import InputError, RangeError, ShapeError

ZERO_ROWS_LISTED = 8
SERIAL = 1 << 14
"""Elements of one copy: below the size from which torch would start threads of its own in ours."""
CHUNK_ON_HOST, CHUNK_ELSEWHERE = 1 << 20, 1 << 25
"""Elements read at a time: what a cache holds, and what keeps an accelerator busy."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """Rows `first` to `last` of one block, which go to rows `at` and on of what this process holds."""

    block: int
    first: int
    last: int
    at: int


def write_table(
    tensor: Tensor,
    *,
    vocab_axis: int,
    seed: int,
    ordinal: int,
    std: float,
    zero_rows: Collection[int] = (),
    kind: Kind = "table",
) -> None:
    """Overwrite a table with the draws of `core.draws`, on as many threads as torch may use.

    Writing twice equals writing once. torch's random state is untouched, nothing is recorded for autograd,
    and everything is checked before the first row is written. Of a DTensor each process writes its shard
    without a word to the others; together they hold what one process would have written.

    Args:
        tensor: `(vocab, width)` or `(width, vocab)`, any float dtype, device and strides; written in place.
        vocab_axis: Which axis is the vocabulary, 0 or 1.
        seed: Any integer of 0 or above.
        ordinal: Which table, in order of first use.
        std: Std of the entries, above 0. Unit: 1.
        zero_rows: Rows that are zero instead (padding).
        kind: What the draws are keyed as.

    Raises:
        RangeError: `seed`, `ordinal`, `std`, `vocab_axis` or a zero row lies outside its bounds.
        ShapeError: The tensor is no matrix, or several of its entries share memory.
        InputError: The tensor holds no floats of its own (meta, fake, integer, quantised, partial sums).

    Assumes: nobody else reads or writes the tensor meanwhile.
    Source: `core.draws`.

    Example:
        >>> table = torch.empty(100, 8, dtype=torch.bfloat16)
        >>> write_table(table, vocab_axis=0, seed=0, ordinal=0, std=0.5, zero_rows=[3])
        >>> table_statistics(table, vocab_axis=0).zero_rows
        (3,)
    """
    vocab, width = shape_of(tensor, vocab_axis)
    check_writable(tensor)
    draw_block(seed, kind, ordinal, 0, 0, width, std)  # draws nothing, checks everything
    zero = frozenset(zero_rows)
    if outside := sorted(row for row in zero if not 0 <= row < vocab):
        raise RangeError("a zero row is not in the table", got=repr(outside), expected=f"0 to {vocab - 1}")
    part = part_of(tensor, vocab_axis)

    def draw(piece: _Piece, buffer: Float32) -> Tensor:
        drawn = draw_block(seed, kind, ordinal, piece.block, piece.last, width, std, out=buffer[: piece.last])
        start = piece.block * ROWS_PER_BLOCK
        for row in zero.intersection(range(start, start + piece.last)) if zero else ():
            drawn[row - start] = 0
        return torch.from_numpy(drawn[piece.first :, part.columns])

    write = _write_on_host if part.local.device.type == "cpu" else _write_elsewhere
    write(part, list(_pieces(part.rows)), draw)


def zero_(tensor: Tensor) -> None:
    """Fill a tensor with zeros, unseen by autograd.

    Args:
        tensor: Any shape, dtype and device; written in place (a meta tensor has nothing to write).

    Source: definition.

    Example:
        >>> bias = torch.nn.Parameter(torch.ones(3))
        >>> zero_(bias)
        >>> bias.tolist()
        [0.0, 0.0, 0.0]
    """
    with unrecorded(tensor):
        tensor.zero_()


def table_statistics(tensor: Tensor, vocab_axis: int) -> TableStatistics:
    """Measure a table through one pass over its row norms.

    Norms are accumulated in float32 (float64 for a float64 table); rows whose norm could have under- or
    overflowed there are measured again in float64. Half-precision tables are cast a chunk at a time. Of a
    DTensor each process measures its shard, and all of them must take part.

    Args:
        tensor: `(vocab, width)` or `(width, vocab)`, any dtype, device and strides; only read.
        vocab_axis: Which axis is the vocabulary, 0 or 1.

    Returns:
        The figures; all None for a table of integers, without entries, on meta, or of a tensor subclass
        that keeps its values elsewhere.

    Raises:
        RangeError: `vocab_axis` is neither 0 nor 1.
        ShapeError: The tensor is no matrix.

    Assumes: nobody writes the tensor meanwhile.
    Source: `std**2 = sum of squared norms / entries`; the norm of a row of `width` independent normal
    entries varies by `1/sqrt(2 * width)` of itself (chi distribution).

    Example:
        >>> table_statistics(torch.full((4, 9), -0.5), vocab_axis=0)
        TableStatistics(std=0.5, finite=True, spread=0.0, zero_rows=(), constant=True, zero_count=0)
    """
    vocab, width = shape_of(tensor, vocab_axis)
    if not tensor.is_floating_point() or not readable(tensor) or vocab * width == 0:
        return TableStatistics()
    part = part_of(tensor, vocab_axis)
    norms = _norms(tensor, part)
    if not bool(torch.isfinite(norms).all()):
        return TableStatistics(finite=False, constant=False)
    zero = (norms == 0).nonzero().flatten()
    kept = norms[norms > 0] if len(zero) else norms
    spread = None
    if len(kept) >= 2:
        spread = float(kept.std(correction=0) / kept.mean()) * math.sqrt(2 * width)
    return TableStatistics(
        std=float(torch.linalg.vector_norm(norms)) / math.sqrt(vocab * width),
        finite=True,
        spread=spread,
        zero_rows=tuple(zero[:ZERO_ROWS_LISTED].tolist()),
        # Only equal norms (but for their rounding) make it worth a look at the entries.
        constant=bool(norms.max() - norms.min() <= 1e-5 * norms.max()) and _constant(tensor, part),
        zero_count=len(zero),
    )


def zero_rows(tensor: Tensor, vocab_axis: int) -> tuple[int, ...]:
    """Every row that is all zero, by one pass; empty where values cannot be read.

    Example:
        >>> zero_rows(torch.tensor([[0.0, 0.0], [1.0, 0.0]]), 0)
        (0,)
    """
    shape_of(tensor, vocab_axis)
    if not tensor.is_floating_point() or not readable(tensor):
        return ()
    norms = _norms(tensor, part_of(tensor, vocab_axis))
    return tuple((norms == 0).nonzero().flatten().tolist())


def distance(a: Tensor, b: Tensor, *, vocab_axis_a: int = 0, vocab_axis_b: int = 0) -> Distance | None:
    """Relative Frobenius distance of two tables, over the rows that both have, a chunk at a time.

    Args:
        a: `(vocab, width)` or `(width, vocab)`, any dtype, device and strides; only read.
        b: Likewise, of the same width; dtype, device, layout and vocab may differ.
        vocab_axis_a: Which axis of `a` is the vocabulary.
        vocab_axis_b: Which axis of `b` is the vocabulary.

    Returns:
        The distance, or None where the values of one cannot be read, or where shards do not lie alike.

    Raises:
        RangeError: A vocabulary axis is neither 0 nor 1.
        ShapeError: One is no matrix, or the widths differ.

    Assumes: nobody writes either meanwhile; all processes take part where shards are compared.
    Source: definition.

    Example:
        >>> table = torch.randn(300, 16)
        >>> distance(table, table.T.bfloat16(), vocab_axis_b=1).equal
        True
        >>> distance(table, 1.5 * table).equal
        False
    """
    (_, width), (_, width_b) = shape_of(a, vocab_axis_a), shape_of(b, vocab_axis_b)
    if width != width_b:
        raise ShapeError("tables of unequal width have no distance", got=f"{width} and {width_b}")
    if not (readable(a) and readable(b)) or not lie_alike(a, b, vocab_axis_a, vocab_axis_b):
        return None
    x, y = part_of(a, vocab_axis_a).local, part_of(b, vocab_axis_b).local
    rows = min(len(x), len(y))
    totals = torch.zeros(5, dtype=torch.float64)  # squares of a - b, a, b; mismatches after each cast
    with unrecorded(a):
        for i, j in _chunks(rows, width, x.device):
            totals += _compare(x[i:j], y[i:j].to(x.device), totals)
    apart, size_a, size_b, cast_a, cast_b = combined(a, totals, "sum").tolist()
    size = (size_a + size_b) / 2
    relative = math.sqrt(apart / size) if size else 0.0
    compared = min(a.shape[vocab_axis_a], b.shape[vocab_axis_b])
    known = math.isfinite(relative) and compared * width > 0
    # A narrow dtype may round small numbers to zero: that is no copy of a table of zeros.
    equal = (cast_a == 0 or cast_b == 0) and not (known and relative >= 0.5)
    return Distance(relative if known else None, equal, compared)


def _compare(x: Tensor, y: Tensor, so_far: Tensor) -> Tensor:
    found = torch.zeros_like(so_far)
    wide = torch.float64 if torch.float64 in (x.dtype, y.dtype) else torch.float32
    comparable = x.dtype == y.dtype or (x.is_floating_point() and y.is_floating_point())
    # One mismatch is enough: the chunks after it need no look.
    found[3] = so_far[3] == 0 and not (comparable and _same_bits(x.to(y.dtype), y))
    found[4] = so_far[4] == 0 and not (comparable and _same_bits(y.to(x.dtype), x))
    p, q = x.to(wide), y.to(wide)
    found[:3] = torch.tensor([_square(p - q), _square(p), _square(q)], dtype=torch.float64)
    return found


def _same_bits(x: Tensor, y: Tensor) -> bool:
    bits = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}.get(x.element_size(), x.dtype)
    return torch.equal(x.contiguous().view(bits), y.contiguous().view(bits))


def _square(x: Tensor) -> float:
    norm = float(torch.linalg.vector_norm(x))
    if not 1e-15 < norm < 1e15:  # float32 may have under- or overflowed
        norm = float(torch.linalg.vector_norm(x.cpu().double()))
    return norm * norm


def _norms(tensor: Tensor, part: Part) -> Tensor:
    """Row norms of the whole table, float64 on the host."""
    exact = tensor.dtype == torch.float64
    norms = gathered(tensor, part, _row_norms(part.local, torch.float64 if exact else torch.float32))
    doubtful = ~((norms > 1e-15) & (norms < 1e15))
    if exact or not bool(doubtful.any()):
        return norms
    mine = doubtful[torch.from_numpy(part.rows)].nonzero().flatten()
    again = torch.zeros(len(part.rows), dtype=torch.float64)
    for i, j in _chunks(len(mine), part.width, part.local.device):
        rows = part.local.index_select(0, mine[i:j].to(part.local.device))
        again[mine[i:j]] = torch.linalg.vector_norm(rows.cpu().double(), dim=1)
    return torch.where(doubtful, gathered(tensor, part, again), norms)


def _row_norms(local: Tensor, dtype: torch.dtype) -> Tensor:
    with unrecorded(local):
        if local.device.type == "cpu" and local.stride(0) < local.stride(1):
            # Rows lie across memory: a column at a time is an eighth of the cost.
            squares = torch.zeros(len(local), dtype=dtype)
            for column in local.unbind(1):
                entries = column.to(dtype)
                squares.addcmul_(entries, entries)
            return squares.sqrt()
        norms = torch.empty(len(local), dtype=dtype, device=local.device)
        for i, j in _chunks(len(local), local.shape[1], local.device):
            norms[i:j] = torch.linalg.vector_norm(local[i:j].to(dtype), dim=1)
        return norms


def _constant(tensor: Tensor, part: Part) -> bool:
    wide = torch.float64 if tensor.dtype == torch.float64 else torch.float32
    lowest = torch.full((1,), math.inf, dtype=torch.float64)
    highest = -lowest
    for i, j in _chunks(len(part.local), part.width, part.local.device):
        low, high = torch.aminmax(part.local[i:j].to(wide))
        lowest, highest = lowest.minimum(low.cpu().double()), highest.maximum(high.cpu().double())
        if lowest < highest:
            break
    return bool(combined(tensor, lowest, "min") == combined(tensor, highest, "max"))


def _chunks(rows: int, width: int, device: torch.device) -> Iterator[tuple[int, int]]:
    elements = CHUNK_ON_HOST if device.type == "cpu" else CHUNK_ELSEWHERE
    step = max(1, elements // max(1, width))
    return ((start, min(start + step, rows)) for start in range(0, rows, step))


def _write_on_host(part: Part, pieces: list[_Piece], draw: Callable[[_Piece, Float32], Tensor]) -> None:
    """Every thread draws into a buffer of its own and rounds from there into the table."""
    todo = iter(pieces)

    def work() -> None:
        buffer = np.empty((ROWS_PER_BLOCK, part.width), dtype=np.float32)
        step = max(1, SERIAL // max(1, part.width))
        with unrecorded(part.local):  # grad mode belongs to the thread
            for piece in todo:
                drawn = draw(piece, buffer)
                for i in range(0, len(drawn), step):
                    some = drawn[i : i + step]
                    part.local[piece.at + i : piece.at + i + len(some)].copy_(some)

    workers = min(torch.get_num_threads(), len(pieces))
    if workers <= 1:
        return work()
    with ThreadPoolExecutor(workers) as pool:
        for done in [pool.submit(work) for _ in range(workers)]:
            done.result()
    return None


def _write_elsewhere(part: Part, pieces: list[_Piece], draw: Callable[[_Piece, Float32], Tensor]) -> None:
    """Threads draw a few blocks ahead; the caller's thread, whose stream is current, copies them over."""

    def drawn(piece: _Piece) -> Tensor:
        # Rounded on the host: half the bytes cross the bus, and devices need no float32.
        buffer = np.empty((ROWS_PER_BLOCK, part.width), dtype=np.float32)
        return draw(piece, buffer).to(part.local.dtype)

    workers = max(1, torch.get_num_threads())
    todo = iter(pieces)
    with ThreadPoolExecutor(workers) as pool, unrecorded(part.local):
        while window := list(islice(todo, 8 * workers)):
            for piece, rows in zip(window, pool.map(drawn, window), strict=True):
                part.local[piece.at : piece.at + len(rows)].copy_(rows)


def _pieces(rows: Rows) -> Iterator[_Piece]:
    """Runs of consecutive rows, cut where blocks begin."""
    begins = np.flatnonzero((np.diff(rows, prepend=-2) != 1) | (rows % ROWS_PER_BLOCK == 0)).tolist()
    for at, end in pairwise([*begins, len(rows)]):
        block, first = divmod(int(rows[at]), ROWS_PER_BLOCK)
        yield _Piece(block, first, first + end - at, at)


def check_writable(tensor: Tensor) -> None:
    """Raise InputError or ShapeError where `write_table` could not write."""
    if not tensor.is_floating_point() or not readable(tensor):
        raise InputError(
            "the table's values cannot be written",
            got=f"a {type(tensor).__name__} of {tensor.dtype} on {tensor.device}",
            expected="a float tensor that holds its own values",
            hint="draw before quantising, and give a meta model memory first: model.to_empty(device='cpu')",
        )
    strides = () if sharded(tensor) else tensor.stride()
    if any(step == 0 and size > 1 for step, size in zip(strides, tensor.shape, strict=False)):
        raise ShapeError(
            "the table is an expanded view: several entries are one place in memory",
            got=f"shape {tuple(tensor.shape)}, strides {strides}",
            expected="a place for every entry",
            hint="clone() it first",
        )
