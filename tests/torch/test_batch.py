"""Operations are settled in batches: what a model does in between is seen all the same."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import tiebeam
from tiebeam.backends.torch import batch
from tiebeam.backends.torch.trace import How, trace
from tiebeam.ir import Graph

IDS = torch.arange(16).view(2, 8)


class Tied(nn.Module):
    def __init__(self, between: Callable[["Tied", Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(300, 64)
        self.mid = nn.Linear(64, 64)
        self.norm = nn.LayerNorm(64)
        self.between = between

    def forward(self, ids: Tensor) -> Tensor:
        x = self.between(self, self.embed(ids))
        return self.norm(x + self.mid(x)) @ self.embed.weight.T


def exchanges_memory(model: Tied, x: Tensor) -> Tensor:
    y = x * 2.0
    x.data = y.data  # the same object holds another tensor's memory now
    return x + 0.0


def writes_in_place(model: Tied, x: Tensor) -> Tensor:
    y = x * 2.0
    y *= 3.0
    return y


def writes_a_view(model: Tied, x: Tensor) -> Tensor:
    y = x * 1.0
    y.view(-1).mul_(5.0)
    return y


def asks_for_a_number(model: Tied, x: Tensor) -> Tensor:
    return x * (torch.ones(()) * 7.0).item()


def many_operations(model: Tied, x: Tensor) -> Tensor:
    for _ in range(3 * batch.BATCH):
        x = x * 2.0
        x = x * 0.5
    return x * 4.0


def detaches_late(model: Tied, x: Tensor) -> Tensor:
    y = x * 2.0
    return y.detach()


def makes_a_parameter(model: Tied, x: Tensor) -> Tensor:
    return nn.Parameter(x.detach() * 2.0) * 1.5


class Marked(Tensor):
    """A tensor of a class of its own."""


def is_of_another_class(model: Tied, x: Tensor) -> Tensor:
    return (x * 2.0).as_subclass(Marked) * 3.0


def copies_the_table(model: Tied, x: Tensor) -> Tensor:
    return nn.functional.embedding(IDS[:, : x.shape[1]], nn.Parameter(model.embed.weight * 2.0))


def narrows_itself(model: Tied, x: Tensor) -> Tensor:
    y = x * 2.0
    whole = y * 3.0
    y.data = y.data[:1]  # its own memory, and less of it
    return whole + y * 0.0


def gives_memory_back(model: Tied, x: Tensor) -> Tensor:
    number = torch.ones(1) * 3.0
    y = x * 2.0
    z = y * number
    for t in (y, number):
        t.untyped_storage().resize_(0)
    return z


CASES = [
    (makes_a_parameter, 3.0),
    (is_of_another_class, 6.0),
    (copies_the_table, 2.0),
    (narrows_itself, None),
    (gives_memory_back, 6.0),
    (exchanges_memory, 2.0),
    (writes_in_place, 6.0),
    (writes_a_view, 5.0),
    (asks_for_a_number, 7.0),
    (many_operations, 4.0),
    (detaches_late, 2.0),
]


@pytest.mark.parametrize(("between", "factor"), CASES, ids=lambda a: getattr(a, "__name__", str(a)))
def test_the_factor_is_that_of_settling_each_operation_at_once(
    between: Callable[[Tied, Tensor], Tensor], factor: float | None
) -> None:
    model = Tied(between)
    (table,) = tiebeam.inspect(model, IDS).tables
    assert table.lookup_factor == (None if factor is None else pytest.approx(factor, rel=1e-6))
    whole = trace(model, (IDS,), {}).graph
    alone = trace(model, (IDS,), {}, how=How(batch=False)).graph
    assert _told(whole) == _told(alone)
    assert sorted(whole.rms.values()) == sorted(alone.rms.values())
    assert sorted(whole.cosine.values()) == sorted(alone.cosine.values())


def _told(graph: Graph) -> list[object]:
    """All of the graph but the numbers of values: a parameter has its own sooner in a batch."""
    shapes = [v.shape for v in graph.values]
    return [(n.op, [shapes[v] for v in n.inputs], n.axes, n.attached, n.where, n.recorded) for n in graph.nodes]


@pytest.mark.parametrize("between", [exchanges_memory, narrows_itself, gives_memory_back])
def test_exchanged_memory_makes_the_pass_settle_each_operation_at_once(
    between: Callable[[Tied, Tensor], Tensor],
) -> None:
    assert not trace(Tied(between), (IDS,), {}).how.batch
    assert trace(Tied(many_operations), (IDS,), {}).how.batch


def test_what_waits_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[int] = []
    plain = batch.BatchRecorder.settle

    def settle(self: batch.BatchRecorder) -> None:
        results = [w.out for w in self._waiting if isinstance(w.out, Tensor) and w.out._base is None]
        held.append(sum(t.nbytes for t in results if t.shape[0] == len(IDS)))  # activations, no views of the table
        plain(self)

    monkeypatch.setattr(batch.BatchRecorder, "settle", settle)
    monkeypatch.setattr(batch, "HELD", 1 << 14)
    tiebeam.inspect(Tied(many_operations), IDS)
    largest = 2 * 8 * 300 * 4  # the logits
    assert 0 < max(held) <= (1 << 14) + largest
