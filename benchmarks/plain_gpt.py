"""The peer of a training step: network and update of the plain script that `schemes` repeats, in its scheme C."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LAYERS = 4


class PlainBlock(nn.Module):
    """Pre-norm attention and feed-forward layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = max(width // 64, 2)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        shapes = {
            "qkv": (width, 3 * width),
            "mix": (width, width),
            "up": (width, 4 * width),
            "down": (4 * width, width),
        }
        self.linear = nn.ModuleDict({name: nn.Linear(*shape, bias=False) for name, shape in shapes.items()})
        for name, layer in self.linear.items():
            std = layer.in_features**-0.5
            nn.init.normal_(layer.weight, 0.0, std / math.sqrt(2 * LAYERS) if name in ("mix", "down") else std)

    def forward(self, x: Tensor) -> Tensor:
        """The stream after it."""
        batch, tokens, width = x.shape
        split = self.linear["qkv"](self.norms[0](x)).view(batch, tokens, 3, self.heads, width // self.heads)
        mixed = F.scaled_dot_product_attention(*split.permute(2, 0, 3, 1, 4), is_causal=True)
        x = x + self.linear["mix"](mixed.transpose(1, 2).reshape(x.shape))
        return x + self.linear["down"](F.gelu(self.linear["up"](self.norms[1](x))))


class PlainModel(nn.Module):
    """The network as one would write it down, its table a bare parameter; a factor at each end, whatever the scheme."""

    def __init__(self, vocab: int, width: int) -> None:
        super().__init__()
        self.on_rows, self.on_logits = width**0.5, 1.0
        self.table = nn.Parameter(torch.randn(vocab, width) * width**-0.5)
        self.blocks = nn.Sequential(*(PlainBlock(width) for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(width)

    def hidden(self, ids: Tensor) -> Tensor:
        """What is read out, (batch, tokens, width)."""
        return self.norm(self.blocks(F.embedding(ids, self.table) * self.on_rows))

    def forward(self, ids: Tensor) -> Tensor:
        """Logits, (batch, tokens, vocab)."""
        return (self.hidden(ids) @ self.table.t()) * self.on_logits

    def loss(self, ids: Tensor) -> Tensor:
        """Of each token's successor, by way of the logits."""
        return F.cross_entropy(self(ids[:, :-1]).float().flatten(0, 1), ids[:, 1:].flatten())


def stepping(model: nn.Module, loss: Callable[[], Tensor], **adam: bool) -> Callable[[], None]:
    """One update of `model`: backward pass, clipping, AdamW as it comes unless told otherwise."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.0, **adam)

    def step() -> None:
        found = loss()
        optimizer.zero_grad(set_to_none=True)
        found.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step
