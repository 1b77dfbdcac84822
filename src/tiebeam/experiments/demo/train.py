"""A plain training loop, the same for every model that it is given: AdamW, warm-up, cosine, clipping."""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tiebeam.errors import InputError, RangeError
from tiebeam.experiments.demo.corpus import Ids
from tiebeam.experiments.demo.result import Curve
from tiebeam.zoo.torch.minigpt import MiniGPT

OnStep = Callable[[int, float], object]
"""Called after each step with the number of steps done and the loss of the last. Unit: nats."""


@dataclass(frozen=True, slots=True)
class TrainSettings:
    """How to train.

    Attributes:
        steps: Updates of the weights.
        batch: Windows in a step.
        rate: Largest learning rate; of 2e-3 and 4e-3 the better one for both models of the demo.
        warmup: Steps until it is reached.
        floor: Share of it that the cosine ends at.
        betas, weight_decay: Of AdamW.
        clip: Largest norm of the gradient.
        seed: Of the windows; equal seeds give equal batches to every model.
        validate_every: Steps between two validations; the start and the end are always validated.
        validation_windows: Windows in a validation, spread evenly.
    """

    steps: int = 200
    batch: int = 8
    rate: float = 4e-3
    warmup: int = 20
    floor: float = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.01
    clip: float = 1.0
    seed: int = 0
    validate_every: int = 20
    validation_windows: int = 16

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "warmup", "validate_every", "validation_windows"):
            if getattr(self, name) < 1:
                raise RangeError(f"{name} of TrainSettings", got=repr(getattr(self, name)), expected="at least 1")

    def rate_at(self, step: int) -> float:
        """Return the learning rate of step 0, 1, ...

        Example:
            >>> TrainSettings(steps=100, rate=1.0, warmup=10).rate_at(0)
            0.1
        """
        cosine = 0.5 * (1.0 + math.cos(math.pi * step / self.steps))
        return self.rate * min(1.0, (step + 1) / self.warmup) * (self.floor + (1.0 - self.floor) * cosine)


def train(model: MiniGPT, train_ids: Ids, validation_ids: Ids, settings: TrainSettings, on_step: OnStep) -> Curve:
    """Train `model` where it lies, on windows of one token more than its block size.

    Args:
        model: Changed in place.
        train_ids: (tokens,), int64.
        validation_ids: Likewise.
        settings: How.
        on_step: Told of every step.

    Raises:
        InputError: One of the texts is shorter than a window.
    """
    window = model.config.block_size + 1
    batches = draw_windows(train_ids, window, settings)
    held_out = spread_windows(validation_ids, window, settings.validation_windows)
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=settings.rate,
        betas=settings.betas,
        weight_decay=settings.weight_decay,
        fused=True,
    )
    started, losses = time.perf_counter(), []
    points = [(0, validate(model, held_out, settings.batch))]
    model.train()
    for step in range(settings.steps):
        for group in optimizer.param_groups:
            group["lr"] = settings.rate_at(step)
        loss = model.loss(next(batches))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
        optimizer.step()
        losses.append(float(loss.detach()))
        done = step + 1
        if done % settings.validate_every == 0 or done == settings.steps:
            points.append((done, validate(model, held_out, settings.batch)))
        on_step(done, losses[-1])
    return Curve(tuple(losses), tuple(points), time.perf_counter() - started)


@torch.no_grad()
def validate(model: MiniGPT, windows: Tensor, batch: int) -> float:
    """Return the mean loss over `windows`, (count, tokens), without dropout. Unit: nats."""
    before = model.training
    model.eval()
    try:
        losses = [float(model.loss(part)) * len(part) for part in windows.split(batch)]
    finally:
        model.train(before)
    return sum(losses) / len(windows)


def draw_windows(ids: Ids, window: int, settings: TrainSettings) -> Iterator[Tensor]:
    """Return an endless stream of batches, (batch, window), int64, drawn by NumPy from `settings.seed`.

    Raises:
        InputError: `ids` are shorter than a window.
    """
    _check_length(ids, window)
    rng = np.random.default_rng(settings.seed)

    def batches() -> Iterator[Tensor]:
        while True:
            starts = rng.integers(0, len(ids) - window + 1, size=settings.batch)
            yield torch.from_numpy(ids[starts[:, None] + np.arange(window)])

    return batches()


def spread_windows(ids: Ids, window: int, count: int) -> Tensor:
    """Return `count` windows that start at even distances over all of `ids`: (count, window), int64.

    Raises:
        InputError: `ids` are shorter than a window.

    Example:
        >>> spread_windows(np.arange(9), window=3, count=2)
        tensor([[0, 1, 2],
                [6, 7, 8]])
    """
    _check_length(ids, window)
    starts = np.linspace(0, len(ids) - window, count).astype(np.int64)
    return torch.from_numpy(ids[starts[:, None] + np.arange(window)])


def _check_length(ids: Ids, window: int) -> None:
    if len(ids) < window:
        raise InputError("the text is shorter than one window", got=f"{len(ids)} tokens", expected=f"at least {window}")
