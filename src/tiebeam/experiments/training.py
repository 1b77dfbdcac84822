"""A plain training loop, the same for every model that it is given: AdamW, warm-up, cosine, clipping."""

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tiebeam.errors import NotFiniteError, RangeError
from tiebeam.experiments.corpus import Ids
from tiebeam.experiments.curve import Curve
from tiebeam.experiments.ranks import ALONE, Ranks
from tiebeam.experiments.windows import draw_windows, spread_windows
from tiebeam.zoo.torch.minigpt import MiniGPT

Groups = list[dict[str, Any]]
BeforeStep = Callable[[int, Tensor, torch.optim.Optimizer], object]
OnStep = Callable[[int, float], object]
"""Told of each step, by its number from 1 on, and of its loss as soon as that is known. Unit: nats."""


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
        clip: Largest norm of the gradient; None leaves it as it is.
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
    clip: float | None = 1.0
    seed: int = 0
    validate_every: int = 20
    validation_windows: int = 16

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "warmup", "validate_every", "validation_windows"):
            if getattr(self, name) < 1:
                raise RangeError(f"{name} of TrainSettings", got=repr(getattr(self, name)), expected="at least 1")

    def share_at(self, step: int) -> float:
        """Return the share of the largest rate at step 0, 1, ...

        Example:
            >>> TrainSettings(steps=100, warmup=10).share_at(0)
            0.1
        """
        cosine = 0.5 * (1.0 + math.cos(math.pi * step / self.steps))
        return min(1.0, (step + 1) / self.warmup) * (self.floor + (1.0 - self.floor) * cosine)


def train(
    model: MiniGPT,
    train_ids: Ids,
    validation_ids: Ids,
    settings: TrainSettings,
    on_step: OnStep,
    *,
    groups: Groups | None = None,
    before_step: BeforeStep | None = None,
    after_validation: OnStep | None = None,
    autocast: bool = False,
    ranks: Ranks = ALONE,
) -> Curve:
    """Train `model` where it lies, on windows of one token more than its block size.

    Args:
        model: Changed in place.
        train_ids: (tokens,), integers.
        validation_ids: Likewise.
        settings: How.
        on_step: Told of every step.
        groups: Parameter groups with rates of their own, which share the schedule; None is one group of all.
        before_step: Given the step, its whole batch and the optimizer, before anything is done with them.
        after_validation: Told of every validation: the steps done and its loss.
        autocast: Compute in bfloat16 where torch holds that it suffices.
        ranks: Processes that do the same at once, each with its share of every batch; losses are of the whole.

    Raises:
        InputError: One of the texts is shorter than a window.
        RangeError: A batch cannot be shared out evenly.
        NotFiniteError: The weights are no longer numbers, and `on_step`, told of a loss of NaN, did not end it.
    """
    ranks.check_batch(settings.batch)
    window, device = model.config.block_size + 1, next(model.parameters()).device
    batches = draw_windows(train_ids, window, batch=settings.batch, seed=settings.seed)
    held_out = spread_windows(validation_ids, window, settings.validation_windows).to(device)
    optimizer = torch.optim.AdamW(
        model.parameters() if groups is None else groups,
        lr=settings.rate,
        betas=settings.betas,
        weight_decay=settings.weight_decay,
        fused=True,
    )
    rates = [group["lr"] for group in optimizer.param_groups]
    points: list[tuple[int, float]] = []
    loss_of = ranks.losses(model)

    def look(done: int) -> None:
        with _precision(device, autocast):
            points.append((done, validate(model, held_out, settings.batch, ranks)))
        if after_validation is not None:
            after_validation(*points[-1])

    started, losses = time.perf_counter(), []
    look(0)
    model.train()
    for step in range(settings.steps):
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * settings.share_at(step)
        batch = next(batches).to(device)
        if before_step is not None:
            before_step(step, batch, optimizer)
        failure, mine = None, math.nan
        try:
            with _precision(device, autocast):
                loss = loss_of(batch)
            mine = float(loss.detach())
        except NotFiniteError as error:  # the weights have diverged, here or on all ranks
            failure = error
        losses.append(ranks.total(mine) / ranks.count)
        done = step + 1
        on_step(done, losses[-1])
        if failure is not None:
            raise failure
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if settings.clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
        optimizer.step()
        if done % settings.validate_every == 0 or done == settings.steps:
            look(done)
    return Curve(tuple(losses), tuple(points), time.perf_counter() - started)


def _precision(device: torch.device, autocast: bool) -> AbstractContextManager[object]:
    return torch.autocast(device.type, torch.bfloat16) if autocast else nullcontext()


@torch.no_grad()
def validate(model: MiniGPT, windows: Tensor, batch: int, ranks: Ranks = ALONE) -> float:
    """Return the mean loss over `windows`, (count, tokens), without dropout; each rank reads its share. Unit: nats.

    It is NaN where the weights are no longer numbers.
    """
    before = model.training
    model.eval()
    try:
        parts = windows[ranks.rank :: ranks.count].split(batch)
        losses = [float(model.loss(part)) * len(part) for part in parts if len(part)]
    except NotFiniteError:
        losses = [math.nan]
    finally:
        model.train(before)
    return ranks.total(sum(losses)) / len(windows)
