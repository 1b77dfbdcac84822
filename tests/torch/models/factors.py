"""Every way of multiplying by a constant, and where it may stand. The number is worked out by hand."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from tests.torch.models.kit import BATCH, VOCAB, WIDTH, Base, Truth, case, ids
from torch import Tensor, nn

T = "factors"


@dataclass
class Settings:
    look_by: float = 12.0
    divide_by: float = 8.0


class Scaled(Base):
    """Factors by three methods: on the rows, on the hidden state, on the logits."""

    def rows(self, x: Tensor) -> Tensor:
        return x

    def hidden(self, h: Tensor) -> Tensor:
        return h

    def logits(self, z: Tensor) -> Tensor:
        return z

    def look(self, ids: Tensor) -> Tensor:
        return self.rows(super().look(ids))

    def read(self, h: Tensor) -> Any:
        return self.logits(super().read(self.hidden(h)))


def on(
    method: str, name: str, fn: Any, *, look: float = 1.0, read: float = 1.0, setup: Any = None, **truth: Any
) -> None:
    """Register a model with one method replaced."""

    def init(self: Any) -> None:
        Scaled.__init__(self)
        if setup:
            setup(self)

    made = type(name, (Scaled,), {"__init__": init, method: fn})
    case(T, Truth(lookup_factor=look, readout_factor=read, **truth))(made)


ROOT = math.sqrt(WIDTH)

# on the rows
on("rows", "PythonNumber", lambda _, x: x * 3.0, look=3.0)
on("rows", "NumberOnTheLeft", lambda _, x: 3 * x, look=3.0)
on("rows", "RootOfWidth", lambda _, x: x * math.sqrt(x.shape[-1]), look=ROOT)
on(
    "rows",
    "RootOfWidthByTorch",
    lambda _, x: x * torch.sqrt(torch.tensor(x.shape[-1], dtype=x.dtype)),
    look=ROOT,
)
on("rows", "NumpyScalar", lambda _, x: x * float(np.float32(2.5)), look=2.5)
on("rows", "NumpyFloat64", lambda _, x: x * np.float64(2.5), look=2.5)
on(
    "rows",
    "FromSettings",
    lambda m, x: x * m.s.look_by,
    look=12.0,
    setup=lambda m: setattr(m, "s", Settings()),
)
on(
    "rows",
    "Buffer",
    lambda m, x: x * m.by,
    look=ROOT,
    setup=lambda m: m.register_buffer("by", torch.tensor(ROOT)),
)
on(
    "rows", "BufferCast", lambda m, x: x * m.by.to(x.dtype), look=ROOT,
    setup=lambda m: m.register_buffer("by", torch.tensor(ROOT, dtype=torch.float64), persistent=False),
)  # fmt: skip
on(
    "rows",
    "BufferOfHalfPrecision",
    lambda m, x: x * m.by.to(x.dtype),
    look=2.828125,
    setup=lambda m: m.register_buffer("by", torch.tensor(ROOT, dtype=torch.bfloat16)),
)
on("rows", "ZeroDimMadeInForward", lambda _, x: x * torch.tensor(0.5), look=0.5)
on("rows", "OneElement", lambda _, x: x * torch.tensor([0.25]), look=0.25)
on("rows", "OneElementOfThreeAxes", lambda _, x: x * torch.ones(1, 1, 1).mul(7.0), look=7.0)
on("rows", "TorchFull", lambda _, x: x * torch.full((1,), 1.5), look=1.5)
on(
    "rows",
    "Parameter",
    lambda m, x: x * m.by,
    look=1.75,
    setup=lambda m: setattr(m, "by", nn.Parameter(torch.tensor(1.75))),
)
on(
    "rows",
    "ExpOfParameter",
    lambda m, x: x * m.by.exp(),
    look=math.exp(0.3),
    setup=lambda m: setattr(m, "by", nn.Parameter(torch.tensor(0.3))),
)
on(
    "rows",
    "SoftplusOfParameter",
    lambda m, x: x * F.softplus(m.by),
    look=math.log1p(math.exp(0.3)),
    setup=lambda m: setattr(m, "by", nn.Parameter(torch.tensor([0.3]))),
)
on("rows", "Chain", lambda _, x: ((x * 2.0).float() / 8.0).view(BATCH, -1, WIDTH) * 3, look=0.75)
on("rows", "Division", lambda _, x: x / 4, look=0.25)
on("rows", "DivisionByTensor", lambda _, x: torch.div(x, torch.tensor(4.0)), look=0.25)
on("rows", "Negative", lambda _, x: x * -1.5, look=-1.5)
on("rows", "Negated", lambda _, x: -x, look=-1.0)
on("rows", "Subtracted", lambda _, x: x - 3 * x, look=-2.0)
on("rows", "SumWithItself", lambda _, x: x + x, look=2.0)
on("rows", "SumOfParts", lambda _, x: x + 0.5 * x, look=1.5)
on("rows", "AlphaOfAdd", lambda _, x: torch.add(x, x, alpha=3.0), look=4.0)
on("rows", "HalfWayToPositions", lambda m, x: torch.lerp(m.at[: x.shape[1]].expand_as(x), x, 0.5), look=0.5,
   setup=lambda m: setattr(m, "at", nn.Parameter(torch.randn(5, WIDTH))))  # fmt: skip
on("rows", "AThirdAwayFromPositions", lambda m, x: torch.lerp(x, m.at[: x.shape[1]].expand_as(x), m.by), look=2 / 3,
   setup=lambda m: (setattr(m, "at", nn.Parameter(torch.randn(5, WIDTH))),
                    setattr(m, "by", nn.Parameter(torch.tensor(1 / 3)))))  # fmt: skip
on("rows", "BeyondItself", lambda _, x: torch.lerp(x * 0.5, x, 3.0), look=2.0)
on("rows", "AverageWithPositionsAndSegment", lambda m, x: torch.stack([x, m.at[: x.shape[1]].expand_as(x),
   m.kind.expand_as(x)]).mean(0), look=1 / 3, setup=lambda m: (setattr(m, "at", nn.Parameter(torch.randn(5, WIDTH))),
   setattr(m, "kind", nn.Parameter(torch.randn(WIDTH)))), numeric=False)  # fmt: skip
on("hidden", "GainOfOnesWithoutANorm", lambda m, h: torch.tanh(h) * m.gain,
   setup=lambda m: setattr(m, "gain", nn.Parameter(torch.ones(WIDTH))))  # fmt: skip
on("rows", "MulInPlace", lambda _, x: x.mul_(3.0), look=3.0)
on("rows", "DivInPlaceOnView", lambda _, x: (x.view(-1).div_(4.0), x)[1], look=0.25)
on("rows", "ImulOperator", lambda m, x: m.imul(x), look=6.0, setup=lambda m: setattr(m, "imul", _imul))
on(
    "rows",
    "ScaleThenPositionsThenNorm",
    lambda m, x: F.layer_norm(6 * x + m.position[: x.shape[1]], (WIDTH,)),
    look=6.0,
    norm_after_lookup=True,
    setup=lambda m: setattr(m, "position", nn.Parameter(torch.randn(5, WIDTH))),
)
on("rows", "BehindTheNormDoesNotCount", lambda _, x: 5 * F.layer_norm(x, (WIDTH,)), norm_after_lookup=True)


def _imul(x: Tensor) -> Tensor:
    x *= 6.0
    return x


# on the hidden state
on("hidden", "HiddenNumber", lambda _, h: h * WIDTH**-0.5, read=1 / ROOT)
on("hidden", "HiddenDivided", lambda _, h: h / 10, read=0.1)
on("hidden", "HiddenNegativeInPlace", lambda _, h: h.mul_(-0.5), read=-0.5)
on("hidden", "HiddenCastAndScaled", lambda _, h: (h.double() * 0.3).float(), read=0.3)
on("hidden", "HiddenDropoutThenScale", lambda _, h: F.dropout(h, 0.5, training=False) * 0.2, read=0.2)

# on the logits
on("logits", "LogitsNumber", lambda _, z: z * 0.0625, read=0.0625)
on(
    "logits",
    "LogitsDivided",
    lambda m, z: z / m.s.divide_by,
    read=0.125,
    setup=lambda m: setattr(m, "s", Settings()),
)
on("logits", "LogitsInPlace", lambda _, z: z.div_(8), read=0.125)
on("logits", "LogitsCastThenScaled", lambda _, z: z.double() * 0.5, read=0.5)
on("logits", "LogitsSlicedThenScaled", lambda _, z: z[:, -1:, :30] * 0.5, read=0.5)
on(
    "logits",
    "LogitsScaledByBuffer",
    lambda m, z: z * m.by,
    read=0.125,
    setup=lambda m: m.register_buffer("by", torch.tensor(0.125)),
)
on(
    "logits",
    "LogitsTemperatureParameter",
    lambda m, z: z * m.log.exp(),
    read=math.exp(1.2),
    setup=lambda m: setattr(m, "log", nn.Parameter(torch.tensor(1.2))),
)
on("logits", "LogitsSoftmaxAfterScale", lambda _, z: (z / 0.5).softmax(-1), read=2.0)
on(
    "logits",
    "BiasThenScale",
    lambda m, z: (z + m.bias) * 0.5,
    read=0.5,
    readout_bias=True,
    setup=lambda m: setattr(m, "bias", nn.Parameter(torch.randn(VOCAB))),
)


@case(T, Truth(lookup_factor=0.5, readout_factor=0.5))
class OnTheTableInBothRoles(Base):
    def look(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.table * 0.5)

    def read(self, h: Tensor) -> Tensor:
        return F.linear(h, self.table * 0.5)


@case(T, Truth(readout_factor=-0.25))
class OnTheTableInTheReadout(Base):
    def read(self, h: Tensor) -> Tensor:
        return h @ (self.table.t() / -4)


@case(T, Truth(readout_factor=0.2 * 0.5 * 3.0, lookup_factor=ROOT))
class InEveryPlaceAtOnce(Base):
    def look(self, ids: Tensor) -> Tensor:
        return self.table[ids] * ROOT

    def read(self, h: Tensor) -> Tensor:
        return 3.0 * ((h * 0.2) @ (0.5 * self.table).t())


@case(T, Truth(readout_factor=0.5, readout_bias=True))
class AlphaOfAddmm(Base):
    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(VOCAB))

    def read(self, h: Tensor) -> Tensor:
        return torch.addmm(self.bias, h.reshape(-1, WIDTH), self.table.t(), alpha=0.5)


@case(T, Truth(readout_factor=-2.0))
class AlphaOfBaddbmm(Base):
    def read(self, h: Tensor) -> Tensor:
        weights = self.table.t().expand(h.shape[0], -1, -1)
        return torch.baddbmm(torch.empty(h.shape[0], h.shape[1], VOCAB), h, weights, beta=0.0, alpha=-2.0)


@case(T, Truth(lookup_factor=-4.0, readout_factor=-0.5))
class TwoNegativesStayTwo(Base):
    def look(self, ids: Tensor) -> Tensor:
        return self.table[ids] * -4

    def read(self, h: Tensor) -> Tensor:
        return F.linear(h, self.table) * -0.5


@case(T, Truth(lookup_factor=2.0, counts=(1, 1, 1)))
class SubmoduleScales(Base):
    """An embedding class that scales inside its own forward."""

    class Words(nn.Embedding):
        def forward(self, ids: Tensor) -> Tensor:
            return super().forward(ids) * 2.0

    def __init__(self) -> None:
        super().__init__()
        self.words = self.Words(VOCAB, WIDTH)
        self.table = self.words.weight

    def look(self, ids: Tensor) -> Tensor:
        return self.words(ids)


assert ids().shape[0] == BATCH


# vectors whose elements are known to be equal


def eights(m: Any) -> None:
    m.by = nn.Parameter(torch.full((WIDTH,), 2.0))


on("rows", "UniformVector", lambda m, x: x * m.by, look=2.0, setup=eights)
on("rows", "UniformVectorScaledAndViewed", lambda m, x: x * (m.by * 4).view(1, 1, -1), look=8.0, setup=eights)
on("rows", "UniformVectorViewedFirst", lambda m, x: x / m.by.view(1, 1, -1), look=0.5, setup=eights)
on("rows", "FilledVector", lambda _, x: x * torch.full((WIDTH,), 8.0), look=8.0)
on("rows", "FilledLikeTheRows", lambda _, x: x * torch.full_like(x, 8.0), look=8.0)
on("rows", "FilledWithOnes", lambda _, x: x * torch.ones(WIDTH) * 3, look=3.0)
on("rows", "FilledInPlace", lambda _, x: x * torch.empty(WIDTH).fill_(0.25), look=0.25)


# masks that carry a number, one-hot matrices of it, dropout written out


@case(T, Truth(lookup_factor=ROOT))
class MaskTimesANumber(Base):
    def look(self, ids: Tensor) -> Tensor:
        return super().look(ids) * ((ids >= 0) * ROOT)[..., None]


@case(T, Truth(lookup_factor=3.0))
class ChoiceOfANumber(Base):
    def look(self, ids: Tensor) -> Tensor:
        return super().look(ids) * torch.where(ids >= 0, 3.0, 0.0)[..., None]


@case(T, Truth(lookup_factor=0.25, numeric=False))  # measurements start behind the product
class DividedOneHot(Base):
    def look(self, ids: Tensor) -> Tensor:
        return (F.one_hot(ids, VOCAB).to(self.table.dtype) / 4) @ self.table


@case(T, Truth(lookup_factor=2.0, numeric=False))
class ChosenOneHot(Base):
    def look(self, ids: Tensor) -> Tensor:
        return torch.where(ids[..., None] == torch.arange(VOCAB), 2.0, 0.0).to(self.table.dtype) @ self.table


@case(T, Truth(lookup_factor=2.0, numeric=False))
class ScatteredNumber(Base):
    def look(self, ids: Tensor) -> Tensor:
        nothing = self.table.new_zeros((*ids.shape, VOCAB))
        return nothing.scatter(-1, ids[..., None], 2.0) @ self.table


@case(T, Truth(lookup_factor=0.5, numeric=False))
class ScatteredTensor(Base):
    def look(self, ids: Tensor) -> Tensor:
        nothing, halves = self.table.new_zeros((*ids.shape, VOCAB)), self.table.new_full((*ids.shape, 1), 0.5)
        return nothing.scatter(-1, ids[..., None], halves) @ self.table


@case(T, Truth(lookup_factor=2.0, readout_factor=1.0, numeric=False))
class DropoutByHand(Base):
    """A random mask, then a division by the share that it keeps: 1 on average."""

    def look(self, ids: Tensor) -> Tensor:
        x = super().look(ids) * 2
        return (torch.rand_like(x) < 0.9) * x / 0.9

    def read(self, h: Tensor) -> Tensor:
        return super().read(h * (torch.rand_like(h) < 0.5) * 2)


on("rows", "FirstPower", lambda _, x: x**1 * 2, look=2.0)


@case(T, Truth(readout_factor=0.75, counts=(1, 1, 2), numeric=False))
class OneProductTwice(Base):
    def read(self, h: Tensor) -> Tensor:
        return F.linear(h, self.table) * 0.5 + F.linear(h, self.table) * 0.25
