"""The only place that draws or measures a table of TensorFlow: where it lies, piece by piece."""

import math
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tiebeam.backends.tables import distance_of, doubtful, long_axes, statistics_of
from tiebeam.core.initialising.draws import ROWS_PER_BLOCK, blocks, draw_block
from tiebeam.core.statistics import Distance, TableStatistics
from tiebeam.errors import InputError

PIECE = 1 << 22  # elements that are widened or drawn at once


def readable(variable: Any) -> bool:
    """Whether there are floats to be read."""
    return bool(variable.dtype.is_floating)


def check_writable(variable: Any, name: str) -> None:
    """Raise InputError where a table cannot be drawn into a variable."""
    if not readable(variable):
        raise InputError(
            f"the table {name!r} cannot be drawn",
            got=f"a variable of {variable.dtype.name}",
            expected="a variable of floats",
            hint="draw before quantising",
        )


def _size(variable: Any, vocab_axis: int) -> tuple[int, int]:
    """Vocabulary and width."""
    shape = tuple(variable.shape.as_list())
    first, second = (shape[a] for a in long_axes(shape))
    return (first, second) if vocab_axis == 0 else (second, first)


def vocab_of(variable: Any, vocab_axis: int) -> int:
    """Number of rows."""
    return _size(variable, vocab_axis)[0]


