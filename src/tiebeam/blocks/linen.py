"""One parameter read in both roles, as a Flax linen module."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from tiebeam.blocks.jax import Initializer, fan_in_normal, look_up, loss_of, read_out, unit_logit_normal
from tiebeam.blocks.settings import Settings


class TiedEmbedding(nn.Module):  # type: ignore[misc]
    """A table that is looked up and read out: `block(ids)` and `block.attend(hidden)`.

    Use one instance in both places: make it in `setup`, or once in a compact method. Its params are
    `embedding`, and where asked for `bias`, `project_in` and `project_out`.

    Attributes:
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
            padding_idx)`. Give that to `nn.with_partitioning` to name axes.
        kernel_init: Draws the projections, `1/sqrt(fan in)`.
        bias_init: Draws the bias, zero.

    Raises:
        RangeError: A number lies outside what makes sense.

    Source: Press & Wolf 2017, arXiv 1608.05859; Vaswani et al. 2017, section 3.4; Lan et al. 2020, arXiv
        1909.11942, section 3.1.

    Example:
        >>> block = TiedEmbedding(vocab=100, width=64)
        >>> params = block.init(jax.random.key(0), jnp.array([[10, 25, 31]]))
        >>> jax.tree.map(jnp.shape, params)
        {'params': {'embedding': (100, 64)}}
        >>> x = block.apply(params, jnp.array([[10, 25, 31]]))
        >>> x.shape, block.apply(params, x, method="attend").shape
        ((1, 3, 64), (1, 3, 100))
    """

    vocab: int
    width: int
    table_width: int | None = None
    lookup_factor: float | None = None
    readout_factor: float = 1.0
    soft_cap: float | None = None
    padding_idx: int | None = None
    use_bias: bool = False
    dtype: Any = None
    param_dtype: Any = jnp.float32
    embedding_init: Initializer | None = None
    kernel_init: Initializer = fan_in_normal
    bias_init: Initializer = nn.initializers.zeros_init()

    def __post_init__(self) -> None:
        _ = self.settings  # refuse now what makes no sense
        super().__post_init__()

    @property
    def settings(self) -> Settings:
        """Sizes and factors with their defaults filled in, and the `std` that follows."""
        return Settings.of(
            self.vocab,
            self.width,
            table_width=self.table_width,
            lookup_factor=self.lookup_factor,
            readout_factor=self.readout_factor,
            soft_cap=self.soft_cap,
            padding_idx=self.padding_idx,
        )

    def setup(self) -> None:
        """Make the params, those of both roles whichever comes first."""
        s, dtype = self.settings, self.param_dtype
        init = self.embedding_init or unit_logit_normal(s.readout_factor, s.padding_idx)
        self.embedding = self.param("embedding", init, (s.vocab, s.table_width), dtype)
        self.bias = self.param("bias", self.bias_init, (s.vocab,), dtype) if self.use_bias else None
        self.project_in = self.project_out = None
        if s.factorised:
            self.project_in = self.param("project_in", self.kernel_init, (s.table_width, s.width), dtype)
            self.project_out = self.param("project_out", self.kernel_init, (s.width, s.table_width), dtype)

    def __call__(self, ids: Any) -> jax.Array:
        """Return the rows of `ids`, integers of any shape (...), times the factor: (..., width).

        As in `jnp.take`, and so in `nn.Embed`, an id beyond the table gives NaN.

        Raises:
            InputError: The ids are no integers.
        """
        return look_up(self.settings, self.embedding, ids, self.project_in, self.dtype)

    def attend(self, hidden: Any) -> jax.Array:
        """Return the logits, (..., vocab), of a hidden state, (..., width). Unit: nats.

        Raises:
            ShapeError: It does not end in `width`.
        """
        return read_out(self.settings, self.embedding, hidden, self.project_out, self.bias, self.dtype)

    def loss(self, hidden: Any, targets: Any, **options: Any) -> Any:
        """Return the mean cross entropy of `attend(hidden)` against `targets`, without holding the logits.

        Args:
            hidden: (..., width).
            targets: (...), ids of the tokens that are to be predicted, or -100.
            options: Of `tiebeam.jax.readout_loss`, but for what the block knows itself.

        Raises:
            ShapeError: The hidden state does not end in `width`, or the targets do not fit it.
        """
        given = self.settings, self.embedding, hidden, targets, self.project_out, self.bias, self.dtype
        return loss_of(*given, **options)
