"""The only place that draws or measures a table: on the device that holds it, shard by shard.

Arrays do not change: writing makes a new array of the same shape, dtype and sharding, and as free to move: JAX takes
one that was never placed to wherever its partners lie, and refuses to move one that was.
"""

import os
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tiebeam.backends.jax.evaluate import wide_enough
from tiebeam.backends.jax.kinds.tree import is_abstract
from tiebeam.backends.tables import distance_of, doubtful, long_axes, statistics_of
from tiebeam.core.initialising.draws import Block, Float32, blocks, draw_block
from tiebeam.core.statistics import Distance, TableStatistics
from tiebeam.errors import InputError

Array = Any  # a JAX or NumPy array


def flat_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    """The two long axes of a table that may be stored with axes of size one."""
    kept = list(shape)
    while len(kept) > 2:
        kept.remove(1)
    return kept[0], kept[1]


def readable(array: Array) -> bool:
    """Whether there are floats to be read."""
    if is_abstract(array) or not jnp.issubdtype(array.dtype, np.floating):
        return False
    return not (isinstance(array, jax.Array) and array.is_deleted())


def check_writable(array: Array, name: str) -> None:
    """Raise InputError where no table could be drawn in place of `array`."""
    if not readable(array):
        raise InputError(
            f"the table {name!r} cannot be drawn",
            got=f"a {type(array).__name__} of {array.dtype}",
            expected="an array of floats",
            hint="draw before quantising",
        )


def drawn(
    array: Array, *, vocab_axis: int, seed: int, ordinal: int, std: float, zero_rows: Collection[int] = ()
) -> Array:
    """The draws of `core.draws` in the shape, dtype and sharding of `array`.

    Every process makes the shards that it holds; rows that are not held are not drawn.

    Args:
        array: `(vocab, width)` or `(width, vocab)`, axes of size one aside; floats.
        vocab_axis: Which axis is the vocabulary, 0 or 1.
        seed, ordinal: What the draws are keyed by.
        std: Std of the entries, above 0. Unit: 1.
        zero_rows: Rows that are zero instead (padding).

    Returns:
        A JAX array, or a NumPy array where `array` is one.

    Source: `core.draws`.

    Example:
        >>> table = drawn(jnp.zeros((100, 8), jnp.bfloat16), vocab_axis=0, seed=0, ordinal=0, std=0.5, zero_rows=[3])
        >>> table_statistics(table, vocab_axis=0).zero_rows
        (3,)
    """
    shape, dtype = tuple(array.shape), np.dtype(array.dtype)
    long = long_axes(shape)
    width = shape[long[1 - vocab_axis]]

    def piece(index: Any) -> np.ndarray[Any, Any]:
        places = [range(n)[s] for n, s in zip(shape, index, strict=True)]
        rows, columns = (places[long[axis]] for axis in (vocab_axis, 1 - vocab_axis))
        table = _rows(rows, width, seed, ordinal, std, frozenset(zero_rows))
        part = table[:, columns.start : columns.stop]
        part = part if vocab_axis == 0 else part.T
        return part.astype(dtype).reshape([len(p) for p in places])

    if not isinstance(array, jax.Array):
        return piece(tuple(slice(None) for _ in shape))
    if _free(array):
        with jax.default_device(next(iter(array.devices()))):
            return jnp.asarray(piece(tuple(slice(None) for _ in shape)), dtype)
    return jax.make_array_from_callback(shape, array.sharding, piece, dtype=dtype)


def _free(array: jax.Array) -> bool:
    """Whether nobody placed an array on its device."""
    placed = getattr(array, "_committed", True)  # public under another name, in newer releases alone
    return not placed and len(array.devices()) == 1


def _rows(rows: range, width: int, seed: int, ordinal: int, std: float, zero: frozenset[int]) -> Float32:
    """Whole rows of the table, drawn block by block on as many threads as there are processors."""
    table = np.empty((len(rows), width), dtype=np.float32)

    def draw(block: Block) -> None:
        low, high = max(block.start, rows.start), min(block.stop, rows.stop)
        if low >= high:
            return
        found = draw_block(seed, "table", ordinal, block.index, block.rows, width, std)
        for row in zero.intersection(range(low, high)) if zero else ():
            found[row - block.start] = 0
        table[low - rows.start : high - rows.start] = found[low - block.start : high - block.start]

    with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool:
        list(pool.map(draw, blocks(rows.stop)))
    return table


def zeros(array: Array) -> Array:
    """Zeros in the shape, dtype and sharding of `array`.

    Example:
        >>> zeros(jnp.ones(3)).tolist()
        [0.0, 0.0, 0.0]
    """
    if not isinstance(array, jax.Array):
        return np.zeros_like(array)
    if _free(array):
        with jax.default_device(next(iter(array.devices()))):
            return jnp.zeros(array.shape, array.dtype)
    return jax.device_put(jnp.zeros(array.shape, array.dtype), array.sharding)


