"""Numbers about logits, tables and gradients, computed where they lie; what comes out is a number for each row.

Rows are added up on the host in float64.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import tree_util

from tiebeam.backends.jax.evaluate import wide_enough
from tiebeam.backends.jax.kinds.tree import dotted, is_array
from tiebeam.backends.jax.weights import flat_shape

Floats = npt.NDArray[np.float64]


def rows_first(array: Any, vocab_axis: int) -> Any:
    """A table, or its gradient, as (vocab, width)."""
    flat = jnp.reshape(array, flat_shape(tuple(array.shape)))
    return flat if vocab_axis == 0 else flat.T


def row_sizes(rows: Any) -> dict[str, Any]:
    """Of each row the sum of squares, and whether anything is in it: squares of tiny entries vanish.

    Args:
        rows: (vocab, width).
    """
    wide = rows.astype(wide_enough(rows.dtype))
    return {"squares": jnp.sum(wide * wide, axis=1), "reached": jnp.max(jnp.abs(rows), axis=1) != 0}


def row_products(a: Any, b: Any) -> Any:
    """Inner product of each row of two matrices of one shape."""
    wide = wide_enough(a.dtype)
    return jnp.sum(a.astype(wide) * b.astype(wide), axis=1)


def total(rows: Any) -> float:
    """Sum over rows."""
    return float(np.asarray(rows, np.float64).sum())


def norm(sizes: Any) -> float:
    """Frobenius norm, of `row_sizes`."""
    return math.sqrt(total(sizes["squares"]))


def gram(rows: Any) -> Any:
    """`table.T @ table` of a (vocab, width) table."""
    wide = rows.astype(wide_enough(rows.dtype))
    return jnp.matmul(wide.T, wide, precision=jax.lax.Precision.HIGHEST)


def own_token(logits: Any, own: Any) -> dict[str, Any]:
    """Logit and twice the rank of a token in each row, 1 being first; equal logits share their mean rank.

    Args:
        logits: (rows, vocab).
        own: (rows,), the tokens.

    Example:
        >>> own_token(jnp.array([[0.0, 2.0, 1.0]]), jnp.array([2]))["ranks"].tolist()
        [4]
    """
    mine = _picked(logits, own)
    above, upto = (jnp.sum(compare(logits, mine[:, None]), axis=1) for compare in (jnp.greater, jnp.greater_equal))
    return {"logits": mine.astype(wide_enough(logits.dtype)), "ranks": above + upto + 1}


def cross_entropy(logits: Any, targets: Any, ignored: int) -> Any:
    """Mean cross entropy. Unit: nats.

    Args:
        logits: (..., vocab); half precision is widened.
        targets: Integers, one for each row of the logits; `ignored` where there is none.
    """
    flat = jnp.reshape(logits, (-1, logits.shape[-1]))
    flat = flat.astype(wide_enough(flat.dtype))
    counted, right = targets != ignored, jnp.maximum(targets, 0)
    lost = jax.nn.logsumexp(flat, axis=1) - _picked(flat, right)
    return jnp.sum(jnp.where(counted, lost, 0)) / jnp.sum(counted)


def _picked(logits: Any, tokens: Any) -> Any:
    """One logit of each row; by comparison, which a vocabulary that is cut over devices allows too."""
    return jnp.sum(jnp.where(jnp.arange(logits.shape[1]) == tokens[:, None], logits, 0), axis=1)


def silent_rows(optimizer: Any, name: str, shape: tuple[int, ...], vocab_axis: int) -> int | None:
    """Rows that are zero in every state of the table, or None where there is none.

    Args:
        optimizer: An optax state, or what holds one as `opt_state`.
        name: Of the table: a state's path ends with it.
        shape: Of the table.
    """
    state = getattr(optimizer, "opt_state", optimizer)
    found, _ = tree_util.tree_flatten_with_path(state)
    mine = [a for path, a in found if is_array(a) and a.shape == shape and f".{dotted(path)}".endswith(f".{name}")]
    if not mine:
        return None
    heard = [np.asarray(row_sizes(rows_first(jnp.asarray(a), vocab_axis))["reached"]) for a in mine]
    return int((~np.logical_or.reduce(heard)).sum())
