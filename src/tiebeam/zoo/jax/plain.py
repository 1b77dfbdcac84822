"""A lookup and a readout of one parameter with nothing between them: what a tie is, and no more."""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from tiebeam.errors import InputError

__all__ = ["LookupReadout"]


class LookupReadout(nn.Module):
    """`table[ids] @ table.T`: logits[t, v] is the product of the rows of the token read at t and of v.

    No context, no softmax, no bias: its one param is `embedding`. The logit of the token read is the squared norm
    of its row, at least 0 and not always the largest.

    Attributes:
        vocab: Rows of the table.
        width: Columns of the table.
        std: Of its draw. `nn.Embed` draws with `1 / sqrt(width)`.

    Source: Press & Wolf 2017, arXiv 1608.05859, without the network between the two.

    Example:
        >>> model = LookupReadout(vocab=3, width=2)
        >>> table = jnp.array([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0]])
        >>> model.apply({"params": {"embedding": table}}, jnp.array([0, 2, 0])).tolist()
        [[1.0, 2.0, 0.0], [0.0, 0.0, 1.0], [1.0, 2.0, 0.0]]
    """

    vocab: int
    width: int
    std: float = 0.02

    @nn.compact
    def __call__(self, ids: Any) -> Any:
        """Return the logits, (..., vocab), of token ids of shape (...). Unit: nats.

        Raises:
            InputError: `ids` are no integers.
        """
        ids = jnp.asarray(ids)
        if not jnp.issubdtype(ids.dtype, jnp.integer):
            raise InputError("ids of LookupReadout", got=str(ids.dtype), expected="integers")
        table = self.param("embedding", nn.initializers.normal(self.std), (self.vocab, self.width))
        return table[ids] @ table.T
