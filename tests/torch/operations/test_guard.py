"""What parts a tie, and what does not: the guard fails as the line is done and names it; `retie` joins it again."""

import copy
import io
import pickle
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.torch.operations.models import IDS, LM
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils import prune
from torch.nn.utils.parametrizations import weight_norm
from torch.nn.utils.parametrize import remove_parametrizations
from torch.optim.swa_utils import AveragedModel

import tiebeam
from tiebeam.errors import InputError, TieBroken, TieError

TIE = ("embed.weight", "head.weight")


def on_meta() -> LM:
    with torch.device("meta"):
        return LM()


def broken(model: nn.Module, operation: Callable[[], Any]) -> TieBroken:
    """What the guard says, and that it says it before the next line runs."""
    reached = []

    def block() -> None:
        with tiebeam.guard(model):
            operation()
            reached.append("the next line")

    with pytest.raises(TieBroken) as caught:
        block()
    assert not reached
    assert sys.gettrace() is None
    assert all(type(vars(m)[n]) is dict for m in model.modules() for n in ("_parameters", "_modules"))
    return caught.value


def test_a_block_of_one_line_leaves_nothing_behind() -> None:
    """The line ends where the block ends, and an error that is raised there does not reach the guard's `__exit__`."""
    model = LM()
    with pytest.raises(TieBroken), tiebeam.guard(model):
        model.head = nn.Linear(16, 50)
    assert sys.gettrace() is None
    assert type(vars(model)["_modules"]) is dict
    torch.optim.SGD(model.parameters(), 0.1).step()


def unharmed(model: nn.Module, operation: Callable[[], Any]) -> Any:
    """What the operation returns; the guard is silent."""
    with tiebeam.guard(model):
        return operation()


def test_memory_for_a_model_on_meta_parts_it_and_retie_joins_it_with_its_optimizer() -> None:
    model = on_meta()
    error = broken(model, lambda: model.to_empty(device="cpu"))
    assert "to_empty" in str(error)
    assert "test_guard.py" in str(error)
    tiebeam.retie(model, [TIE], on_conflict="embedding")
    assert model.head.weight is model.embed.weight
    assert tiebeam.inspect(model, IDS).tables[0].state == "tied"


def test_loading_by_assignment_parts_it_and_the_loaded_end_counts() -> None:
    model = LM()
    optimizer = torch.optim.Adam(model.parameters())
    state = {k: v.clone() for k, v in model.state_dict().items()}
    error = broken(model, lambda: model.load_state_dict(state, assign=True))
    assert "load_state_dict(state, assign=True)" in str(error)
    assert "equal in every entry" in str(error)
    optimizer = torch.optim.Adam(model.parameters())
    assert tiebeam.retie(model, [TIE], optimizer=optimizer).tables == (TIE,)
    assert [id(p) for p in optimizer.param_groups[0]["params"]] == [id(p) for p in model.parameters()]


def test_assigning_aliased_tensors_leaves_two_parameters_on_one_storage_which_is_no_tie() -> None:
    model = LM()
    error = broken(model, lambda: model.load_state_dict(model.state_dict(), assign=True))
    assert "two parameters on one storage" in str(error)
    tiebeam.retie(model, [TIE])
    assert len(list(model.parameters())) == 3


def test_a_part_that_was_not_loaded_is_found_by_its_values() -> None:
    """The head keeps stale values: which end counts must be said."""
    model = LM()
    error = broken(
        model, lambda: model.load_state_dict({"embed.weight": torch.full((50, 16), 3.0)}, strict=False, assign=True)
    )
    assert "apart" in str(error)
    with pytest.raises(TieError, match="different values"):
        tiebeam.retie(model, [TIE])
    tiebeam.retie(model, [TIE], on_conflict="embedding")
    assert model.head.weight.mean() == 3.0


def test_moves_and_casts_keep_a_tie() -> None:
    model = LM()
    unharmed(model, lambda: model.to(torch.float64).to("cpu").half().float())
    assert model.head.weight is model.embed.weight
    assert unharmed(on_meta(), lambda: None) is None


def test_moves_that_make_new_parameters_part_it() -> None:
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        model = LM()
        error = broken(model, lambda: model.to(torch.float64))
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(False)
    assert "model.to(torch.float64)" in str(error)
    assert tiebeam.retie(model, [TIE]).tables == (TIE,)
    assert model.head.weight.dtype == torch.float64