def zero_rows(array: Array, vocab_axis: int) -> tuple[int, ...]:
    """Every row that is all zero, negative zeros too; none where there are no values to read.

    Example:
        >>> zero_rows(jnp.eye(4, 2), vocab_axis=0)
        (2, 3)
    """
    if not readable(array) or 0 in array.shape:
        return ()
    return tuple(np.flatnonzero(~np.asarray(_row_nonzero(array, vocab_axis))).tolist())


@partial(jax.jit, static_argnums=1)
def _row_nonzero(array: Any, vocab_axis: int) -> Any:
    return jnp.any(_matrix(array, vocab_axis) != 0, axis=1)


def _matrix(array: Array, vocab_axis: int) -> Any:
    flat = jnp.reshape(array, flat_shape(tuple(array.shape)))
    return flat if vocab_axis == 0 else flat.T


def table_statistics(array: Array, vocab_axis: int) -> TableStatistics:
    """Measure a table through one pass over its row norms, where it lies.

    Args:
        array: `(vocab, width)` or `(width, vocab)`, axes of size one aside.
        vocab_axis: Which axis is the vocabulary.

    Returns:
        The figures; all None for a table of integers, without entries, or without values.

    Source: `std**2 = sum of squared norms / entries`.

    Example:
        >>> table_statistics(jnp.full((4, 9), -0.5), vocab_axis=0)
        TableStatistics(std=0.5, finite=True, spread=0.0, zero_rows=(), constant=True, zero_count=0)
    """
    if not readable(array) or 0 in array.shape:
        return TableStatistics()
    squares, lowest, highest = (np.asarray(x, np.float64) for x in _row_facts(array, vocab_axis))
    norms = np.sqrt(squares)
    again = doubtful(norms)
    if again.any():
        rows = np.asarray(_matrix(array, vocab_axis)[np.flatnonzero(again)]).astype(np.float64)
        norms[again] = np.sqrt((rows**2).sum(1))
    width = int(np.prod(array.shape)) // len(norms)
    return statistics_of(norms, width, lambda: bool(lowest.min() == highest.max()))


@partial(jax.jit, static_argnums=1)
def _row_facts(array: Any, vocab_axis: int) -> Any:
    """Square of the norm, smallest and largest entry of each row."""
    table = _matrix(array, vocab_axis)
    wide = table.astype(wide_enough(table.dtype))
    return jnp.sum(wide * wide, axis=1), jnp.min(wide, axis=1), jnp.max(wide, axis=1)


def distance(a: Array, b: Array, *, vocab_axis_a: int = 0, vocab_axis_b: int = 0) -> Distance | None:
    """Relative Frobenius distance of two tables, over the rows that both have.

    Args:
        a, b: `(vocab, width)` or `(width, vocab)`, of one width; dtype and vocab may differ.
        vocab_axis_a, vocab_axis_b: Which axis is the vocabulary.

    Returns:
        The distance, or None where the values of one cannot be read.

    Source: definition.

    Example:
        >>> table = jax.random.normal(jax.random.key(0), (300, 16))
        >>> distance(table, table.T.astype(jnp.bfloat16), vocab_axis_b=1).equal
        True
        >>> distance(table, 1.5 * table).equal
        False
    """
    if not (readable(a) and readable(b)):
        return None
    rows = min(flat_shape(tuple(a.shape))[vocab_axis_a], flat_shape(tuple(b.shape))[vocab_axis_b])
    sizes, casts = _compare(_together(a, b), b, vocab_axis_a, vocab_axis_b, rows)
    return distance_of(*map(float, sizes), cast=any(map(bool, casts)), rows=rows)


def _together(a: Array, b: Array) -> Array:
    """`a` on the devices of `b`."""
    if isinstance(a, jax.Array) and isinstance(b, jax.Array) and a.sharding.device_set != b.sharding.device_set:
        return jax.device_put(np.asarray(a), next(iter(b.sharding.device_set)))
    return a


@partial(jax.jit, static_argnums=(2, 3, 4))
def _compare(a: Any, b: Any, axis_a: int, axis_b: int, rows: int) -> Any:
    x, y = _matrix(a, axis_a)[:rows], _matrix(b, axis_b)[:rows]
    wide = jnp.promote_types(wide_enough(x.dtype), wide_enough(y.dtype))
    p, q = x.astype(wide), y.astype(wide)
    # Compiled casts may be folded away; through the bits they cannot.
    casts = [jnp.all(_bits(x.astype(y.dtype)) == _bits(y)), jnp.all(_bits(y.astype(x.dtype)) == _bits(x))]
    return [jnp.sum((p - q) ** 2), jnp.sum(p**2), jnp.sum(q**2)], casts


def _bits(x: Any) -> Any:
    widths = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32, 8: jnp.uint64}
    return jax.lax.bitcast_convert_type(x, widths[x.dtype.itemsize])
