"""Operations are settled in batches: what a model does in between is seen all the same."""

import contextlib
import gc
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import tiebeam
from tiebeam.backends.torch import trace as tracing
from tiebeam.backends.torch.recording import batch
from tiebeam.backends.torch.recording.numbers import STREAM
from tiebeam.backends.torch.recording.record import Recorder
from tiebeam.backends.torch.trace import trace
from tiebeam.ir import Graph

IDS = torch.arange(16).view(2, 8)


class Tied(nn.Module):
    def __init__(self, between: Callable[["Tied", Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(300, 64)
        self.mid = nn.Linear(64, 64)
        self.norm = nn.LayerNorm(64)
        self.scale = nn.Parameter(torch.tensor(3.0))
        self.gain = nn.Parameter(torch.full((64,), 2.0))
        self.register_buffer("beside", self.gain.data)  # the same memory
        self.listed = [nn.Parameter(torch.tensor(5.0)), nn.Parameter(torch.eye(64))]
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
    for _ in range(300):
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


def writes_a_number_through_numpy(model: Tied, x: Tensor) -> Tensor:
    number = torch.ones(()) * 3.0
    y = x * number
    number.numpy()[...] = 5.0  # nobody records this
    return y


def reads_a_list(model: Tied, x: Tensor) -> Tensor:
    first, second = x.split(32, -1)
    return torch.cat([first * 2.0, second * 2.0], -1)


def looks_at_itself_often(model: Tied, x: Tensor) -> Tensor:
    y = x * 2.0
    for _ in range(2 * STREAM):
        y[...]  # an alias is no step of the residual stream
    return y


def writes_pieces_that_autograd_does_not_know(model: Tied, x: Tensor) -> Tensor:
    pieces = list((x * 1.0).unsafe_chunk(2))
    return torch.cat([piece.mul_(3.0) for piece in pieces])


def narrows_itself_by_a_view_of_its_own(model: Tied, x: Tensor) -> Tensor:
    y = x * 2.0
    whole = y * 3.0
    y.data = y.detach()[:1]
    return whole + y * 0.0


def borrows_other_weights(model: Tied, x: Tensor) -> Tensor:
    weight = model.mid.weight
    own = weight.data
    weight.data = torch.eye(64) * 2.0
    y = nn.functional.linear(x, weight)
    weight.data = own  # as it was, before anything is settled
    return y


def exchanges_a_table_that_was_read(model: Tied, x: Tensor) -> Tensor:
    model.embed.weight.data = model.embed.weight.data * 2.0  # what is read out is no longer what was looked up
    return x


def borrows_weights_that_are_gone_before_others_lie_there(model: Tied, x: Tensor) -> Tensor:
    weight = model.mid.weight
    own = weight.data
    with ThreadPoolExecutor(1) as elsewhere:  # nobody records what another thread makes
        for _ in range(8):
            weight.data = elsewhere.submit(torch.eye, 64).result()
            x @ weight
            elsewhere.submit(setattr, weight, "data", own).result()
            x @ elsewhere.submit(torch.zeros, 64, 64).result()
    return x


def reads_the_memory_of_its_weights(model: Tied, x: Tensor) -> Tensor:
    first = nn.functional.linear(x, model.mid.weight)
    return first + x @ model.mid.weight.data[:, :64]


def freezes_weights_once_they_were_used(model: Tied, x: Tensor) -> Tensor:
    y = nn.functional.linear(x, model.mid.weight)
    model.mid.weight.requires_grad_(False)
    return y


def lies_where_it_lay_without_saying_so(model: Tied, x: Tensor) -> Tensor:
    return torch.ops.aten._unsafe_view(x * 2.0, list(x.shape))


def multiplies_whole_numbers(model: Tied, x: Tensor) -> Tensor:
    counts = torch.ones(8, 64, dtype=torch.long) @ torch.ones(64, 300, dtype=torch.long)
    return x * 2.0 + 0.0 * counts.sum()


def multiplies_complex_numbers(model: Tied, x: Tensor) -> Tensor:
    turned = torch.ones(8, 64, dtype=torch.complex64) @ torch.ones(64, 300, dtype=torch.complex64)
    return x * 2.0 + 0.0 * turned.real.sum()


def multiplies_nothing(model: Tied, x: Tensor) -> Tensor:
    return x * 2.0 + (torch.ones(0, 64) @ torch.ones(64, 300)).sum()


def makes_zeros_that_lie_nowhere(model: Tied, x: Tensor) -> Tensor:
    for _ in range(STREAM):
        torch._efficientzerotensor(x.shape)  # as differentiation forward does
    return x * 2.0


def tries_what_does_not_fit(model: Tied, x: Tensor) -> Tensor:
    with contextlib.suppress(RuntimeError):
        model.gain + torch.ones(7)
    return x * model.beside


def uses_parameters_that_lie_in_a_list(model: Tied, x: Tensor) -> Tensor:
    x @ model.listed[1]
    return x * model.listed[0]


def writes_a_parameter_through_numpy(model: Tied, x: Tensor) -> Tensor:
    y = x * model.scale
    model.scale.detach().numpy()[...] = 7.0  # nobody records this
    return y


def makes_a_parameter_of_a_view(model: Tied, x: Tensor) -> Tensor:
    y = x * 2.0
    y.sum().item()  # what it is is known from here on
    return (nn.Parameter(y.transpose(0, 1).detach()) * 2.0).transpose(0, 1)


def names_a_parameter_anew(model: Tied, x: Tensor) -> Tensor:
    y = x * model.scale
    model.again = model.scale
    y @ torch.from_numpy(np.eye(64, dtype=np.float32))  # what is this? The model is looked at again
    return y


def maps_each_element_by_itself(model: Tied, x: Tensor) -> Tensor:
    return torch.vmap(lambda element: element * 3.0)(x.view(-1)).view(x.shape)  # the number is cast like a tensor


CASES = [
    (maps_each_element_by_itself, 3.0),
    (multiplies_whole_numbers, 2.0),
    (multiplies_complex_numbers, 2.0),
    (multiplies_nothing, 2.0),
    (makes_zeros_that_lie_nowhere, 2.0),
    (tries_what_does_not_fit, 2.0),
    (uses_parameters_that_lie_in_a_list, 5.0),
    (writes_a_parameter_through_numpy, 3.0),
    (makes_a_parameter_of_a_view, 4.0),
    (names_a_parameter_anew, 3.0),
    (narrows_itself_by_a_view_of_its_own, None),
    (borrows_other_weights, 1.0),
    (exchanges_a_table_that_was_read, 1.0),
    (borrows_weights_that_are_gone_before_others_lie_there, 1.0),
    (reads_the_memory_of_its_weights, 1.0),
    (freezes_weights_once_they_were_used, 1.0),
    (lies_where_it_lay_without_saying_so, 2.0),
    (writes_pieces_that_autograd_does_not_know, 3.0),
    (looks_at_itself_often, 2.0),
    (writes_a_number_through_numpy, 3.0),
    (reads_a_list, 2.0),
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
    between: Callable[[Tied, Tensor], Tensor], factor: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch, "BATCH", 64)
    model = Tied(between)
    (table,) = tiebeam.inspect(model, IDS).tables
    assert table.lookup_factor == (None if factor is None else pytest.approx(factor, rel=1e-6))
    whole = trace(model, (IDS,), {}).graph
    with mock.patch.object(tracing, "BatchRecorder", Recorder):
        alone = trace(model, (IDS,), {}).graph
    assert _told(whole) == _told(alone)
    assert sorted(whole.rms.values()) == sorted(alone.rms.values())
    assert sorted(whole.cosine.values()) == sorted(alone.cosine.values())


def _told(graph: Graph) -> list[object]:
    """All of the graph but the numbers of values: what nobody knows has its own sooner in a batch."""
    known = [(v.shape, v.leaf and (v.leaf.names, v.leaf.span, v.leaf.trainable)) for v in graph.values]
    return [(n.op, [known[v] for v in n.inputs], n.axes, n.attached, n.where, n.recorded) for n in graph.nodes]


def test_what_was_looked_at_is_freed_without_the_garbage_collector() -> None:
    """The pass runs without it: a circle would keep the model until some later collection."""
    model = Tied(lambda _, x: x)
    tiebeam.inspect(model, IDS)  # what is imported and kept once
    while gc.collect():  # what other tests left is not counted here
        pass
    gc.disable()
    try:
        tiebeam.inspect(model, IDS)
        assert gc.collect() == 0
        tiebeam.initialize(model, IDS)
        gone = weakref.ref(model)
        del model
        assert gone() is None
    finally:
        gc.enable()


def test_a_model_that_refuses_the_inputs_of_a_second_pass_is_freed_too() -> None:
    def between(model: Tied, x: Tensor) -> Tensor:
        if x.shape != (2, 8, 64):
            refused.append(x.shape)
            raise ValueError("of one length only")
        return x * float(x.detach().abs().max())  # a number that another pass has to confirm

    refused: list[torch.Size] = []
    tiebeam.inspect(Tied(between), IDS)  # what is imported and kept once
    gc.collect()
    gc.disable()
    try:
        model = Tied(between)
        tiebeam.inspect(model, IDS)
        assert refused
        gone = weakref.ref(model)
        del model
        assert gone() is None
    finally:
        gc.enable()


def test_what_waits_holds_no_activation_but_those_of_the_residual_stream() -> None:
    gone: list[bool] = []

    def between(model: Tied, x: Tensor) -> Tensor:
        wide = torch.cat([x, x])
        seen = weakref.ref(wide)
        half = wide.view(2, *x.shape).mean(0)
        del wide
        gone.append(seen() is None)
        return half

    (table,) = tiebeam.inspect(Tied(between), IDS).tables
    assert gone == [True]
    assert table.readouts


def test_of_the_residual_stream_no_more_is_held_than_is_looked_at() -> None:
    alive: list[int] = []

    def between(model: Tied, x: Tensor) -> Tensor:
        seen = []
        for _ in range(10 * STREAM):
            x = x * 1.0
            seen.append(weakref.ref(x))
        alive.append(sum(r() is not None for r in seen))
        return x

    tiebeam.inspect(Tied(between), IDS)
    assert 0 < max(alive) <= 2 * STREAM + 1
