"""One model in two parametrisations: scheme C's table U, and scheme D' with `T = c * U` and the logits over c."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import tiebeam
from tiebeam.zoo.minigpt import MiniGPTConfig
from tiebeam.zoo.torch.minigpt import MiniGPT

VOCAB, WIDTH, C = 61, 64, 8.0  # c = sqrt(width), a power of two: rounding commutes with it


def ids(seed: int = 0, batch: int = 4, length: int = 12) -> Tensor:
    return torch.randint(0, VOCAB, (batch, length), generator=torch.Generator().manual_seed(seed))


def gpt(scheme: str, **more: Any) -> MiniGPT:
    torch.manual_seed(0)
    return MiniGPT(MiniGPTConfig.from_scheme(scheme, vocab=VOCAB, width=WIDTH, **{"layers": 1, **more}))


def pair() -> tuple[MiniGPT, MiniGPT]:
    """The same function: C, and D' whose table is C's times c."""
    first, second = gpt("C"), gpt("D'")
    second.load_state_dict(first.state_dict())
    with torch.no_grad():
        second.embed.weight.mul_(C)
    return first, second


def exact_report(scheme: str, **more: Any) -> tiebeam.Report:
    """On meta, where a hidden state behind a norm has size 1 and c is exact."""
    with torch.device("meta"):
        return tiebeam.inspect(gpt(scheme, **more), torch.zeros(1, 8, dtype=torch.long))


def train(
    model: MiniGPT, optimizers: list[torch.optim.Optimizer], steps: int = 4, clip: float | None = None
) -> list[float]:
    """Losses of a few steps."""
    losses = []
    for step in range(steps):
        batch = ids(step)
        logits = model(batch)
        logits = logits[0] if isinstance(logits, tuple) else logits
        loss = F.cross_entropy(logits[:, :-1].reshape(-1, VOCAB), batch[:, 1:].reshape(-1))
        for o in optimizers:
            o.zero_grad()
        loss.backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        for o in optimizers:
            o.step()
        losses.append(loss.item())
    return losses


def largest_difference(first: MiniGPT, second: MiniGPT) -> float:
    """Between the two models, tables compared as U."""
    worst = 0.0
    with torch.no_grad():
        for (name, a), (_, b) in zip(first.named_parameters(), second.named_parameters(), strict=True):
            worst = max(worst, (a - (b / C if name == "embed.weight" else b)).abs().max().item())
    return worst


Make = Callable[[MiniGPT, tiebeam.Report], list[torch.optim.Optimizer]]


def trained_pair(make: Make, **how: Any) -> tuple[MiniGPT, MiniGPT, float]:
    """Both after training, and the largest difference between their losses."""
    first, second = pair()
    a = train(first, make(first, exact_report("C")), **how)
    b = train(second, make(second, exact_report("D'")), **how)
    assert len(set(a)) == len(a), "a training that does not move shows nothing"
    return first, second, max(abs(x - y) for x, y in zip(a, b, strict=True))
