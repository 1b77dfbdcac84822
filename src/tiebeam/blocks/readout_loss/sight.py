"""Whether readout losses are to go by way of their logits, for whoever has to see them: a recording of a forward pass.

The readout is then a product like any other, in place of an operator or a loop of unknown body.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_SEEN: ContextVar[bool] = ContextVar("tiebeam_logits_in_sight", default=False)


@contextmanager
def logits_in_sight() -> Iterator[None]:
    """Compute readout losses by way of their logits within the block, in this thread."""
    token = _SEEN.set(True)
    try:
        yield
    finally:
        _SEEN.reset(token)


def in_sight() -> bool:
    """Whether logits are to be seen."""
    return _SEEN.get()
