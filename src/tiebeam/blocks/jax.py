"""Both roles as functions of a table: what the blocks of Flax and Equinox share."""

import math
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from tiebeam.blocks.readout_loss.jax import readout_loss
from tiebeam.blocks.settings import Settings, wrong_ids
from tiebeam.core.initialising.moments import target_std_readout


class Initializer(Protocol):
    """What JAX libraries call to make a weight."""

    def __call__(self, key: jax.Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> Any:
        """Return an array of that shape, or a box around one."""
        ...


def unit_logit_normal(readout_factor: float = 1.0, padding_idx: int | None = None) -> Initializer:
    """Return an initializer of tables: unit-variance logits of a hidden state of root mean square 1.

    The std is `1 / (|readout_factor| * sqrt(width))`, with the width of the shape that is asked for. It is what
    `TiedEmbedding` draws with; give it to `nn.with_partitioning` to keep the rule and add axis names.

    Args:
        readout_factor: Multiplies the logits, not 0.
        padding_idx: A row that starts at zero, or None.

    Returns:
        A function of a key, a shape (vocab, width) and a dtype.

    Raises:
        RangeError: The factor is 0 or no finite number.

    Source: `tiebeam.core.initialising.moments.target_std_readout`.

    Example:
        >>> table = unit_logit_normal()(jax.random.key(0), (1000, 64))
        >>> round(float(table.std()), 3)
        0.125
    """
    target_std_readout(readout_factor, 1.0, 1)  # refuse now what cannot be drawn

    def init(key: jax.Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> jax.Array:
        std = target_std_readout(readout_factor, 1.0, shape[-1])
        table = jax.random.normal(key, shape, dtype) * jnp.asarray(std, dtype)
        return table if padding_idx is None else table.at[padding_idx].set(0)

    return init


def fan_in_normal(key: jax.Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> jax.Array:
    """Draw a kernel, (inputs, outputs), with std `1/sqrt(inputs)`, which keeps the size of what it multiplies."""
    return jax.random.normal(key, shape, dtype) * jnp.asarray(1.0 / math.sqrt(shape[0]), dtype)


def look_up(
    settings: Settings, table: jax.Array, ids: Any, project_in: jax.Array | None = None, dtype: Any = None
) -> jax.Array:
    """Return `lookup_factor` times the rows of `ids`, projected where the table is factorised: (..., width).

    Args:
        settings: Sizes and factors.
        table: (vocab, table_width).
        ids: Integers of any shape. As in `jnp.take`, a row beyond the table is NaN.
        project_in: (table_width, width), or None.
        dtype: Of what is returned; None is the table's.

    Raises:
        InputError: The ids are no integers.
    """
    ids = jnp.asarray(ids)
    if not jnp.issubdtype(ids.dtype, jnp.integer):
        raise wrong_ids(ids.dtype)
    rows = jnp.take(table, ids, axis=0)  # before the cast: what is cast is then a few rows
    rows = rows if dtype is None else rows.astype(dtype)
    if settings.padding_idx is not None:
        rows = jnp.where((ids == settings.padding_idx)[..., None], 0, rows)
    rows = rows if settings.lookup_factor == 1.0 else rows * settings.lookup_factor
    return rows if project_in is None else rows @ project_in.astype(rows.dtype)


def read_out(
    settings: Settings,
    table: jax.Array,
    hidden: Any,
    project_out: jax.Array | None = None,
    bias: jax.Array | None = None,
    dtype: Any = None,
) -> jax.Array:
    """Return the logits of a hidden state: (..., width) -> (..., vocab).

    The product contracts the last axes of both, so that no transposed table is made.

    Args:
        settings: Sizes and factors.
        table: (vocab, table_width).
        hidden: What is read out.
        project_out: (width, table_width), or None.
        bias: (vocab,), or None.
        dtype: Of the product and the logits; None promotes the table's and the hidden state's.

    Raises:
        ShapeError: The hidden state does not end in `width`.
    """
    hidden = jnp.asarray(hidden)
    settings.check_hidden(hidden.shape)
    dtype = jnp.result_type(table, hidden) if dtype is None else dtype
    hidden, table = hidden.astype(dtype), table.astype(dtype)
    if project_out is not None:
        hidden = hidden @ project_out.astype(dtype)
    if settings.readout_factor != 1.0:
        hidden = hidden * settings.readout_factor  # smaller than the logits
    logits = jax.lax.dot_general(hidden, table, (((hidden.ndim - 1,), (1,)), ((), ())))
    if bias is not None:
        logits = logits + bias.astype(dtype)
    cap = settings.soft_cap
    return logits if cap is None else cap * jnp.tanh(logits / cap)


def loss_of(
    settings: Settings,
    table: jax.Array,
    hidden: Any,
    targets: Any,
    project_out: jax.Array | None = None,
    bias: jax.Array | None = None,
    dtype: Any = None,
    **options: Any,
) -> Any:
    """Return the cross entropy of `read_out(...)` against targets, (...), without holding the logits.

    Args:
        settings, table, hidden, project_out, bias, dtype: As of `read_out`.
        targets: Ids of the tokens that are to be predicted.
        options: Of `tiebeam.jax.readout_loss`, but for what the block knows itself.

    Raises:
        ShapeError: The hidden state does not end in `width`.
    """
    hidden = jnp.asarray(hidden)
    settings.check_hidden(hidden.shape)
    dtype = jnp.result_type(table, hidden) if dtype is None else dtype
    hidden, table = hidden.astype(dtype), table.astype(dtype)
    if project_out is not None:
        hidden = hidden @ project_out.astype(dtype)
    known: dict[str, Any] = {"factor": settings.readout_factor, "soft_cap": settings.soft_cap, "bias": bias}
    return readout_loss(hidden, table, targets, **known, **options)
