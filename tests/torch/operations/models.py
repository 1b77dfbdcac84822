"""Models that operations are tried on, and what a whole model, config and optimizer hold."""

import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tiebeam.zoo.minigpt import MiniGPTConfig
from tiebeam.zoo.torch.minigpt import MiniGPT

IDS = torch.arange(8).view(1, 8)

Make = Callable[[Iterable[nn.Parameter]], Optimizer]

FAST = ("adamw", "momentum")
"""Those that are tried every time; the others are marked slow."""

OPTIMIZERS: dict[str, Make] = {
    "adam": lambda p: torch.optim.Adam(p, 1e-2),
    "adamw": lambda p: torch.optim.AdamW(p, 1e-2),
    "fused": lambda p: torch.optim.AdamW(p, 1e-2, fused=True),
    "foreach-amsgrad": lambda p: torch.optim.AdamW(p, 1e-2, foreach=True, amsgrad=True),
    "momentum": lambda p: torch.optim.SGD(p, 1e-2, momentum=0.9, nesterov=True),
    "sgd": lambda p: torch.optim.SGD(p, 1e-2),
    "adagrad": lambda p: torch.optim.Adagrad(p, 1e-2),
    "rmsprop": lambda p: torch.optim.RMSprop(p, 1e-3, momentum=0.9, centered=True),
    "adafactor": lambda p: torch.optim.Adafactor(p, 1e-2),
}


class LM(nn.Module):
    """The model of the cases: a lookup, a layer, a readout."""

    def __init__(self, vocab: int = 50, width: int = 16, *, tied: bool = True, bias: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.mid = nn.Linear(width, width)
        self.head = nn.Linear(width, vocab, bias=bias)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.head(torch.tanh(self.mid(self.embed(ids))))
        return logits


def gpt(vocab: int = 97) -> MiniGPT:
    torch.manual_seed(0)
    return MiniGPT(MiniGPTConfig.from_scheme("D", vocab=vocab, width=32, layers=1))


def train(model: Any, optimizer: Optimizer, steps: int, seed: int, below: int = 90) -> list[float]:
    """Losses of some steps; the last graph is held all along, as a loop's variable holds it."""
    draw = torch.Generator().manual_seed(seed)
    losses = []
    for _ in range(steps):
        ids = torch.randint(0, below, (4, 9), generator=draw)
        optimizer.zero_grad()
        loss = model.loss(ids)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    model.last_loss = loss
    return losses


def gradient(p: Tensor) -> Tensor:
    """The gradient that a parameter holds."""
    assert p.grad is not None
    return p.grad


def everything(model: nn.Module, *optimizers: Optimizer) -> dict[str, Any]:
    """All that an operation could change: objects, values, gradients, sizes, config, groups, states."""
    held: dict[str, Any] = {}
    for name, p in model.named_parameters(remove_duplicate=False):
        held[name] = (id(p), p.detach().clone(), None if p.grad is None else p.grad.clone(), p.requires_grad)
    for path, module in model.named_modules(remove_duplicate=False):
        held[f"{path}()"] = {k: v for k, v in vars(module).items() if isinstance(v, int | str | dict) and k[0] != "_"}
        config: Any = getattr(module, "config", None)
        if hasattr(config, "to_dict"):
            held[f"{path}.config"] = copy.deepcopy(config.to_dict())
        elif config is not None:
            held[f"{path}.config"] = repr(config)
    for k, one in enumerate(optimizers):
        held[f"groups {k}"] = [[id(p) for p in g["params"]] for g in one.param_groups]
        held[f"state {k}"] = {id(p): {n: copy.deepcopy(v) for n, v in s.items()} for p, s in one.state.items()}
    return held


def same(a: Any, b: Any) -> bool:
    """Equality that looks into tensors, bit by bit."""
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and _same_tensor(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(same(v, b[k]) for k, v in a.items())
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


def _same_tensor(a: Tensor, b: Tensor) -> bool:
    if (a.shape, a.dtype, a.layout, a.device) != (b.shape, b.dtype, b.layout, b.device):
        return False
    if a.is_meta:
        return True
    return torch.equal(a.to_dense(), b.to_dense()) if a.layout != torch.strided else torch.equal(a, b)
