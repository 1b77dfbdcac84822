"""What goes wrong, or leaves traces, in a forward pass; and every shape an answer may have."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from tests.torch.models.kit import VOCAB, WIDTH, Base, Truth, case, ids
from torch import Tensor, nn

T = "bad"
O = "outputs"  # noqa: E741


@case(T, Truth(numeric=False))
class NotANumber(Base):
    def __init__(self) -> None:
        super().__init__()
        with torch.no_grad():
            self.table[3, 2] = float("nan")


@case(T, Truth(numeric=False))
class Infinite(Base):
    def __init__(self) -> None:
        super().__init__()
        with torch.no_grad():
            self.table[3, 2] = float("inf")


@case(T, Truth(vocab=0, numeric=False), inputs=lambda: (torch.zeros(1, 0, dtype=torch.long),))
class EmptyVocabulary(Base):
    def __init__(self) -> None:
        super().__init__(vocab=0)


@case(T, Truth(width=1, numeric=False))
class WidthOne(Base):
    def __init__(self) -> None:
        super().__init__(width=1)
        self.norm = nn.Identity()


@case(T, Truth(names=("codes",), state="none", numeric=False))
class Quantised(nn.Module):
    """An int8 table with one scale a row, made into floats at every use."""

    def __init__(self) -> None:
        super().__init__()
        table = torch.randn(VOCAB, WIDTH)
        scale = table.abs().amax(1, keepdim=True) / 127
        self.register_buffer("codes", (table / scale).round().to(torch.int8))
        self.register_buffer("scale", scale)
        self.mid = nn.Linear(WIDTH, WIDTH)

    def forward(self, ids: Tensor) -> Tensor:
        rows = self.codes[ids].float() * self.scale[ids]
        return F.linear(torch.tanh(self.mid(rows)), self.codes.float() * self.scale)


@case(T, Truth(numeric=False))
class CountsItsCalls(Base):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.register_buffer("mean", torch.zeros(WIDTH))

    def body(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.mean.mul_(0.9).add_(x.detach().mean((0, 1)), alpha=0.1)
        return super().body(x)


@case(T, Truth(numeric=False))
class BatchNormAtWork(Base):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)

    def body(self, x: Tensor) -> Tensor:
        return self.norm((x + torch.tanh(self.mid(x))).transpose(1, 2)).transpose(1, 2)


@case(T, Truth(names=("embed.weight",), numeric=False))
class RowsRenormedInPlace(Base):
    """`max_norm` rewrites the table during the lookup."""

    def __init__(self) -> None:
        super().__init__()
        del self.table
        self.embed = nn.Embedding(VOCAB, WIDTH, max_norm=0.5)

    def look(self, ids: Tensor) -> Tensor:
        return self.embed(ids)

    def read(self, h: Tensor) -> Tensor:
        return F.linear(h, self.embed.weight)


@case(T, Truth(numeric=False))
class DropoutAtWork(Base):
    def body(self, x: Tensor) -> Tensor:
        return super().body(F.dropout(x, 0.5, self.training))


@case(T, Truth(counts=None))
class BranchOnValues(Base):
    """Control flow that depends on data, ids and activations both."""

    def body(self, x: Tensor) -> Tensor:
        if x.abs().max().item() > 0.1:
            x = super().body(x)
        return self.norm(x)

    def forward(self, ids: Tensor) -> Tensor:
        if bool((ids == 0).any()):
            ids = ids.clamp(min=1)
        return super().forward(ids)


@case(T, Truth(numeric=False))
class CacheOnTheModule(Base):
    """Keeps an attribute of the last pass, as key-value caches do."""

    last: Tensor | None = None

    def body(self, x: Tensor) -> Tensor:
        self.last = super().body(x)
        return self.last


def answering(name: str, wrap: Any) -> None:
    made = type(name, (Base,), {"read": lambda self, h: wrap(F.linear(h, self.table), h)})
    case(O, Truth())(made)


class Named(NamedTuple):
    loss: Tensor
    logits: Tensor


@dataclass
class Plain:
    logits: Tensor
    hidden: Tensor


class Holder:
    def __init__(self, logits: Tensor) -> None:
        self.logits = logits


answering("AsTuple", lambda z, h: (z, h))
answering("AsList", lambda z, h: [h, z])
answering("AsDict", lambda z, h: {"logits": z, "hidden": h})
answering("AsNestedDict", lambda z, h: {"out": {"logits": (z,)}, "n": 3, "none": None})
answering("AsNamedTuple", lambda z, h: Named(z.logsumexp(-1).mean(), z))
answering("AsDataclass", lambda z, h: Plain(z, h))
answering("AsObject", lambda z, h: Holder(z))
answering("LossFirst", lambda z, h: (F.cross_entropy(z.flatten(0, 1), ids().flatten()), z))
answering("HiddenFirst", lambda z, h: (h, z))


@case(O, Truth())
def as_model_output() -> Any:
    """The output class of transformers, a dict whose entries are attributes too."""
    from transformers.modeling_outputs import CausalLMOutput

    class Model(Base):
        def read(self, h: Tensor) -> Any:
            return CausalLMOutput(logits=F.linear(h, self.table))

    return Model(), (ids(),), (Truth(),)
