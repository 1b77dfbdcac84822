"""Which module is running: paths are told apart, and nothing stays behind in the model."""

import copy
from collections.abc import Callable
from contextlib import ExitStack
from threading import Thread
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tiebeam
from tiebeam.backends.torch.names import first_paths, loose_tensors, module_tree
from tiebeam.backends.torch.recording.paths import module_paths

IDS = torch.arange(12)[None]


class Tied(nn.Module):
    """A lookup, something in the middle, a readout."""

    def __init__(self, middle: nn.Module | None = None) -> None:
        super().__init__()
        self.embed = nn.Embedding(32, 8)
        self.middle = middle or nn.Identity()
        self.head = nn.Linear(8, 32, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.middle(self.embed(ids)))


def paths(model: nn.Module) -> list[tuple[str, nn.Module]]:
    return first_paths(module_tree(model))


def in_thread(work: Any) -> None:
    thread = Thread(target=work)
    thread.start()
    thread.join()


def hooks(model: nn.Module) -> int:
    return sum(
        len(found)
        for m in model.modules()
        for found in (m._forward_pre_hooks, m._forward_hooks, m._forward_hooks_always_called)
    )


def test_the_module_that_runs_is_on_top_and_its_parent_again_after_it() -> None:
    seen: list[list[str]] = []

    class Asking(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(list(stack))
            return x

    model = Tied(nn.Sequential(Asking(), Asking()))
    stack = [""]
    with module_paths(paths(model), stack):
        model(IDS)
        assert stack == [""]
    assert seen == [["", "", "middle", "middle.0"], ["", "", "middle", "middle.1"]]


def test_what_follows_a_module_that_failed_and_was_excused_is_its_parents() -> None:
    class Failing(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise ArithmeticError

    class Excusing(Tied):
        def forward(self, ids: Tensor) -> Tensor:
            x = self.embed(ids)
            try:
                x = self.middle(x)
            except ArithmeticError:
                return x @ self.head.weight.T
            return x

    table = tiebeam.inspect(Excusing(Failing()), IDS).tables[0]
    assert [r.where for r in table.readouts] == [""]


@pytest.mark.parametrize("first", ["older", "newer"])
def test_passes_of_two_threads_end_in_any_order_and_leave_nothing(first: str) -> None:
    model = Tied()
    stacks = {"older": [""], "newer": [""]}
    ends = {name: ExitStack() for name in stacks}
    for name, stack in stacks.items():
        in_thread(lambda name=name, stack=stack: ends[name].enter_context(module_paths(paths(model), stack)))
    ends.pop(first).close()
    model(IDS)  # of neither thread: it passes through
    ends.popitem()[1].close()
    assert stacks == {"older": [""], "newer": [""]}
    assert not hooks(model)


def test_a_pass_within_a_pass_leaves_the_outer_its_paths() -> None:
    model = Tied()
    outer, inner = [""], [""]
    seen = []
    model.middle.register_forward_hook(lambda *_: seen.append((list(outer), list(inner))))
    with module_paths(paths(model), outer):
        with module_paths(paths(model), inner):
            model(IDS)
        model(IDS)
    assert seen == [(["", "", "middle"], ["", "", "middle"]), (["", "", "middle"], [""])]
    assert len(model.middle._forward_hooks) == hooks(model) == 1


def test_a_pass_of_another_thread_goes_on_where_this_one_puts_a_module_back() -> None:
    class Noting(Tied):
        def forward(self, ids: Tensor) -> Tensor:
            self.middle.register_forward_hook(lambda *_: None)  # undone after the pass, next to that one's
            return super().forward(ids)

    model = Noting()
    stack, other = [""], ExitStack()
    in_thread(lambda: other.enter_context(module_paths(paths(model), stack)))
    before = hooks(model)
    report = tiebeam.inspect(model, IDS)
    assert [r.where for r in report.tables[0].readouts] == ["head"]
    assert hooks(model) == before
    other.close()
    assert not hooks(model)


def test_a_copy_that_the_forward_keeps_notes_nothing_when_the_pass_is_over() -> None:
    copies: list[nn.Module] = []

    class Copying(Tied):
        def forward(self, ids: Tensor) -> Tensor:
            copies.append(copy.deepcopy(self.middle))
            return self.head(copies[-1](self.embed(ids)))

    model, stack = Copying(nn.Linear(8, 8)), [""]
    with module_paths(paths(model), stack):
        model(IDS)
    depths: list[int] = []
    copies[0].register_forward_hook(lambda *_: depths.append(len(stack)))
    copies[0](torch.zeros(8))
    assert depths == [1]


def of_the_same_attributes(module: nn.Module) -> nn.Module:
    new = type(module).__new__(type(module))
    new.__dict__ = module.__dict__.copy()
    return new


def of_data_parallel(module: nn.Module) -> nn.Module:
    new: nn.Module = module._replicate_for_data_parallel()
    return new


REPLICAS = [copy.copy, of_the_same_attributes, of_data_parallel]


class Replicating(Tied):
    """Runs a replica that differs from its module, and keeps it."""

    def __init__(self, replicate: Callable[[nn.Module], nn.Module], threaded: bool = False) -> None:
        super().__init__(nn.Linear(8, 8))
        self.replicate, self.threaded = replicate, threaded
        self.ran: list[tuple[nn.Module, Tensor]] = []

    def forward(self, ids: Tensor) -> Tensor:
        replica = self.replicate(self.middle)
        replica._parameters = {"weight": torch.zeros(8, 8), "bias": torch.ones(8)}
        x = self.embed(ids)

        def run() -> None:
            self.ran.append((replica, replica(x)))

        in_thread(run) if self.threaded else run()
        return self.head(x + self.middle(x))


@pytest.mark.parametrize("replicate", REPLICAS)
@pytest.mark.parametrize("threaded", [False, True])
def test_a_replica_made_in_the_forward_runs_itself_and_not_what_it_was_made_of(
    replicate: Callable[[nn.Module], nn.Module], threaded: bool
) -> None:
    model = Replicating(replicate, threaded)
    tiebeam.inspect(model, IDS)
    assert all(torch.equal(y, torch.ones(1, 12, 8)) for _, y in model.ran)
    replica, _ = model.ran[0]
    assert torch.equal(replica(torch.rand(8)), torch.ones(8))  # after the pass, too
    assert torch.equal(nn.Sequential(replica)(torch.rand(8)), torch.ones(8))
    with module_paths(paths(replica), [""]):
        assert torch.equal(replica(torch.rand(8)), torch.ones(8))


def test_what_a_replica_runs_stands_at_the_path_of_its_module() -> None:
    class Reading(Tied):
        def forward(self, ids: Tensor) -> Tensor:
            return of_the_same_attributes(self.head)(self.embed(ids))

    assert [r.where for r in tiebeam.inspect(Reading(), IDS).tables[0].readouts] == ["head"]


def test_attributes_are_looked_at_while_another_thread_notes_something_there() -> None:
    model = Tied()
    model.first, model.second = torch.zeros(1), torch.zeros(2)
    found = loose_tensors(model)
    names = [next(found)[0]]
    model.third = torch.zeros(3)
    assert [*names, *(name for name, _ in found)] == ["first", "second"]


# Which thread it is in is what the hook asks.
@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace the builtin")
def test_a_compiled_model_that_another_thread_runs_meanwhile_is_not_compiled_anew() -> None:
    graphs: list[Any] = []
    ran: list[int] = []

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return lambda *inputs: (ran.append(len(graphs)), graph(*inputs))[1]

    torch.compiler.reset()  # what other tests compiled is not counted here
    model = Tied()
    fast = torch.compile(model, backend=backend)
    in_thread(lambda: fast(IDS))
    for _ in range(3):
        with module_paths(paths(model), [""]):
            in_thread(lambda: fast(IDS))
    assert ran == [1] * 4
    assert len(graphs) == 1
