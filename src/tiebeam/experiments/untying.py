"""Untying a model between two steps of its training."""

import torch
from torch import Tensor

import tiebeam
from tiebeam.experiments.training import BeforeStep
from tiebeam.zoo.torch.minigpt import MiniGPT


def untying_at(step: int, model: MiniGPT, *, keep_state: bool) -> BeforeStep:
    """Return what unties `model` before one step, by `tiebeam.untie`.

    Args:
        step: Before which.
        model: Changed in place.
        keep_state: Whether the new table takes over what the optimizer knows of the old one; else it knows nothing.
    """

    def before(now: int, batch: Tensor, optimizer: torch.optim.Optimizer) -> None:
        if now == step:
            tiebeam.untie(model, batch[:, :-1], optimizer=optimizer)
            if not keep_state:
                optimizer.state.pop(model.head.weight, None)

    return before