def _spans(vocab: int, width: int) -> Iterator[tuple[int, int]]:
    """Whole blocks of rows, as many as fit a piece."""
    step = max(1, PIECE // max(1, width) // ROWS_PER_BLOCK) * ROWS_PER_BLOCK
    for start in range(0, vocab, step):
        yield start, min(start + step, vocab)


def _rows(variable: Any, vocab_axis: int, start: int, stop: int) -> Any:
    """Rows of a table, `(rows, width)`."""
    shape = tuple(variable.shape.as_list())
    index = _index(shape, vocab_axis, start, stop)
    vocab, width = _size(variable, vocab_axis)
    rows = min(stop, vocab) - start
    piece = variable.value()[index]
    flat = tf.reshape(piece, (rows, width) if vocab_axis == 0 else (width, rows))
    return flat if vocab_axis == 0 else tf.transpose(flat)


def _index(shape: tuple[int, ...], vocab_axis: int, start: int, stop: int) -> tuple[slice, ...]:
    along = long_axes(shape)[vocab_axis]
    return tuple(slice(start, stop) if i == along else slice(None) for i in range(len(shape)))


def draw(
    variable: Any, *, vocab_axis: int, seed: int, ordinal: int, std: float, zero_rows: Collection[int] = ()
) -> None:
    """Write the draws of `core.draws` into a variable.

    Args:
        variable: A TensorFlow variable, `(vocab, width)` or `(width, vocab)`, axes of size one aside; floats.
        vocab_axis: Which axis is the vocabulary, 0 or 1.
        seed, ordinal: What the draws are keyed by.
        std: Std of the entries, above 0. Unit: 1.
        zero_rows: Rows that are zero instead (padding).

    Source: `core.draws`.

    Example:
        >>> table = tf.Variable(tf.zeros((100, 8), tf.bfloat16))
        >>> draw(table, vocab_axis=0, seed=0, ordinal=0, std=0.5, zero_rows=[3])
        >>> table_statistics(table, vocab_axis=0).zero_rows
        (3,)
    """
    shape, dtype = tuple(variable.shape.as_list()), variable.dtype.as_numpy_dtype
    vocab, width = _size(variable, vocab_axis)
    drawn = blocks(vocab)
    zero = frozenset(zero_rows)
    for start, stop in _spans(vocab, width):
        piece = np.empty((stop - start, width), np.float32)
        for at in range(start, stop, ROWS_PER_BLOCK):
            block = next(drawn)
            draw_block(seed, "table", ordinal, block.index, block.rows, width, std,
                       out=piece[at - start : at - start + block.rows])  # fmt: skip
        piece[[row - start for row in zero if start <= row < stop]] = 0
        index = _index(shape, vocab_axis, start, stop)
        rounded = (piece if vocab_axis == 0 else piece.T).astype(dtype)
        target = [len(range(n)[s]) for n, s in zip(shape, index, strict=True)]
        variable[index].assign(tf.constant(rounded.reshape(target), variable.dtype))


def zero_rows(variable: Any, vocab_axis: int) -> tuple[int, ...]:
    """Every row that is all zero, negative zeros too; none where there are no floats.

    Example:
        >>> zero_rows(tf.Variable(tf.eye(4, 2)), vocab_axis=0)
        (2, 3)
    """
    if not readable(variable) or 0 in variable.shape.as_list():
        return ()
    spans = _spans(*_size(variable, vocab_axis))
    parts = [tf.reduce_any(_rows(variable, vocab_axis, *span) != 0, axis=1).numpy() for span in spans]
    return tuple(np.flatnonzero(~np.concatenate(parts)).tolist())


def _wide(*tensors: Any) -> list[Any]:
    """In the dtype to add up in."""
    wide = tf.float64 if any(t.dtype == tf.float64 for t in tensors) else tf.float32
    return [tf.cast(t, wide) for t in tensors]


def table_statistics(variable: Any, vocab_axis: int) -> TableStatistics:
    """Measure a table through one pass over its row norms.

    Args:
        variable: A TensorFlow variable, `(vocab, width)` or `(width, vocab)`, axes of size one aside.
        vocab_axis: Which axis is the vocabulary.

    Returns:
        The figures; all None for a table of integers or without entries.

    Source: `std**2 = sum of squared norms / entries`.

    Example:
        >>> table_statistics(tf.Variable(tf.fill((4, 9), -0.5)), vocab_axis=0)
        TableStatistics(std=0.5, finite=True, spread=0.0, zero_rows=(), constant=True, zero_count=0)
    """
    if not readable(variable) or 0 in variable.shape.as_list():
        return TableStatistics()
    vocab, width = _size(variable, vocab_axis)
    norms = np.empty(vocab)
    for start, stop in _spans(vocab, width):
        (rows,) = _wide(_rows(variable, vocab_axis, start, stop))
        norms[start:stop] = _norms(rows)
    return statistics_of(norms, width, lambda: _constant(variable, vocab_axis, vocab, width))


def _constant(variable: Any, vocab_axis: int, vocab: int, width: int) -> bool:
    """Whether all entries are one number; most tables tell by their first row."""
    lowest, highest = math.inf, -math.inf
    for start, stop in [(0, 1), *_spans(vocab, width)]:
        rows = _rows(variable, vocab_axis, start, stop)
        lowest, highest = min(lowest, float(tf.reduce_min(rows))), max(highest, float(tf.reduce_max(rows)))
        if lowest != highest:
            return False
    return True


def _norms(rows: Any) -> np.ndarray[Any, Any]:
    norms: np.ndarray[Any, Any] = tf.math.reduce_euclidean_norm(rows, axis=1).numpy().astype(np.float64)
    again = doubtful(norms)
    if again.any():
        exact = tf.gather(rows, np.flatnonzero(again)).numpy().astype(np.float64)
        norms[again] = np.sqrt((exact**2).sum(1))
    return norms


def distance(a: Any, b: Any, *, vocab_axis_a: int = 0, vocab_axis_b: int = 0) -> Distance | None:
    """Relative Frobenius distance of two tables, over the rows that both have.

    Args:
        a, b: TensorFlow variables, `(vocab, width)` or `(width, vocab)`, of one width; dtype and vocab may differ.
        vocab_axis_a, vocab_axis_b: Which axis is the vocabulary.

    Returns:
        The distance, or None where one holds no floats.

    Source: definition.

    Example:
        >>> table = tf.Variable(tf.random.stateless_normal((300, 16), [0, 1]))
        >>> distance(table, tf.Variable(tf.cast(tf.transpose(table), tf.bfloat16)), vocab_axis_b=1).equal
        True
        >>> distance(table, tf.Variable(1.5 * table)).equal
        False
    """
    if not (readable(a) and readable(b)):
        return None
    (vocab_a, width), (vocab_b, _) = _size(a, vocab_axis_a), _size(b, vocab_axis_b)
    rows = min(vocab_a, vocab_b)
    sums, casts = np.zeros(3), np.array([True, True])
    for start, stop in _spans(rows, width):
        x, y = _rows(a, vocab_axis_a, start, stop), _rows(b, vocab_axis_b, start, stop)
        p, q = _wide(x, y)
        sums += [float(tf.reduce_sum(tf.square(t))) for t in (p - q, p, q)]
        casts &= [_same(tf.cast(x, y.dtype), y), _same(tf.cast(y, x.dtype), x)]
    return distance_of(*sums.tolist(), cast=bool(casts.any()), rows=rows)


def _same(a: Any, b: Any) -> bool:
    """Whether two tensors of one dtype are equal bit for bit."""
    integers = {1: tf.uint8, 2: tf.uint16, 4: tf.uint32, 8: tf.uint64}[a.dtype.size]
    return bool(tf.reduce_all(tf.bitcast(a, integers) == tf.bitcast(b, integers)))