def test_of_several_lines_the_one_that_did_it_is_named() -> None:
    model = LM()

    def moves() -> None:
        model.to(torch.float64)
        model.to("meta")
        model.to_empty(device="cpu")

    assert 'model.to("meta")' in str(broken(model, moves))


def test_copies_keep_it_and_are_held_against_the_original() -> None:
    model = LM()
    guard = tiebeam.guard(model)
    with guard:
        copied = copy.deepcopy(model)
        loaded = pickle.loads(pickle.dumps(model))
        averaged = AveragedModel(model)
        averaged.update_parameters(model)
    for other in (copied, loaded, averaged):
        guard.check(other)
        assert all(type(vars(m)["_parameters"]) is dict for m in other.modules())
    state = io.BytesIO()
    torch.save(model, state)
    state.seek(0)
    guard.check(torch.load(state, weights_only=False))


def test_a_copy_of_one_end_parts_it_in_the_copy_too() -> None:
    model = LM()
    assert "copy.deepcopy(model.head)" in str(broken(model, lambda: setattr(model, "head", copy.deepcopy(model.head))))
    guard = tiebeam.guard(LM(), ties=[TIE])
    averaged = AveragedModel(model)
    with pytest.raises(TieBroken, match=r"module\.head\.weight"):
        guard.check(averaged)
    assert tiebeam.retie(averaged, guard.ties).tables == (tuple(f"module.{n}" for n in TIE),)
    guard.check(averaged)


def test_a_norm_on_one_end_parts_it_and_is_refused_until_it_is_gone() -> None:
    model = LM()
    assert "weight_norm(model.head)" in str(broken(model, lambda: weight_norm(model.head)))
    with pytest.raises(TieError, match="remove_parametrizations"):
        tiebeam.retie(model, [TIE])
    remove_parametrizations(model.head, "weight")
    tiebeam.retie(model, [TIE], on_conflict="embedding")
    assert model.head.weight is model.embed.weight


def test_pruning_one_end_parts_it_and_is_refused_until_it_is_permanent() -> None:
    model = LM()
    error = broken(model, lambda: prune.l1_unstructured(model.head, "weight", 0.5))
    assert "no parameter any more" in str(error)
    with pytest.raises(TieError, match=r"prune\.remove"):
        tiebeam.retie(model, [TIE])
    prune.remove(model.head, "weight")  # which writes the mask into the parameter that both still share
    assert tiebeam.retie(model, [TIE]).tables == ()
    assert (model.embed.weight == 0).float().mean() > 0.4


def test_a_replaced_layer_parts_it() -> None:
    model = LM()
    assert "nn.Linear(16, 50)" in str(broken(model, lambda: setattr(model, "head", nn.Linear(16, 50))))
    model = LM()
    assert "no parameter any more" in str(broken(model, lambda: delattr(model, "head")))


def test_calls_with_other_parameters_keep_it_where_both_names_get_one() -> None:
    model = LM()
    table = torch.zeros(50, 16)
    out = unharmed(model, lambda: functional_call(model, {"embed.weight": table}, (IDS,)))
    assert not out.any()
    values = {"embed.weight": table, "head.weight": torch.ones(50, 16)}
    with pytest.raises(ValueError, match="tied"):
        functional_call(model, values, (IDS,))
    assert tiebeam.ties(model) == (TIE,)


@pytest.mark.slow
def test_an_exported_program_has_one_table() -> None:
    model = LM().eval()
    guard = tiebeam.guard(model)
    with guard:
        program = torch.export.export(model, (IDS,))
    module = program.module()
    guard.check(module)
    names = [n for n, _ in module.named_parameters()]
    assert names == ["embed.weight", "mid.weight", "mid.bias"]


