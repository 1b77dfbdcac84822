"""Every way of multiplying by the table to get logits."""

from typing import Any

import torch
import torch.nn.functional as F
from tests.torch.models.kit import LENGTH, VOCAB, WIDTH, Base, Truth, case, ids
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

T = "readouts"
PADDED = 48


@case(T, Truth(names=("embed.weight", "head.weight"), readout_bias=True))
class LinearModuleWithBias(Base):
    def __init__(self) -> None:
        super().__init__()
        del self.table
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.head = nn.Linear(WIDTH, VOCAB)
        self.head.weight = self.embed.weight

    def look(self, ids: Tensor) -> Tensor:
        return self.embed(ids)

    def read(self, h: Tensor) -> Tensor:
        return self.head(h)


@case(T, Truth(readout_bias=True))
class SeparateBias(Base):
    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(VOCAB))

    def read(self, h: Tensor) -> Tensor:
        return F.linear(h, self.table) + self.bias


@case(T, Truth(readout_bias=True))
class BiasInBuffer(Base):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("final_bias", torch.zeros(1, VOCAB))

    def read(self, h: Tensor) -> Tensor:
        return h @ self.table.t() + self.final_bias


@case(T, Truth(readout_bias=True))
class LogOfAPriorInABuffer(Base):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("prior", torch.linspace(0.1, 0.9, VOCAB))

    def read(self, h: Tensor) -> Tensor:
        return F.linear(h, self.table) + self.prior.log()


@case(T, Truth(readout_bias=True))
class BiasLookedUpAtEveryId(Base):
    def __init__(self) -> None:
        super().__init__()
        self.offsets = nn.Embedding(VOCAB, 1)

    def read(self, h: Tensor) -> Tensor:
        return F.linear(h, self.table) + self.offsets(torch.arange(VOCAB))[:, 0]


@case(T, Truth(readout_bias=True))
class BiasStackedAndAdded(Base):
    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.ones(VOCAB))

    def read(self, h: Tensor) -> Tensor:
        z = F.linear(h, self.table)
        return torch.stack([z, self.bias.expand_as(z)]).sum(0)


@case(T)
class AtTransposed(Base):
    def read(self, h: Tensor) -> Tensor:
        return h @ self.table.t()


@case(T)
class MatmulOfMT(Base):
    def read(self, h: Tensor) -> Tensor:
        return torch.matmul(h, self.table.mT)


@case(T)
class MmOfFlatHidden(Base):
    def read(self, h: Tensor) -> Tensor:
        return torch.mm(h.reshape(-1, WIDTH), self.table.T).view(*h.shape[:-1], VOCAB)


@case(T, Truth(readout_bias=True))
class Addmm(Base):
    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(VOCAB))

    def read(self, h: Tensor) -> Tensor:
        return torch.addmm(self.bias, h.reshape(-1, WIDTH), self.table.t()).view(*h.shape[:-1], VOCAB)


@case(T)
class Bmm(Base):
    def read(self, h: Tensor) -> Tensor:
        return torch.bmm(h, self.table.t().unsqueeze(0).expand(h.shape[0], -1, -1))


@case(T)
class EinsumBtdVd(Base):
    def read(self, h: Tensor) -> Tensor:
        return torch.einsum("btd,vd->btv", h, self.table)


@case(T)
class EinsumTableFirst(Base):
    def read(self, h: Tensor) -> Tensor:
        return torch.einsum("vd,btd->bvt", self.table, h).transpose(1, 2)


@case(T)
class EinsumEllipsis(Base):
    def read(self, h: Tensor) -> Tensor:
        return torch.einsum("...d,vd->...v", h, self.table)


@case(T)
class EinsumSplitWidth(Base):
    """Width cut into heads on both sides of the product."""

    def read(self, h: Tensor) -> Tensor:
        return torch.einsum("bthk,vhk->btv", h.unflatten(-1, (2, -1)), self.table.view(VOCAB, 2, -1))


@case(T)
class Tensordot(Base):
    def read(self, h: Tensor) -> Tensor:
        return torch.tensordot(h, self.table, dims=([2], [1]))


@case(T)
class TableOnTheLeft(Base):
    def read(self, h: Tensor) -> Tensor:
        return (self.table @ h.transpose(1, 2)).transpose(1, 2)


@case(T, Truth(numeric=False))
class ProductAndSum(Base):
    """Neither matmul nor einsum: broadcast, multiply, sum."""

    def read(self, h: Tensor) -> Tensor:
        return (h.unsqueeze(-2) * self.table).sum(-1)


@case(T, Truth(numeric=False))
class ConvolutionOfWidthOne(Base):
    def read(self, h: Tensor) -> Tensor:
        return F.conv1d(h.transpose(1, 2), self.table.unsqueeze(-1)).transpose(1, 2)


@case(T, Truth(vocab=PADDED))
class PaddedRowsCutFromTable(Base):
    def __init__(self) -> None:
        super().__init__(vocab=PADDED)

    def read(self, h: Tensor) -> Tensor:
        return F.linear(h, self.table[:VOCAB])


@case(T, Truth(vocab=PADDED))
class PaddedRowsCutFromLogits(Base):
    def __init__(self) -> None:
        super().__init__(vocab=PADDED)

    def read(self, h: Tensor) -> Tensor:
        return F.linear(h, self.table)[..., :VOCAB]


@case(T, Truth(numeric=False))
class PaddedRowsAddedAtEveryStep(Base):
    def read(self, h: Tensor) -> Tensor:
        return F.linear(h, F.pad(self.table, (0, 0, 0, PADDED - VOCAB)))[..., :VOCAB]


@case(T, Truth(smooth=False))
class CastTable(Base):
    def read(self, h: Tensor) -> Tensor:
        return F.linear(h.to(torch.bfloat16), self.table.to(torch.bfloat16)).float()


