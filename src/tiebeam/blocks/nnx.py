"""One parameter read in both roles, as a Flax nnx module."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from tiebeam.blocks.jax import Initializer, fan_in_normal, look_up, loss_of, read_out, unit_logit_normal
from tiebeam.blocks.settings import Settings

NOTHING: Mapping[str, Any] = MappingProxyType({})
ZEROS: Initializer = nnx.initializers.zeros_init()


class TiedEmbedding(nnx.Module):  # type: ignore[misc]
    """A table that is looked up and read out: `block(ids)` and `block.attend(hidden)`.

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
        dtype: Of what is computed; None is the params' (of a readout: promoted with the hidden state's).
        param_dtype: Of the params.
        embedding_init: Draws the table, (vocab, table_width); None is `unit_logit_normal(readout_factor,
            padding_idx)`. Give that to `nnx.with_partitioning` to shard it.
        kernel_init: Draws the projections, `1/sqrt(fan in)`.
        bias_init: Draws the bias, zero.
        embedding_metadata: Goes to the table's `nnx.Param`, as in `nnx.Embed`.
        rngs: Its stream "params" is drawn from.

    Attributes:
        embedding: The table, an `nnx.Param`.
        bias, project_in, project_out: Likewise, or None.
        settings: Sizes and factors with their defaults filled in, and the `std` that follows.

    Raises:
        RangeError: A number lies outside what makes sense.

    Source: Press & Wolf 2017, arXiv 1608.05859; Vaswani et al. 2017, section 3.4; Lan et al. 2020, arXiv
        1909.11942, section 3.1.

    Example:
        >>> block = TiedEmbedding(vocab=100, width=64, rngs=nnx.Rngs(0))
        >>> x = block(jnp.array([[10, 25, 31]]))
        >>> x.shape, block.attend(x).shape
        ((1, 3, 64), (1, 3, 100))
        >>> [path for path, _ in nnx.to_flat_state(nnx.state(block))]
        [('embedding',)]
    """

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
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        embedding_init: Initializer | None = None,
        kernel_init: Initializer = fan_in_normal,
        bias_init: Initializer = ZEROS,
        embedding_metadata: Mapping[str, Any] = NOTHING,
        rngs: nnx.Rngs,
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
        self.dtype = dtype
        init = embedding_init or unit_logit_normal(s.readout_factor, s.padding_idx)
        table = init(rngs.params(), (s.vocab, s.table_width), param_dtype)
        self.embedding = nnx.Param(table, **embedding_metadata)
        # Each is assigned once: an attribute that was None must not become an array later.
        self.bias = nnx.Param(bias_init(rngs.params(), (s.vocab,), param_dtype)) if use_bias else None
        into, out = ((s.table_width, s.width), (s.width, s.table_width)) if s.factorised else (None, None)
        self.project_in = nnx.Param(kernel_init(rngs.params(), into, param_dtype)) if into else None
        self.project_out = nnx.Param(kernel_init(rngs.params(), out, param_dtype)) if out else None

    def __call__(self, ids: Any) -> jax.Array:
        """Return the rows of `ids`, integers of any shape (...), times the factor: (..., width).

        As in `jnp.take`, and so in `nnx.Embed`, an id beyond the table gives NaN.

        Raises:
            InputError: The ids are no integers.
        """
        return look_up(self.settings, self.embedding[...], ids, _value(self.project_in), self.dtype)

    def attend(self, hidden: Any) -> jax.Array:
        """Return the logits, (..., vocab), of a hidden state, (..., width). Unit: nats.

        Raises:
            ShapeError: It does not end in `width`.
        """
        table, project_out, bias = self.embedding[...], _value(self.project_out), _value(self.bias)
        return read_out(self.settings, table, hidden, project_out, bias, self.dtype)

    def loss(self, hidden: Any, targets: Any, **options: Any) -> Any:
        """Return the mean cross entropy of `attend(hidden)` against `targets`, without holding the logits.

        Args:
            hidden: (..., width).
            targets: (...), ids of the tokens that are to be predicted, or -100.
            options: Of `tiebeam.jax.readout_loss`, but for what the block knows itself.

        Raises:
            ShapeError: The hidden state does not end in `width`, or the targets do not fit it.
        """
        table, project_out, bias = self.embedding[...], _value(self.project_out), _value(self.bias)
        return loss_of(self.settings, table, hidden, targets, project_out, bias, self.dtype, **options)


def _value(param: Any) -> jax.Array | None:
    return None if param is None else param[...]
