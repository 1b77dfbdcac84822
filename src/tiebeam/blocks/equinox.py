"""One leaf read in both roles, as an Equinox module."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from tiebeam.blocks.jax import fan_in_normal, look_up, loss_of, read_out, unit_logit_normal
from tiebeam.blocks.settings import Settings


class TiedEmbedding(eqx.Module):  # type: ignore[misc]
    """A table that is looked up and read out: `block(ids)` and `block.attend(hidden)`.

    One leaf: two layers that hold the same array come untied under `eqx.filter_grad` and every optimizer,
    which see two leaves. Neither method needs `vmap`, and either may be under one.

    Args:
        vocab: Rows of the table.
        width: Of the stream.
        table_width: Columns of the table; None is `width`. Where it differs, `project_in` and `project_out`
            are products of their own (as in ALBERT and OPT).
        lookup_factor: Multiplies the looked-up rows; None is `sqrt(table_width)`.
        readout_factor: Multiplies the product with the table, before bias and soft cap.
        soft_cap: c of `c * tanh(z / c)` on the logits, or None.
        padding_idx: Its lookup is zero whatever its row holds, and sends no gradient; the row starts at zero.
        use_bias: Whether logits have one.
        dtype: Of the weights.
        key: What weights are drawn from.

    Attributes:
        weight: The table, (vocab, table_width).
        bias, project_in, project_out: Arrays, or None.
        settings: Sizes and factors with their defaults filled in, and the `std` that follows; static.

    Raises:
        RangeError: A number lies outside what makes sense.

    Source: Press & Wolf 2017, arXiv 1608.05859; Vaswani et al. 2017, section 3.4; Lan et al. 2020, arXiv
        1909.11942, section 3.1.

    Example:
        >>> block = TiedEmbedding(vocab=100, width=64, key=jax.random.key(0))
        >>> x = block(jnp.array([10, 25, 31]))
        >>> x.shape, block.attend(x).shape, len(jax.tree.leaves(block))
        ((3, 64), (3, 100), 1)
    """

    weight: jax.Array
    bias: jax.Array | None
    project_in: jax.Array | None
    project_out: jax.Array | None
    settings: Settings = eqx.field(static=True)

    def __init__(
        self,
        vocab: int,
        width: int,
        *,
        table_width: int | None = None,
        lookup_factor: float | None = None,
        readout_factor: float = 1.0,
        soft_cap: float | None = None,
        padding_idx: int | None = None,
        use_bias: bool = False,
        dtype: Any = jnp.float32,
        key: jax.Array,
    ) -> None:
        self.settings = s = Settings.of(
            vocab,
            width,
            table_width=table_width,
            lookup_factor=lookup_factor,
            readout_factor=readout_factor,
            soft_cap=soft_cap,
            padding_idx=padding_idx,
        )
        table, into, out = jax.random.split(key, 3)
        self.weight = unit_logit_normal(s.readout_factor, s.padding_idx)(table, (s.vocab, s.table_width), dtype)
        self.bias = jnp.zeros(s.vocab, dtype) if use_bias else None
        self.project_in = fan_in_normal(into, (s.table_width, s.width), dtype) if s.factorised else None
        self.project_out = fan_in_normal(out, (s.width, s.table_width), dtype) if s.factorised else None

    def __call__(self, ids: Any) -> jax.Array:
        """Return the rows of `ids`, integers of any shape (...), times the factor: (..., width).

        As in `jnp.take`, an id beyond the table gives NaN.

        Raises:
            InputError: The ids are no integers.
        """
        return look_up(self.settings, self.weight, ids, self.project_in)

    def attend(self, hidden: Any) -> jax.Array:
        """Return the logits, (..., vocab), of a hidden state, (..., width). Unit: nats.

        Raises:
            ShapeError: It does not end in `width`.
        """
        return read_out(self.settings, self.weight, hidden, self.project_out, self.bias)

    def loss(self, hidden: Any, targets: Any, **options: Any) -> Any:
        """Return the mean cross entropy of `attend(hidden)` against `targets`, without holding the logits.

        Args:
            hidden: (..., width).
            targets: (...), ids of the tokens that are to be predicted, or -100.
            options: Of `tiebeam.jax.readout_loss`, but for what the block knows itself.

        Raises:
            ShapeError: The hidden state does not end in `width`, or the targets do not fit it.
        """
        return loss_of(self.settings, self.weight, hidden, targets, self.project_out, self.bias, **options)
