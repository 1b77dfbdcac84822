"""Numbers about logits, tables and gradients, computed in the graph; what comes out is a number for each row."""

import math
from typing import Any

import numpy as np
import tensorflow as tf

from tiebeam.backends.tables import long_axes


def rows_first(tensor: Any, vocab_axis: int) -> Any:
    """A table, or its gradient, as (vocab, width)."""
    shape = tuple(tensor.shape.as_list())
    flat = tf.reshape(tensor, [shape[a] for a in long_axes(shape)]) if len(shape) != 2 else tensor
    return flat if vocab_axis == 0 else tf.transpose(flat)


def wide(tensor: Any) -> Any:
    """In the dtype to add up in."""
    return tensor if tensor.dtype == tf.float64 else tf.cast(tensor, tf.float32)


def row_sizes(rows: Any) -> dict[str, Any]:
    """Of each row the sum of squares, and whether anything is in it: squares of tiny entries vanish.

    Args:
        rows: (vocab, width).
    """
    exact = wide(rows)
    norms = _norms(exact)
    ends = (tf.reduce_max(exact, axis=1), tf.reduce_min(exact, axis=1))
    reached = (norms != 0) | (ends[0] != 0) | (ends[1] != 0)
    return {"squares": norms * norms, "reached": reached}


def row_squares(rows: Any) -> dict[str, Any]:
    """Of each row the sum of squares alone."""
    norms = _norms(wide(rows))
    return {"squares": norms * norms}


def _norms(exact: Any) -> Any:
    """Reductions that make nothing of the rows' size: a product or a comparison would cost several times as much."""
    return tf.math.reduce_euclidean_norm(exact, axis=1)


def row_products(a: Any, b: Any) -> Any:
    """Inner product of each row of two matrices of one shape."""
    return tf.reduce_sum(wide(a) * wide(b), axis=1)


def total(rows: Any) -> float:
    """Sum over rows, in float64."""
    return float(np.asarray(rows, np.float64).sum())


def norm(sizes: Any) -> float:
    """Frobenius norm, of `row_sizes`."""
    return math.sqrt(total(sizes["squares"]))


def gram(rows: Any) -> Any:
    """`table.T @ table` of a (vocab, width) table."""
    exact = wide(rows)
    return tf.matmul(exact, exact, transpose_a=True)


def own_token(logits: Any, own: Any, rows: Any) -> dict[str, Any]:
    """Logit and twice the rank of a token in each row, 1 being first; equal logits share their mean rank.

    Args:
        logits: (..., vocab).
        own: (n,), the tokens.
        rows: (n,), the rows of the flat logits that they belong to.

    Example:
        >>> own_token(tf.constant([[0.0, 2.0, 1.0]]), np.array([2]), np.array([0]))["ranks"].numpy().tolist()
        [4]
    """
    kept = tf.gather(tf.reshape(logits, (-1, logits.shape[-1])), rows)
    mine = tf.gather(kept, own, axis=1, batch_dims=1)
    above, upto = (
        tf.reduce_sum(tf.cast(compare(kept, mine[:, None]), tf.int64), axis=1)
        for compare in (tf.greater, tf.greater_equal)
    )
    return {"logits": wide(mine), "ranks": above + upto + 1}
