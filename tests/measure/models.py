"""Models with one table in two roles, each reading it in another way; `split` is the same with two parameters."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

VOCAB, WIDTH = 40, 8

Read = Callable[[Tensor, Tensor, Tensor, nn.Module], Tensor]
"""ids, the lookup's table, the readout's table, body -> logits."""


class Tied(nn.Module):
    """`read` gives the logits; `split` reads its readout from a table of its own, equal in value."""

    def __init__(self, read: Read, *, split: bool = False, shape: tuple[int, int] = (VOCAB, WIDTH)) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(1)
        self.table = nn.Parameter(torch.randn(shape, generator=draw))
        self.second = nn.Parameter(self.table.detach().clone()) if split else None
        self.body = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.LayerNorm(WIDTH))
        for p in self.body.parameters():
            nn.init.normal_(p, std=0.3, generator=draw)
        self.read = read

    def forward(self, ids: Tensor) -> Tensor:
        return self.read(ids, self.table, self.table if self.second is None else self.second, self.body)


def plain(ids: Tensor, a: Tensor, b: Tensor, body: nn.Module) -> Tensor:
    return body(F.embedding(ids, a)) @ b.T


def indexed(ids: Tensor, a: Tensor, b: Tensor, body: nn.Module) -> Tensor:
    return F.linear(body(a[ids] * 3), b) / 2


def one_hot(ids: Tensor, a: Tensor, b: Tensor, body: nn.Module) -> Tensor:
    return body(F.one_hot(ids, VOCAB).float() @ a) @ b.T


def two_views(ids: Tensor, a: Tensor, b: Tensor, body: nn.Module) -> Tensor:
    return body(F.embedding(ids, a * 1)) @ (b * 1).T


def einsum(ids: Tensor, a: Tensor, b: Tensor, body: nn.Module) -> Tensor:
    return torch.einsum("btd,vd->btv", body(a[ids]), b)


def summed(ids: Tensor, a: Tensor, b: Tensor, body: nn.Module) -> Tensor:
    return (body(a[ids])[..., None, :] * b).sum(-1)


def in_pieces(ids: Tensor, a: Tensor, b: Tensor, body: nn.Module) -> Tensor:
    h = body(F.embedding(ids, a))
    return torch.cat([h @ piece.T for piece in b.split(7)], dim=-1)


def sparse(ids: Tensor, a: Tensor, b: Tensor, body: nn.Module) -> Tensor:
    return body(F.embedding(ids, a, sparse=True)) @ b.T


def twice(ids: Tensor, a: Tensor, b: Tensor, body: nn.Module) -> Tensor:
    return body(F.embedding(ids, a) + F.embedding(ids.flip(0), a)) @ b.T


def reentrant(ids: Tensor, a: Tensor, b: Tensor, body: nn.Module) -> Tensor:
    h: Any = checkpoint(body, F.embedding(ids, a), use_reentrant=True)
    return h @ b.T


def head_in_checkpoint(ids: Tensor, a: Tensor, b: Tensor, body: nn.Module) -> Tensor:
    out: Any = checkpoint(lambda h: body(h) @ b.T, F.embedding(ids, a), use_reentrant=True)
    return out


def not_reentrant(ids: Tensor, a: Tensor, b: Tensor, body: nn.Module) -> Tensor:
    out: Any = checkpoint(lambda x: body(F.embedding(x, a)) @ b.T, ids, use_reentrant=False)
    return out


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(h, w)
        return h @ w.T

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        h, w = ctx.saved_tensors
        return grad @ w, grad.flatten(0, -2).T @ h.flatten(0, -2)


def custom(ids: Tensor, a: Tensor, b: Tensor, body: nn.Module) -> Tensor:
    out: Tensor = Product.apply(body(F.embedding(ids, a)), b)
    return out


# One form of the table, made once and read in both roles: the edges part above it.
def one_cast(ids: Tensor, a: Tensor, b: Tensor, body: nn.Module) -> Tensor:
    first = a.double()
    second = first if a is b else b.double()
    return body(F.embedding(ids, first).float()) @ second.float().T


def one_factor(ids: Tensor, a: Tensor, b: Tensor, body: nn.Module) -> Tensor:
    first = a * 0.5
    second = first if a is b else b * 0.5
    return body(first[ids]) @ second.T


def one_split(ids: Tensor, a: Tensor, b: Tensor, body: nn.Module) -> Tensor:
    def whole(t: Tensor) -> Tensor:
        low, high = t.split([10, VOCAB - 10])
        return torch.cat([low, high])

    first = whole(a)
    second = first if a is b else whole(b)
    return body(F.embedding(ids, first)) @ second.T


def one_sum(ids: Tensor, a: Tensor, b: Tensor, body: nn.Module) -> Tensor:
    first = a + a
    second = first if a is b else b + b
    return body(F.embedding(ids, first)) @ second.T


APART = (
    plain, indexed, one_hot, two_views, einsum, summed, in_pieces, sparse, twice, custom,
    reentrant, head_in_checkpoint, not_reentrant,
)  # fmt: skip
JOINED = (one_cast, one_factor, one_split, one_sum)


def lying(ids: Tensor, a: Tensor, b: Tensor, body: nn.Module) -> Tensor:
    """(width, vocab)."""
    return body(F.embedding(ids, a.T)) @ b


def looked_up(ids: Tensor) -> int:
    """Rows that get a gradient: here a token's row sees its own position alone, and the last has no target."""
    return len(ids[:, :-1].unique())


def batch(*, tokens: int = 12, seed: int = 3) -> Tensor:
    return torch.randint(0, VOCAB, (2, tokens // 2), generator=torch.Generator().manual_seed(seed))


def next_token_loss(logits: Tensor, ids: Tensor) -> Tensor:
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
