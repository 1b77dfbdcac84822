"""Models with no tied vocabulary table, however much one matrix works twice in them; and one that has.

`Truth.state` "none" means that no table may be tied; the readers of `names`, where given, are still seen.
"""

from typing import Any

import torch
import torch.nn.functional as F
from tests.torch.models.kit import LENGTH, VOCAB, WIDTH, Base, Truth, case, ids
from torch import Tensor, nn

T = "none"
NOTHING = Truth(names=(), state="none", numeric=False)


def noise(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(5))


@case(T, NOTHING, inputs=lambda: (noise(2, 3, 16, 16),))
class VisionConvolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
        self.head = nn.Linear(8, 10)

    def forward(self, image: Tensor) -> Tensor:
        return self.head(self.body(image).flatten(1))


@case(T, NOTHING, inputs=lambda: (noise(2, 3, 16, 16),))
class VisionTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, WIDTH, 4, 4)
        self.cls, self.position = nn.Parameter(torch.zeros(1, 1, WIDTH)), nn.Embedding(17, WIDTH)
        self.layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, batch_first=True)
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, image: Tensor) -> Tensor:
        x = self.patch(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.position(torch.arange(17))
        return self.head(self.layer(x)[:, 0])


@case(T, NOTHING, inputs=lambda: (noise(2, 1, 64),))
class AudioClassTokens(nn.Module):
    """Wave in, one distribution over letters a frame out (as CTC wants it)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.rnn = nn.Conv1d(1, WIDTH, 4, 4), nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.letters = nn.Linear(WIDTH, 29)

    def forward(self, wave: Tensor) -> Tensor:
        return self.letters(self.rnn(self.conv(wave).transpose(1, 2))[0]).log_softmax(-1)


@case(T, NOTHING, inputs=lambda: (noise(4, 12),))
class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(12, 20), nn.ReLU(), nn.Linear(20, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


@case(T, NOTHING, inputs=lambda: (noise(4, 30),))
class AutoencoderWithTransposedWeights(nn.Module):
    """One matrix encodes and, transposed, decodes: shared, but no vocabulary table."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, 30) * 0.2)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(torch.relu(F.linear(x, self.weight)), self.weight.t())


@case(T, NOTHING, inputs=lambda: (noise(4, 6, WIDTH),))
class VectorQuantiser(nn.Module):
    """Codes are the nearest rows: the indices come from activations, not from token ids."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.codebook = nn.Embedding(VOCAB, WIDTH)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.encode(x)
        codes = self.codebook.weight
        distance = z.pow(2).sum(-1, keepdim=True) - 2 * z @ codes.t() + codes.pow(2).sum(-1)
        picked = distance.argmin(-1)
        quantised = z + (self.codebook(picked) - z).detach()
        return self.decode(quantised), picked


@case(T, NOTHING, inputs=lambda: (noise(4, 6, WIDTH),))
class VectorQuantiserWithLogits(nn.Module):
    """The likenesses to all codes are returned too; still the rows are read by computed indices."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.codebook = nn.Linear(WIDTH, WIDTH), nn.Parameter(torch.randn(VOCAB, WIDTH))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        likeness = F.linear(self.encode(x), self.codebook)
        return self.codebook[likeness.argmax(-1)], likeness


@case(T, NOTHING, inputs=lambda: (noise(4, WIDTH),))
class ProductKeyMemory(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.keys = nn.Parameter(torch.randn(2, 6, WIDTH // 2))
        self.values = nn.Embedding(36, WIDTH)
        self.out = nn.Linear(WIDTH, 3)

    def forward(self, q: Tensor) -> Tensor:
        halves = [F.linear(part, k) for part, k in zip(q.chunk(2, -1), self.keys, strict=True)]
        (a, i), (b, j) = (h.topk(2, -1) for h in halves)
        scores = (a.unsqueeze(-1) + b.unsqueeze(-2)).flatten(1)
        slots = (i.unsqueeze(-1) * 6 + j.unsqueeze(-2)).flatten(1)
        return self.out((scores.softmax(-1).unsqueeze(-1) * self.values(slots)).sum(1))


@case(
    T,
    Truth(names=("users.weight", "items.weight"), state="none"),
    inputs=lambda: (ids(11)[:, 0], ids()[:, 0]),
)
class TwoTowers(nn.Module):
    """Users and items are looked up and multiplied row by row; no row meets all the others."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(11, WIDTH), nn.Embedding(VOCAB, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        return (self.up(self.users(user)) * self.down(self.items(item))).sum(-1)


@case(T, Truth(names=("items",), state="none"), inputs=lambda: (ids(),))
class InBatchContrast(nn.Module):
    """Every looked-up row against every other of the batch: the axis of the logits is the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.items, self.mid = nn.Parameter(torch.randn(VOCAB, WIDTH)), nn.Linear(WIDTH, WIDTH)

    def forward(self, ids: Tensor) -> Tensor:
        rows = self.items[ids].flatten(0, 1)
        return self.mid(rows) @ rows.t()


@case(T, Truth(names=("table",), state="none"))
class PositionTableAsKeys(Base):
    """The position table is added to the stream and, a second time, serves attention as its keys."""

    def __init__(self) -> None:
        super().__init__()
        self.position = nn.Parameter(torch.randn(16, WIDTH))
        self.head = nn.Linear(WIDTH, VOCAB)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.look(ids) + self.position[torch.arange(ids.shape[1])]
        attention = F.linear(x, self.position[: ids.shape[1]]).softmax(-1)
        return self.head(self.norm(attention @ x))


@case(T, Truth(names=("table",), state="none"))
class SoftWords(Base):
    """Attention over the whole table and the mean of its rows: the vocabulary is summed away again."""

    def __init__(self) -> None:
        super().__init__()
        self.classes = nn.Linear(WIDTH, 3)

    def read(self, h: Tensor) -> Tensor:
        return self.classes(F.linear(h, self.table).softmax(-1) @ self.table)


@case(T, Truth(names=("table",), state="none"))
class MixtureOfSoftmaxesUntied(Base):
    def __init__(self) -> None:
        super().__init__()
        self.spread, self.prior = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, 3)
        self.output = nn.Linear(WIDTH, VOCAB, bias=False)

    def read(self, h: Tensor) -> Tensor:
        each = self.output(torch.tanh(self.spread(h)).unflatten(-1, (3, WIDTH))).softmax(-1)
        return (self.prior(h).softmax(-1).unsqueeze(-1) * each).sum(-2).log()


@case(T, Truth(names=("nodes",), state="none"), inputs=lambda: (torch.arange(12), noise(12, 12).softmax(-1)))
class GraphOfNodes(nn.Module):
    """Node rows passed along edges; links are scored between computed states."""

    def __init__(self) -> None:
        super().__init__()
        self.nodes, self.mid = nn.Parameter(torch.randn(12, WIDTH)), nn.Linear(WIDTH, WIDTH)

    def forward(self, ids: Tensor, edges: Tensor) -> Tensor:
        h = torch.relu(self.mid(edges @ self.nodes[ids]))
        return h @ h.t()


@case(T, Truth(names=("table",), state="none"))
class TextClassifier(Base):
    def __init__(self) -> None:
        super().__init__()
        self.classes = nn.Linear(WIDTH, 3)

    def read(self, h: Tensor) -> Tensor:
        return self.classes(h.mean(1))


@case(T, Truth(names=("table",), state="none"))
class SpeedByScore(Base):
    """The table scores each word, but only the score's sum is kept: no logits leave the model."""

    def read(self, h: Tensor) -> Tensor:
        return F.linear(h, self.table).sum(-1)


@case(T, Truth(names=("items.weight",), vocab=VOCAB), inputs=lambda: (ids(),))
class SequentialRecommender(nn.Module):
    """Items instead of words: read at both ends, so it *is* a tied table."""

    def __init__(self) -> None:
        super().__init__()
        self.items, self.position = nn.Embedding(VOCAB, WIDTH, padding_idx=0), nn.Embedding(LENGTH, WIDTH)
        self.rnn = nn.GRU(WIDTH, WIDTH, batch_first=True)

    def forward(self, history: Tensor) -> Any:
        h = self.items(history) + self.position(torch.arange(history.shape[1]))
        return self.rnn(h)[0][:, -1] @ self.items.weight.t()


@case(T, Truth(names=("table",)))
class MixtureOfSoftmaxesTied(Base):
    """Three products with one table, mixed after their softmaxes; the vocabulary axis survives."""

    def __init__(self) -> None:
        super().__init__()
        self.spread, self.prior = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, 3)

    def read(self, h: Tensor) -> Tensor:
        each = F.linear(torch.tanh(self.spread(h)).unflatten(-1, (3, WIDTH)), self.table).softmax(-1)
        return (self.prior(h).softmax(-1).unsqueeze(-1) * each).sum(-2).log()
