"""Where a learning-rate schedule leads: a copy of it is run on a stand-in, to its end where it has one."""

import copy
import functools
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

from tiebeam.core.findings.optimizers import Schedule

LONGEST = 50_000
UNKNOWN = 1_000
"""Steps to follow a schedule that does not say where it ends."""

ENDS = ("total_steps", "T_max", "total_iters", "T_0")
"""Attributes of PyTorch's schedulers that say after how many steps the rates repeat or stay."""


class StandIn(torch.optim.Optimizer):
    """Groups without parameters of the model: what a copied schedule may write to."""

    def __init__(self, groups: list[dict[str, Any]], factor: float = 1.0) -> None:
        super().__init__([torch.zeros(1)], {})
        self._opt_called = True  # schedulers warn where no step came before theirs
        self.param_groups = [{k: _own(v) for k, v in g.items() if k != "params"} | {"params": []} for g in groups]
        for group in self.param_groups:
            for key in ("lr", "initial_lr"):
                if key in group:
                    group[key] = group[key] * factor

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Do nothing."""

    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]

    def rates(self) -> list[float]:
        return [float(g["lr"]) for g in self.param_groups]


def _own(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else copy.copy(value)


def nested(scheduler: Any) -> Iterator[tuple[str, Any]]:
    """A scheduler and those inside it, each with the expression that reaches it from `scheduler`."""
    yield "", scheduler
    for i, inner in enumerate(getattr(scheduler, "_schedulers", ())):
        for path, one in nested(inner):
            yield f"._schedulers[{i}]{path}", one


def follow(scheduler: Any, optimizer: Any, first: int) -> Schedule:
    """Run a copy of the schedule from where it stands.

    Args:
        scheduler: Of `optimizer`; neither is touched.
        optimizer: Whose `param_groups` it sets.
        first: Index of its first group among those of all optimizers.

    Raises:
        TypeError: The schedule holds what cannot be copied.
    """
    steps, whole = _length(scheduler)
    rates = _rates(scheduler, optimizer, steps, 1.0)
    doubled = _rates(scheduler, optimizer, steps, 2.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        grown = np.where(rates > 0, doubled / rates, 2.0)
    proportional = [bool(np.all(np.abs(column - 2.0) < 0.02)) for column in grown.T]
    return Schedule(type(scheduler).__name__, rates, first, proportional, whole)


def _rates(scheduler: Any, optimizer: Any, steps: int, factor: float) -> np.ndarray[Any, np.dtype[np.float64]]:
    stand_in = StandIn(optimizer.param_groups, factor)
    copied = copy.deepcopy(scheduler, {id(optimizer): stand_in})
    for _, one in nested(copied):
        if factor != 1.0 and hasattr(one, "base_lrs"):
            one.base_lrs = [lr * factor for lr in one.base_lrs]
    found = [stand_in.rates()]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of calls in an unusual order: it is a copy that is run
        for _ in range(steps):
            if isinstance(copied, ReduceLROnPlateau):
                copied.step(0.0)  # a metric that never improves
            else:
                copied.step()
            found.append(stand_in.rates())
    return np.asarray(found, dtype=np.float64)


def _length(scheduler: Any) -> tuple[int, bool]:
    """Steps that are left, and whether the schedule ends with them."""
    if isinstance(scheduler, ReduceLROnPlateau):
        return min(60 * (scheduler.patience + scheduler.cooldown + 1), LONGEST), True
    ends = [end for _, one in nested(scheduler) for end in _ends(one)]
    total = sum(ends) if hasattr(scheduler, "_milestones") else max(ends, default=0)
    if total <= 0:
        return UNKNOWN, False
    left = max(total - int(getattr(scheduler, "last_epoch", 0)), 0)
    if hasattr(scheduler, "total_steps"):
        left = max(left - 1, 0)  # OneCycleLR counts the rate it starts with
    return min(left, LONGEST), left <= LONGEST


def _ends(scheduler: Any) -> Iterator[int]:
    for name in ENDS:
        if isinstance(value := getattr(scheduler, name, None), int):
            yield value
    for name in ("milestones", "_milestones"):
        yield from (int(m) for m in getattr(scheduler, name, ()) or ())
    if isinstance(half := getattr(scheduler, "total_size", None), int | float):
        yield int(half)
    for function in getattr(scheduler, "lr_lambdas", ()):
        if isinstance(function, functools.partial):  # a function of the step, and of how many there are
            yield from (v for v in function.keywords.values() if isinstance(v, int) and not isinstance(v, bool))