@case(T)
class TransposedCopyAtEveryStep(Base):
    def read(self, h: Tensor) -> Tensor:
        return h @ self.table.t().contiguous()


@case(T)
class LogitsInFloat(Base):
    def read(self, h: Tensor) -> Tensor:
        return F.log_softmax(F.linear(h, self.table).float(), -1)


@case(T, Truth(counts=(1, 1, 3)))
class ChunksOfPositions(Base):
    def read(self, h: Tensor) -> Tensor:
        return torch.cat([F.linear(part, self.table) for part in h.chunk(3, 1)], 1)


@case(T, Truth(counts=(1, 1, 4)))
class ChunksOfVocabulary(Base):
    def read(self, h: Tensor) -> Tensor:
        return torch.cat([F.linear(h, rows) for rows in self.table.split(10)], -1)


@case(T, Truth(counts=(1, 1, LENGTH)))
class TokenByToken(Base):
    def read(self, h: Tensor) -> Tensor:
        return torch.stack([F.linear(h[:, t], self.table) for t in range(h.shape[1])], 1)


@case(T, Truth(names=("table",)), inputs=lambda: (ids(), ids().flip(0)))
class LossOnly(Base):
    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        logits = super().forward(ids)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100)


@case(T, Truth(names=("table",)), inputs=lambda: (ids(), ids().flip(0)))
class LossByHand(Base):
    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        logits = super().forward(ids)
        picked = logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
        return (logits.logsumexp(-1) - picked).mean()


@case(T, Truth(counts=(1, 1, 2)), inputs=lambda: (ids(), ids().flip(0)))
class LossInChunks(Base):
    """Cross entropy a chunk at a time, so that no full matrix of logits ever exists."""

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        h = self.body(self.look(ids)).flatten(0, 1)
        pairs = zip(h.chunk(2), targets.flatten().chunk(2), strict=True)
        return sum(F.cross_entropy(F.linear(a, self.table), b, reduction="sum") for a, b in pairs) / len(h)


class FusedHead(torch.autograd.Function):
    """Logits and their gradient by hand, as fused kernels do."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, table: Tensor) -> Tensor:
        ctx.save_for_backward(h, table)
        return h @ table.t()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        h, table = ctx.saved_tensors
        return grad @ table, grad.flatten(0, 1).t() @ h.flatten(0, 1)


@case(T)
class FusedAutogradFunction(Base):
    def read(self, h: Tensor) -> Tensor:
        return FusedHead.apply(h, self.table)


@case(T)
class CheckpointedHead(Base):
    def read(self, h: Tensor) -> Tensor:
        return checkpoint(lambda x: F.linear(x, self.table), h, use_reentrant=False)


@case(T)
class CheckpointedBody(Base):
    def body(self, x: Tensor) -> Tensor:
        return checkpoint(super().body, x, use_reentrant=False)


@case(T)
class ReentrantCheckpointedHead(Base):
    """Runs the head under no_grad at first; the gradient comes when it is run again."""

    def read(self, h: Tensor) -> Tensor:
        return checkpoint(lambda x: F.linear(x, self.table), h, use_reentrant=True)


@case(
    T,
    (
        Truth(names=("words.weight", "head.weight"), counts=(1, 1, 1)),
        Truth(names=("tags.weight", "tag_head.weight"), vocab=11, width=6, counts=(1, 1, 1)),
    ),
    inputs=lambda: (ids(), ids(11)),
)
class TwoTiedTables(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.tags = nn.Embedding(VOCAB, WIDTH), nn.Embedding(11, 6)
        self.mix, self.down = nn.Linear(WIDTH + 6, WIDTH), nn.Linear(WIDTH, 6)
        self.norm = nn.LayerNorm(WIDTH)
        self.head, self.tag_head = nn.Linear(WIDTH, VOCAB, bias=False), nn.Linear(6, 11, bias=False)
        self.head.weight, self.tag_head.weight = self.words.weight, self.tags.weight

    def forward(self, words: Tensor, tags: Tensor) -> tuple[Tensor, Tensor]:
        h = self.norm(self.mix(torch.cat([self.words(words), self.tags(tags)], -1)))
        return self.head(h), self.tag_head(torch.tanh(self.down(h)))


@case(T, Truth(names=("embed.weight",), width=4))
class FactorisedBothWays(Base):
    """A narrow table, projected up behind the lookup and down before the readout."""

    def __init__(self) -> None:
        super().__init__()
        del self.table
        self.embed = nn.Embedding(VOCAB, 4)
        self.project_in, self.project_out = nn.Linear(4, WIDTH, bias=False), nn.Linear(WIDTH, 4, bias=False)

    def look(self, ids: Tensor) -> Tensor:
        return self.project_in(self.embed(ids))

    def read(self, h: Tensor) -> Tensor:
        return F.linear(self.project_out(h), self.embed.weight)


@case(T, Truth(names=("embed.weight",), width=4, readout_bias=True, norm_after_lookup=True))
class FactorisedWithTransform(Base):
    """Narrow table, normalised and projected up; dense layer, activation and norm before the readout."""

    def __init__(self) -> None:
        super().__init__()
        del self.table
        self.embed, self.first = nn.Embedding(VOCAB, 4), nn.LayerNorm(4)
        self.up, self.dense, self.last = nn.Linear(4, WIDTH), nn.Linear(WIDTH, 4), nn.LayerNorm(4)
        self.bias = nn.Parameter(torch.zeros(VOCAB))

    def look(self, ids: Tensor) -> Tensor:
        return self.up(self.first(self.embed(ids)))

    def read(self, h: Tensor) -> Tensor:
        return F.linear(self.last(F.gelu(self.dense(h))), self.embed.weight, self.bias)
