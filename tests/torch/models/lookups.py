"""Every way of reading rows by token id."""

from typing import Any

import torch
import torch.nn.functional as F
from tests.torch.models.kit import BATCH, LENGTH, VOCAB, WIDTH, Base, Truth, case, ids
from torch import Tensor, nn

T = "lookups"


@case(T)
class FunctionalEmbedding(Base):
    pass


@case(T, Truth(names=("embed.weight",)))
class EmbeddingModule(Base):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH, padding_idx=0)
        del self.table

    def look(self, ids: Tensor) -> Tensor:
        return self.embed(ids)

    def read(self, h: Tensor) -> Tensor:
        return F.linear(h, self.embed.weight)


@case(T, Truth(names=("bag.weight",)))
class EmbeddingBag(Base):
    """A bag of words on the input side, one prediction a bag."""

    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(VOCAB, WIDTH, mode="mean")
        del self.table

    def look(self, ids: Tensor) -> Tensor:
        return self.bag(ids)

    def read(self, h: Tensor) -> Tensor:
        return F.linear(h, self.bag.weight)


@case(T)
class Indexing(Base):
    def look(self, ids: Tensor) -> Tensor:
        return self.table[ids]


@case(T)
class IndexingFlatIds(Base):
    def look(self, ids: Tensor) -> Tensor:
        return self.table[ids.reshape(-1)].view(*ids.shape, WIDTH)


@case(T)
class IndexingShiftedIds(Base):
    """Ids through integer ops: a shift to the right with a start token, an offset, a clamp."""

    def look(self, ids: Tensor) -> Tensor:
        shifted = torch.cat([torch.zeros_like(ids[:, :1]), ids[:, :-1]], 1)
        return self.table[(shifted + 1).clamp(max=VOCAB - 1)]


@case(T)
class IndexSelect(Base):
    def look(self, ids: Tensor) -> Tensor:
        return torch.index_select(self.table, 0, ids.flatten()).unflatten(0, ids.shape)


@case(T)
class GatherWithExpandedIds(Base):
    def look(self, ids: Tensor) -> Tensor:
        index = ids.reshape(-1, 1).expand(-1, WIDTH)
        return self.table.gather(0, index).view(*ids.shape, WIDTH)


@case(T)
class OneHotProduct(Base):
    def look(self, ids: Tensor) -> Tensor:
        return F.one_hot(ids, VOCAB).to(self.table.dtype) @ self.table


@case(T)
class OneHotEinsum(Base):
    def look(self, ids: Tensor) -> Tensor:
        return torch.einsum("btv,vd->btd", F.one_hot(ids, VOCAB).float(), self.table)


@case(T)
class OneHotByScatter(Base):
    def look(self, ids: Tensor) -> Tensor:
        hot = torch.zeros(*ids.shape, VOCAB).scatter(-1, ids.unsqueeze(-1), 1.0)
        return hot @ self.table


@case(T)
class OneHotByComparison(Base):
    def look(self, ids: Tensor) -> Tensor:
        return (ids.unsqueeze(-1) == torch.arange(VOCAB)).to(self.table.dtype) @ self.table


@case(T)
class RowsOfAnIdentityMatrix(Base):
    def look(self, ids: Tensor) -> Tensor:
        return torch.eye(VOCAB, dtype=self.table.dtype)[ids] @ self.table


@case(T)
class BagOfWordsCounts(Base):
    """Word counts times the table: a lookup that adds rows up."""

    def look(self, ids: Tensor) -> Tensor:
        return F.one_hot(ids, VOCAB).float().sum(1) @ self.table


