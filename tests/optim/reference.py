"""Optimizers that PyTorch does not have, written down from their papers: what the rules are held against."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

Group = dict[str, Any]


class Reference(torch.optim.Optimizer):
    """`step` moves each parameter by its class's `update`; state is made on demand."""

    def __init__(self, groups: Any, lr: float = 1e-3, weight_decay: float = 0.0, eps: float = 1e-8) -> None:
        super().__init__(groups, {"lr": lr, "weight_decay": weight_decay, "eps": eps})

    def visit(self) -> Iterator[tuple[Tensor, Tensor, dict[str, Any], Group]]:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    state = self.state[p]
                    state["step"] = state.get("step", 0) + 1
                    yield p, p.grad, state, group

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:
        for p, g, state, group in self.visit():
            self.update(p, g, state, group)

    def update(self, p: Tensor, g: Tensor, state: dict[str, Any], group: Group) -> None:
        raise NotImplementedError


def kept(state: dict[str, Any], name: str, like: Tensor) -> Tensor:
    """A running average that starts at zero."""
    if name not in state:
        state[name] = torch.zeros_like(like)
    return state[name]  # type: ignore[no-any-return]


def adam_update(g: Tensor, state: dict[str, Any], eps: float, b1: float = 0.9, b2: float = 0.99) -> Tensor:
    m = kept(state, "m", g).mul_(b1).add_(g, alpha=1 - b1)
    v = kept(state, "v", g).mul_(b2).addcmul_(g, g, value=1 - b2)
    n = state["step"]
    return (m / (1 - b1**n)) / ((v / (1 - b2**n)).sqrt() + eps)


class Lion(Reference):
    """Chen et al. 2023, arXiv 2302.06675, algorithm 2."""

    def update(self, p: Tensor, g: Tensor, state: dict[str, Any], group: Group) -> None:
        m = kept(state, "m", g)
        direction = (0.9 * m + 0.1 * g).sign()
        p.mul_(1 - group["lr"] * group["weight_decay"]).add_(direction, alpha=-group["lr"])
        m.mul_(0.99).add_(g, alpha=0.01)


class Lamb(Reference):
    """You et al. 2020, arXiv 1904.00962, algorithm 2, phi the identity."""

    def __init__(self, groups: Any, lr: float = 1e-3, weight_decay: float = 0.0, eps: float = 1e-6) -> None:
        super().__init__(groups, lr, weight_decay, eps)

    def update(self, p: Tensor, g: Tensor, state: dict[str, Any], group: Group) -> None:
        r = adam_update(g, state, group["eps"]) + group["weight_decay"] * p
        p.add_(r * (p.norm() / r.norm()), alpha=-group["lr"])


class Lars(Reference):
    """You et al. 2017, arXiv 1708.03888, equation 6, with momentum."""

    def update(self, p: Tensor, g: Tensor, state: dict[str, Any], group: Group) -> None:
        wd = group["weight_decay"]
        trust = p.norm() / (g.norm() + wd * p.norm() + group["eps"])
        m = kept(state, "m", g).mul_(0.9).add_((g + wd * p) * trust, alpha=group["lr"])
        p.sub_(m)


def root(square: Tensor, power: float) -> Tensor:
    values, vectors = torch.linalg.eigh(square + 1e-12 * torch.eye(len(square)))
    return vectors @ torch.diag(values.clamp(min=1e-12) ** power) @ vectors.T


class Shampoo(Reference):
    """Gupta et al. 2018, arXiv 1802.09568, algorithm 1, for matrices."""

    def update(self, p: Tensor, g: Tensor, state: dict[str, Any], group: Group) -> None:
        left = kept(state, "left", g.new_empty(len(g), len(g))).add_(g @ g.T)
        right = kept(state, "right", g.new_empty(g.shape[1], g.shape[1])).add_(g.T @ g)
        p.mul_(1 - group["lr"] * group["weight_decay"])
        p.sub_(root(left, -0.25) @ g @ root(right, -0.25), alpha=group["lr"])


class Soap(Reference):
    """Vyas et al. 2024, arXiv 2409.11321, algorithm 3, its bases renewed at every step."""

    def update(self, p: Tensor, g: Tensor, state: dict[str, Any], group: Group) -> None:
        left = kept(state, "left", g.new_empty(len(g), len(g))).mul_(0.95).add_(g @ g.T, alpha=0.05)
        right = kept(state, "right", g.new_empty(g.shape[1], g.shape[1])).mul_(0.95).add_(g.T @ g, alpha=0.05)
        ql, qr = torch.linalg.eigh(left)[1], torch.linalg.eigh(right)[1]
        step = ql @ adam_update(ql.T @ g @ qr, state, group["eps"]) @ qr.T
        p.mul_(1 - group["lr"] * group["weight_decay"]).sub_(step, alpha=group["lr"])


class Adadelta(Reference):
    """Zeiler 2012, arXiv 1212.5701: the one for which no rule holds."""

    def update(self, p: Tensor, g: Tensor, state: dict[str, Any], group: Group) -> None:
        v = kept(state, "v", g).mul_(0.9).addcmul_(g, g, value=0.1)
        moved = kept(state, "moved", g)
        step = ((moved + group["eps"]) / (v + group["eps"])).sqrt() * g
        moved.mul_(0.9).addcmul_(step, step, value=0.1)
        p.sub_(step, alpha=group["lr"])
