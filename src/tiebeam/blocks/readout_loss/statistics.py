"""What a readout loss knows of its tokens beside the loss, where no framework has a record of its own for it."""

from typing import Any, NamedTuple


class ReadoutStats(NamedTuple):
    """What was seen on the way, of the shape of the targets; a tuple, which a `tf.function` can return.

    Attributes:
        logsumexp: Log of the softmax's denominator. Unit: nats.
        best: Whether no other logit is larger than the target's; False where ignored.
        own_logit: The logit of the token read, or None where `ids` were not given. Unit: nats.
        counted: Where the target counts.
    """

    logsumexp: Any
    best: Any
    own_logit: Any
    counted: Any
