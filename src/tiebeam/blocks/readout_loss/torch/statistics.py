"""What a readout loss knows of its tokens beside the loss."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class ReadoutStats:
    """What was seen on the way, of the shape of the targets; no gradient flows through it.

    Attributes:
        logsumexp: Log of the softmax's denominator; NaN where ignored. Unit: nats.
        best: Whether no other logit is larger than the target's; False where ignored.
        own_logit: The logit of the token read, or None where `ids` were not given; NaN where ignored. Unit: nats.
        counted: Where the target counts.
    """

    logsumexp: Tensor
    best: Tensor
    own_logit: Tensor | None
    counted: Tensor

    @property
    def accuracy(self) -> Tensor:
        """The largest logit is the target's at this share of those that count; a scalar, NaN where none counts."""
        return self.best.sum() / self.counted.sum()

    @property
    def own_mass(self) -> Tensor | None:
        """Share of probability on the token read, of the targets' shape; NaN where ignored."""
        return None if self.own_logit is None else torch.exp(self.own_logit - self.logsumexp)
