"""The loss by way of its logits, written for reading: what every framework is held against."""

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def cross_entropy(
    hidden: Tensor,
    table: Tensor,
    targets: Tensor,
    *,
    factor: float | Tensor = 1.0,
    soft_cap: float | None = None,
    bias: Tensor | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    weight: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    z = factor * hidden @ table.mT
    z = z if bias is None else z + bias
    z = z if soft_cap is None else soft_cap * torch.tanh(z / soft_cap)
    flat, ids = z.reshape(-1, len(table)), targets.reshape(-1)
    given = {"weight": weight, "ignore_index": ignore_index, "label_smoothing": label_smoothing}
    loss = F.cross_entropy(flat, ids, **given, reduction=reduction)
    counted = ids != ignore_index
    extra = z_loss * torch.where(counted, flat.logsumexp(-1), 0.0).square() if z_loss else torch.zeros(len(ids))
    if reduction == "none":
        return (loss + extra).view(targets.shape)
    return loss + (extra.sum() if reduction == "sum" else extra.sum() / counted.sum())


@dataclass
class Problem:
    """One call: its tensors, and the options that both ways are given."""

    hidden: Tensor
    table: Tensor
    targets: Tensor
    options: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, shape=(9,), vocab=23, width=6, *, size=1.0, ignored=0, dtype=torch.float64, seed=0, **options):
        """Random; True as bias, weight or factor stands for a random tensor, the factor and the bias learned."""
        draws = torch.Generator().manual_seed(seed)

        def normal(*sizes):
            return torch.randn(sizes, generator=draws, dtype=torch.float64)

        hidden, table = (size * normal(*shape, width)).to(dtype), normal(vocab, width).to(dtype)
        targets = torch.randint(vocab, shape, generator=draws)
        targets.view(-1)[:ignored] = options.get("ignore_index", -100)
        made = {
            "bias": lambda: normal(vocab).to(dtype).requires_grad_(),
            "weight": lambda: torch.rand(vocab, generator=draws, dtype=torch.float64).to(dtype),
            "factor": lambda: normal().to(dtype).requires_grad_(),
        }
        options = {name: made[name]() if value is True else value for name, value in options.items()}
        return cls(hidden.requires_grad_(), table.requires_grad_(), targets, options)

    @property
    def leaves(self) -> list[Tensor]:
        learned = [t for t in self.options.values() if isinstance(t, Tensor) and t.requires_grad]
        return [self.hidden, self.table, *learned]

    def run(self, way, upstream=0.3, **more):
        """The loss and its gradients, of an upstream gradient that is not 1."""
        loss = way(self.hidden, self.table, self.targets, **self.options, **more)
        scale = torch.linspace(0.1, 1.0, loss.numel(), dtype=loss.dtype).view(loss.shape) if loss.ndim else upstream
        return loss.detach(), *torch.autograd.grad((loss * scale).sum(), self.leaves)

    def to(self, dtype) -> "Problem":
        def moved(t):
            floating = isinstance(t, Tensor) and t.is_floating_point()
            return t.detach().to(dtype).requires_grad_(t.requires_grad) if floating else t

        options = {name: moved(value) for name, value in self.options.items()}
        return Problem(moved(self.hidden), moved(self.table), self.targets, options)


def relative(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact.double()).norm() / exact.double().norm())