@case(T, Truth(vocab_axis=1))
class ColumnsOfWidthFirstTable(Base):
    """The table is stored as (width, vocab)."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(WIDTH, VOCAB) * 0.3)

    def look(self, ids: Tensor) -> Tensor:
        return self.table[:, ids].permute(1, 2, 0)

    def read(self, h: Tensor) -> Tensor:
        return h @ self.table


@case(T, Truth(norm_after_lookup=True))
class PositionsThenLayerNorm(Base):
    def __init__(self) -> None:
        super().__init__()
        self.position = nn.Embedding(LENGTH, WIDTH)
        self.first = nn.LayerNorm(WIDTH)

    def look(self, ids: Tensor) -> Tensor:
        rows = F.embedding(ids, self.table) + self.position(torch.arange(ids.shape[1]))
        return F.dropout(self.first(rows), 0.1, self.training)


@case(T, Truth(norm_after_lookup=True))
class HandWrittenRmsNorm(Base):
    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.rand(WIDTH) + 0.5)

    def look(self, ids: Tensor) -> Tensor:
        rows = self.table[ids].float()
        return self.gain * (rows * torch.rsqrt(rows.pow(2).mean(-1, keepdim=True) + 1e-6))


@case(T, Truth(norm_after_lookup=True))
class RowsOfUnitLength(Base):
    def look(self, ids: Tensor) -> Tensor:
        return F.normalize(self.table[ids], dim=-1)


@case(T)
class PreNormResidual(Base):
    """The rows enter the stream as they are, though a normalisation reads them too."""

    def body(self, x: Tensor) -> Tensor:
        return self.norm(x + self.mid(F.layer_norm(x, (WIDTH,))))


@case(T)
def transposed_sequence_first() -> Any:
    class SequenceFirst(Base):
        def look(self, ids: Tensor) -> Tensor:
            return F.embedding(ids.t().contiguous(), self.table)

        def read(self, h: Tensor) -> Tensor:
            return F.linear(h, self.table).transpose(0, 1)

    return SequenceFirst(), (ids(),), (Truth(),)


@case(T, Truth(counts=(1, 1, 1)))
class MaskedRows(Base):
    """Rows of padding are zeroed; a mask is passed through."""

    def look(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.table).masked_fill((ids == 0).unsqueeze(-1), 0.0)


@case(T, Truth(counts=(2, 1, 1)))
class EncoderAndDecoderSides(Base):
    def forward(self, ids: Tensor) -> Tensor:
        memory = torch.tanh(self.mid(F.embedding(ids, self.table)))
        x = F.embedding(ids.flip(1), self.table)
        return self.read(self.norm(x + memory.mean(1, keepdim=True)))


@case(T, Truth(names=("shared.weight", "encoder.weight", "decoder.weight", "head.weight"), counts=(2, 1, 1)))
class FourModules(Base):
    """One table that four modules hold, as encoder-decoder models do."""

    def __init__(self) -> None:
        super().__init__()
        del self.table
        self.shared = nn.Embedding(VOCAB, WIDTH)
        self.encoder, self.decoder = nn.Embedding(VOCAB, WIDTH), nn.Embedding(VOCAB, WIDTH)
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)
        self.encoder.weight = self.decoder.weight = self.head.weight = self.shared.weight

    def forward(self, ids: Tensor) -> Tensor:
        memory = torch.tanh(self.mid(self.encoder(ids)))
        return self.head(self.norm(self.decoder(ids) + memory.sum(1, keepdim=True)))


@case(T)
class LastTokenOnly(Base):
    def body(self, x: Tensor) -> Tensor:
        return super().body(x)[:, -1]


@case(T, Truth(vocab=VOCAB, names=("table",), counts=None, numeric=False))
class ExtendedVocabulary(Base):
    """Rows for new tokens stand in a second parameter that is laid below the first at every step."""

    def __init__(self) -> None:
        super().__init__()
        self.new = nn.Parameter(torch.randn(3, WIDTH) * 0.3)

    def look(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, torch.cat([self.table, self.new]))

    def read(self, h: Tensor) -> Tensor:
        return F.linear(h, torch.cat([self.table, self.new]))


@case(T, inputs=lambda: {"ids": ids(), "mask": torch.ones(BATCH, LENGTH, dtype=torch.bool)})
class KeywordInputs(Base):
    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        return self.read(self.body(self.look(ids) * mask.unsqueeze(-1)))
