"""What a backward pass must not touch, and checkpoints that it could not look into."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.utils import checkpoint

_LOCK = threading.Lock()
_THREADS: list[int] = []  # those inside `checkpoints_in_sight`


@contextmanager
def gradients_aside(model: nn.Module) -> Iterator[None]:
    """Keep `.grad` out of reach: a custom function may run a backward pass of its own, which adds to it."""
    held = [(p, p.grad) for p in model.parameters()]
    for p, _ in held:
        p.grad = None
    try:
        yield
    finally:
        for p, grad in held:
            p.grad = grad


@contextmanager
def checkpoints_in_sight() -> Iterator[None]:
    """Run reentrant checkpoints the other way, in this thread: theirs is a backward pass that nobody can look into.

    What is computed is the same, and activations are dropped all the same.
    """
    function: Any = checkpoint.CheckpointFunction
    mine = threading.get_ident()
    with _LOCK:
        if not _THREADS:
            function.apply = staticmethod(_instead(function.apply))
        _THREADS.append(mine)
    try:
        yield
    finally:
        with _LOCK:
            _THREADS.remove(mine)
            if not _THREADS:
                del function.apply  # the inherited one shows again


def _instead(reentrant: Callable[..., Any]) -> Callable[..., Any]:
    def apply(run: Callable[..., Any], preserve: bool, *args: Any) -> Any:
        if threading.get_ident() not in _THREADS:
            return reentrant(run, preserve, *args)
        return checkpoint.checkpoint(run, *args, use_reentrant=False, preserve_rng_state=preserve)

    return apply