@pytest.mark.slow
def test_onnx_holds_the_table_once(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    model = LM(2000, 64).eval()
    with warnings.catch_warnings(), tiebeam.guard(model):
        warnings.simplefilter("ignore")
        exported = torch.onnx.export(model, (IDS,), dynamo=True, verbose=False)
    assert exported is not None
    exported.save(tmp_path / "tied.onnx")
    written = onnx.load(tmp_path / "tied.onnx")
    assert sum(2000 in t.dims for t in written.graph.initializer) == 1
    assert (tmp_path / "tied.onnx").stat().st_size < 1.2 * 4 * 2000 * 64


def test_a_line_that_parts_and_joins_is_no_harm() -> None:
    model = LM()

    def both() -> None:
        model.embed.weight = nn.Parameter(torch.randn(50, 16))
        model.head.weight = model.embed.weight

    class Careful(LM):
        def to_empty(self, **kwargs: Any) -> Any:
            super().to_empty(**kwargs)
            self.head.weight = self.embed.weight
            return self

    with torch.device("meta"):
        careful = Careful()
    assert unharmed(careful, lambda: careful.to_empty(device="cpu")) is careful
    assert "nn.Parameter(torch.randn(50, 16))" in str(broken(model, both))  # two lines: between them it is gone


def test_an_optimizer_does_not_step_a_parted_tie() -> None:
    """A loop in one line: the error comes before the damage, although no line of the block is done yet."""
    model = LM()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    before = model.mid.weight.detach().clone()

    def loop() -> None:
        with tiebeam.guard(model):
            weight_norm(model.head)
            model(IDS).sum().backward()
            optimizer.step()

    sys.settrace(lambda *_: None)  # as under a debugger, which the guard leaves alone
    try:
        with pytest.raises(TieBroken, match="weight_norm"):
            loop()
    finally:
        sys.settrace(None)
    assert torch.equal(model.mid.weight, before)


def test_an_error_of_the_block_is_not_hidden() -> None:
    model = LM()

    def fails() -> None:
        weight_norm(model.head) and 1 / 0

    with pytest.raises(ZeroDivisionError), tiebeam.guard(model):
        fails()
    assert sys.gettrace() is None


def test_the_hook_of_a_guard_serves_an_optimizer() -> None:
    model = LM()
    guard = tiebeam.guard(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    optimizer.register_step_pre_hook(guard.hook)
    optimizer.step()
    model.head = nn.Linear(16, 50)
    with pytest.raises(TieBroken):
        optimizer.step()


def test_there_must_be_a_tie_to_guard() -> None:
    with pytest.raises(InputError, match="no tie to watch"):
        tiebeam.guard(LM(tied=False), IDS)
    with pytest.raises(TieBroken), tiebeam.guard(LM(tied=False), ties=[TIE]):
        pass

    class Functional(LM):
        def forward(self, ids: Tensor) -> Tensor:
            return torch.tanh(self.mid(self.embed(ids))) @ self.embed.weight.T

    model = Functional(tied=False)
    guard = tiebeam.guard(model, IDS)
    assert guard.ties == (("embed.weight",),)
    with guard:
        model.to(torch.float64)


def test_guards_within_one_another_are_each_told() -> None:
    model = LM()
    outer, inner = tiebeam.guard(model), tiebeam.guard(model)
    outer.start()
    inner.start()
    outer.stop()  # the other one goes on

    def parts() -> None:
        model.head = nn.Linear(16, 50)
        raise AssertionError("the next line")

    with pytest.raises(TieBroken, match=r"nn\.Linear\(16, 50\)"):
        parts()
    inner.stop()
    assert all(type(vars(m)[n]) is dict for m in model.modules() for n in ("_parameters", "_modules"))
    guard = tiebeam.guard(sound := LM())
    held = vars(sound)["_modules"]
    with guard, guard:
        pass
    assert vars(sound)["_modules"] is held


def test_a_tie_that_another_thread_parts_is_named_in_both_and_no_tracing_is_left() -> None:
    model, said = LM(), []

    def work() -> None:
        try:
            model.head = nn.Linear(16, 50)
            said.append("the next line")
        except TieBroken as error:
            said.append(str(error))

    def block() -> None:
        with tiebeam.guard(model):
            (thread := threading.Thread(target=work)).start()
            thread.join()

    with pytest.raises(TieBroken, match="no longer one"):
        block()
    assert len(said) == 1
    assert "nn.Linear(16, 50)" in said[0]
    assert sys.gettrace() is None


def test_dictionaries_that_are_written_to_in_any_way_tell() -> None:
    model = LM()
    fresh = {"weight": nn.Parameter(torch.randn(50, 16))}
    assert "__ior__" in str(broken(model, lambda: model.head._parameters.__ior__(fresh)))


def test_a_table_that_is_a_buffer_is_guarded() -> None:
    class Held(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("table", torch.randn(50, 16))

        def forward(self, ids: Tensor) -> Tensor:
            logits: Tensor = torch.tanh(self.table[ids]) @ self.table.T
            return logits

    model = Held()
    guard = tiebeam.guard(model, IDS)
    guard.check()
    del model.table
    with pytest.raises(TieBroken):
        guard.check()
