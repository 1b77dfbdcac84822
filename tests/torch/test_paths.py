"""Which module is running: paths are told apart, and nothing stays behind in the model."""

import copy
from contextlib import ExitStack
from threading import Thread
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tiebeam
from tiebeam.backends.torch.names import first_paths, module_tree
from tiebeam.backends.torch.recording.paths import CALL, module_paths, own_call

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


def standing(model: nn.Module) -> list[Any]:
    return [vars(m).get(CALL) for m in model.modules()]


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
    assert standing(model) == [None] * 4


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
    assert standing(model) == [None] * 4


def test_another_thread_runs_what_was_compiled_while_a_pass_runs_the_module_itself() -> None:
    model = Tied()
    calls: list[str] = []

    def compiled(x: Tensor) -> Tensor:
        calls.append("compiled")
        return x

    model.middle._compiled_call_impl = compiled
    with module_paths(paths(model), [""]):
        model(IDS)
        assert calls == []
        in_thread(lambda: model(IDS))
        assert calls == ["compiled"]
        assert own_call(model.middle) is compiled
    assert vars(model.middle)[CALL] is compiled


def test_what_the_forward_compiles_is_put_back() -> None:
    class Compiling(Tied):
        def forward(self, ids: Tensor) -> Tensor:
            vars(self.middle)[CALL] = lambda x: x
            return super().forward(ids)

    model = Compiling()
    tiebeam.inspect(model, IDS)
    assert standing(model) == [None] * 4


def test_a_pass_of_another_thread_goes_on_where_this_one_puts_a_module_back() -> None:
    class Noting(Tied):
        def forward(self, ids: Tensor) -> Tensor:
            self.middle.ran = True  # undone after the pass, next to what another pass has put there
            return super().forward(ids)

    model = Noting()
    stack, other = [""], ExitStack()
    in_thread(lambda: other.enter_context(module_paths(paths(model), stack)))
    before = standing(model)
    report = tiebeam.inspect(model, IDS)
    assert [r.where for r in report.tables[0].readouts] == ["head"]
    assert not hasattr(model.middle, "ran")
    assert standing(model) == before
    other.close()
    assert standing(model) == [None] * 4


def test_a_module_that_is_copied_while_it_runs_is_copied_without() -> None:
    copies: list[nn.Module] = []

    class Copying(Tied):
        def forward(self, ids: Tensor) -> Tensor:
            copies.append(copy.deepcopy(self.middle))
            return self.head(copies[-1](self.embed(ids)))

    tiebeam.inspect(Copying(nn.Linear(8, 8)), IDS)
    assert CALL not in vars(copies[0])


def test_what_runs_as_copies_on_several_devices_is_left_alone() -> None:
    class Parallel(nn.DataParallel):
        def __init__(self, module: nn.Module) -> None:
            super().__init__(module)
            self.device_ids = [0, 1]

        def forward(self, x: Tensor) -> Tensor:
            copies = [m._replicate_for_data_parallel() for m in (self.module, self.module)]
            for copied in copies:
                copied.scale = 2.0
            return copies[0](x)

    class Scaled(nn.Module):
        scale = 1.0

        def forward(self, x: Tensor) -> Tensor:
            return x * self.scale

    model = Tied(Parallel(Scaled()))
    (lookup,) = tiebeam.inspect(model, IDS).tables[0].lookups
    assert lookup.factor == 2.0  # the copy's
