"""Every state of a table, and look-alikes."""

from typing import Any

import torch
import torch.nn.functional as F
from tests.torch.models.kit import VOCAB, WIDTH, Base, Truth, case, ids
from torch import Tensor, nn

T = "states"
PAIR = ("embed.weight", "head.weight")


class Pair(nn.Module):
    """An embedding and a head, two modules; subclasses say how they hang together."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.mid, self.norm = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)
        self.join()

    def join(self) -> None:
        raise NotImplementedError

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        return self.head(self.norm(x + torch.tanh(self.mid(x))))


def pair(name: str, join: Any, state: str, **truth: Any) -> None:
    """Register a pair; where it is two tables, both are described."""
    made = type(name, (Pair,), {"join": join})
    if state in ("tied", "aliased", "cut"):
        case(T, Truth(names=PAIR, state=state, **truth))(made)
        return
    both = (
        Truth(names=PAIR[:1], partner=PAIR[1:], state=state, readout_factor=None, counts=(1, 0, 0), **truth),
        Truth(names=PAIR[1:], partner=PAIR[:1], state=state, lookup_factor=None, counts=(0, 1, 1), **truth),
    )
    case(T, both)(made)


def share(m: Pair) -> None:
    m.head.weight = m.embed.weight


def share_the_other_way(m: Pair) -> None:
    m.embed.weight = m.head.weight


def wrap_data(m: Pair) -> None:
    m.head.weight = nn.Parameter(m.embed.weight.data)


def overlap(m: Pair) -> None:
    big = torch.randn(VOCAB + 5, WIDTH)
    m.embed.weight, m.head.weight = nn.Parameter(big[:VOCAB]), nn.Parameter(big[5:])


def halves_of_one_storage(m: Pair) -> None:
    flat = torch.randn(2 * VOCAB, WIDTH)
    m.embed.weight, m.head.weight = nn.Parameter(flat[:VOCAB]), nn.Parameter(flat[VOCAB:])


def transposed_view(m: Pair) -> None:
    """One memory seen as (width, vocab) by the lookup's owner and as its transpose by the head."""
    wide = torch.randn(WIDTH, VOCAB)
    m.embed.weight, m.head.weight = nn.Parameter(wide.t()), nn.Parameter(wide.t())


def clone(m: Pair) -> None:
    m.head.weight = nn.Parameter(m.embed.weight.detach().clone())


def copy_values(m: Pair) -> None:
    with torch.no_grad():
        m.head.weight.copy_(m.embed.weight)


def drift(m: Pair) -> None:
    with torch.no_grad():
        m.head.weight.copy_(m.embed.weight + 0.1 * torch.randn(VOCAB, WIDTH))


def drift_far(m: Pair) -> None:
    """Distance 0.4: still kin, where independent draws stand at 1.4."""
    with torch.no_grad():
        noise = torch.randn(VOCAB, WIDTH)
        m.head.weight.copy_(m.embed.weight + 0.4 * noise * m.embed.weight.norm() / noise.norm())


pair("OneParameter", share, "tied")
pair("OneParameterTheOtherWay", share_the_other_way, "tied")
pair("TwoParametersOneStorage", wrap_data, "aliased")
pair("OverlappingSlices", overlap, "aliased", numeric=False)
pair("TwoParametersOneTransposedStorage", transposed_view, "aliased")
pair("TwoHalvesOfOneStorage", halves_of_one_storage, "untied")
pair("Cloned", clone, "copy")
pair("CopiedValues", copy_values, "copy")
pair("DriftedALittle", drift, "drifted")
pair("DriftedFar", drift_far, "drifted")
pair("Independent", lambda _: None, "untied")


@case(T)
class UsedTwice(Base):
    pass


@case(T, Truth(state="cut"))
class DetachedReadout(Base):
    def read(self, h: Tensor) -> Tensor:
        return F.linear(h, self.table.detach())


@case(T, Truth(state="cut"))
class DataReadout(Base):
    def read(self, h: Tensor) -> Tensor:
        return h @ self.table.data.t()


@case(T, Truth(state="cut"))
class LookupWithoutGrad(Base):
    def look(self, ids: Tensor) -> Tensor:
        with torch.no_grad():
            return super().look(ids)


@case(T, Truth(state="cut"))
class DetachedRows(Base):
    def look(self, ids: Tensor) -> Tensor:
        return super().look(ids).detach()


@case(T, Truth(state="cut"))
class DetachedHidden(Base):
    """The readout learns, but nothing before it does: the lookup's gradient is cut on the way."""

    def read(self, h: Tensor) -> Tensor:
        return super().read(h.detach())


@case(T)
class HalfOfTheStreamDetached(Base):
    """Stopping one branch does not stop the other."""

    def body(self, x: Tensor) -> Tensor:
        return self.norm(x + torch.tanh(self.mid(x.detach())))


@case(T, Truth(findings=("frozen-both-roles",), smooth=False))
class Frozen(Base):
    def __init__(self) -> None:
        super().__init__()
        self.table.requires_grad_(False)


def _half(of: nn.Module) -> None:
    of.head = nn.Parameter(of.table.detach().to(torch.bfloat16))


@case(
    T,
    (
        Truth(names=("table",), state="copy", readout_factor=None, partner=("head",), counts=(1, 0, 0)),
        Truth(names=("head",), state="copy", lookup_factor=None, partner=("table",), counts=(0, 1, 1)),
    ),
)
class CopyInHalfPrecision(Base):
    def __init__(self) -> None:
        super().__init__()
        _half(self)

    def read(self, h: Tensor) -> Tensor:
        return F.linear(h.to(torch.bfloat16), self.head)


@case(
    T,
    (
        Truth(names=("table",), state="copy", readout_factor=None, partner=("head",), counts=(1, 0, 0)),
        Truth(
            names=("head",),
            state="copy",
            lookup_factor=None,
            partner=("table",),
            counts=(0, 1, 1),
            vocab_axis=1,
        ),
    ),
)
class TransposedCopy(Base):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Parameter(self.table.detach().t().clone())

    def read(self, h: Tensor) -> Tensor:
        return h @ self.head


@case(
    T,
    (
        Truth(names=("table",), state="copy", readout_factor=None, partner=("head",), counts=(1, 0, 0)),
        Truth(names=("head",), state="copy", lookup_factor=None, partner=("table",), counts=(0, 1, 1)),
    ),
)
class CopyInBuffer(Base):
    """A cache of the table that no optimizer will ever move."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("head", self.table.detach().clone())

    def read(self, h: Tensor) -> Tensor:
        return F.linear(h, self.head)


@case(T, Truth(names=("table", "alias.weight")))
class NameThatIsNeverRead(Base):
    """A third module holds the table and does nothing with it."""

    def __init__(self) -> None:
        super().__init__()
        self.alias = nn.Linear(WIDTH, VOCAB, bias=False)
        self.alias.weight = self.table


@case(
    T,
    (
        Truth(names=("embed.weight",), state="untied", readout_factor=None, counts=(1, 0, 0), width=6),
        Truth(names=("head.weight",), state="untied", lookup_factor=None, counts=(0, 1, 1)),
    ),
)
class UnequalWidths(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.up = nn.Embedding(VOCAB, 6), nn.Linear(6, WIDTH)
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(torch.tanh(self.up(self.embed(ids))))


assert ids().max() < VOCAB
