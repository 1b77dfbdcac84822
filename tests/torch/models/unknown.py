"""Multiplications that are no constant: the answer is None, with the reason in the notes."""

import math

import torch
import torch.nn.functional as F
from tests.torch.models.factors import Scaled
from tests.torch.models.kit import BATCH, LENGTH, VOCAB, WIDTH, Base, Truth, case, ids
from torch import Tensor, nn

T = "unknown"


def unknown(name, method, fn, *, setup=None, numeric=True, inputs=None):
    def init(self):
        Scaled.__init__(self)
        if setup:
            setup(self)

    made = type(name, (Scaled,), {"__init__": init, method: fn})
    look, read = (None, 1.0) if method == "rows" else (1.0, None)
    case(T, Truth(lookup_factor=look, readout_factor=read, numeric=numeric, counts=None), inputs)(made)


def gain(m):
    m.gain = nn.Parameter(torch.linspace(0.5, 1.5, WIDTH))


def rows_gain(m):
    m.gain = nn.Parameter(torch.linspace(0.5, 1.5, VOCAB))


unknown("VectorOnTheRows", "rows", lambda m, x: x * m.gain, setup=gain)
unknown("FilledVectorChangedInPart", "rows", lambda _, x: x * torch.ones(WIDTH).index_fill(0, torch.tensor(1), 2.0))
unknown("VectorOnTheLogits", "logits", lambda m, z: z * m.gain, setup=rows_gain)
unknown("RootOfLength", "rows", lambda _, x: x * x.shape[1] ** 0.5, numeric=False)
unknown("LengthThroughTensor", "rows", lambda _, x: x * torch.tensor(float(x.shape[1])), numeric=False)
unknown("LogOfLengthOnHidden", "hidden", lambda _, h: h * (1 + 0.1 * math.log(h.shape[1] / 32)), numeric=False)
unknown("BatchSizeOnLogits", "logits", lambda _, z: z / z.shape[0], numeric=False)


@case(T, Truth(lookup_factor=None, numeric=False, counts=None))
class MeanOfIdsAsNumber(Base):
    def look(self, ids: Tensor) -> Tensor:
        return super().look(ids) * ids.float().mean().item()


@case(T, Truth(lookup_factor=None, numeric=False, counts=None))
class MeanOfIdsAsTensor(Base):
    def look(self, ids: Tensor) -> Tensor:
        return super().look(ids) * ids.float().mean()


@case(
    T,
    Truth(lookup_factor=None, numeric=False, counts=None),
    inputs=lambda: (ids(), torch.ones(BATCH, LENGTH)),
)
class SumOfMask(Base):
    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        return self.read(self.body(self.look(ids) * mask.sum() / LENGTH))


@case(T, Truth(readout_factor=None, numeric=False, counts=None), inputs=lambda: (ids(), torch.tensor(0.7)))
class TemperatureAsInput(Base):
    def forward(self, ids: Tensor, temperature: Tensor) -> Tensor:
        return super().forward(ids) / temperature


@case(T, Truth(readout_factor=None, numeric=False, counts=None))
class SizeOfHiddenState(Base):
    """The logits are divided by a number measured in the hidden state."""

    def read(self, h: Tensor) -> Tensor:
        return super().read(h) / h.detach().abs().max()


@case(T, Truth(lookup_factor=None, counts=None, numeric=False))
class TwoUsesThatDiffer(Base):
    """The table has no one factor; each record has its own."""

    def forward(self, ids: Tensor) -> Tensor:
        memory = torch.tanh(self.mid(self.table[ids] * 2.0))
        return self.read(self.norm(self.table[ids.flip(1)] * 3.0 + memory))


@case(T, Truth(lookup_factor=None, counts=None, numeric=False))
class SmoothedOneHot(Base):
    """Every row of the table is mixed in."""

    def look(self, ids: Tensor) -> Tensor:
        one_hot = F.one_hot(ids, VOCAB).to(self.table.dtype)
        return (one_hot * 0.9 + 0.1 / VOCAB) @ self.table


@case(T, Truth(readout_factor=None, counts=None, numeric=False))
class TwoProductsSummed(Base):
    """Two hidden states share a table, and their logits are added."""

    def read(self, h: Tensor) -> Tensor:
        return F.linear(h, self.table) * 0.5 + F.linear(torch.tanh(h), self.table) * 0.5
