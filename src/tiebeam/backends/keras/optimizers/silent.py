"""What a Keras optimizer keeps of one variable of a model: moments, by where they stand in its lists."""

from collections.abc import Iterator
from typing import Any

_NO_MOMENTS = ("_trainable_variables", "_model_variables_moving_average", "_accumulated_gradients", "_variables")
"""Lists of a built optimizer that tell nothing of gradients so far."""


def states_of(optimizer: Any, tensor: Any) -> list[Any]:
    """Variables of a built optimizer that have the shape of a model's variable and belong to it.

    Args:
        optimizer: Of Keras; one of several, and one that scales the loss, are opened.
        tensor: The framework's own, which a Keras variable holds.
    """
    found: list[Any] = []
    for one in _inner(optimizer):
        trained = list(getattr(one, "_trainable_variables", ()))
        place = next((i for i, v in enumerate(trained) if getattr(v, "_value", None) is tensor), None)
        if place is None:
            continue
        for name, held in vars(one).items():
            if name in _NO_MOMENTS or not isinstance(held, list) or len(held) != len(trained):
                continue
            state = held[place]
            if state is not None and tuple(getattr(state, "shape", ())) == tuple(trained[place].shape):
                found.append(state)
    return found


def _inner(optimizer: Any) -> Iterator[Any]:
    """The optimizers that step variables themselves."""
    if hasattr(optimizer, "inner_optimizer"):
        yield from _inner(optimizer.inner_optimizer)
        return
    several = getattr(optimizer, "groups", None) or getattr(optimizer, "optimizers", None)
    if isinstance(several, list):
        yield from several
    else:
        yield optimizer
