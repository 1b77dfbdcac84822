"""What people put around a model before they ask: precision, compilers, shards, adapters, hooks."""

import json
import subprocess
import sys
import warnings
from collections.abc import Iterator
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from tests.torch.models.kit import VOCAB, WIDTH, Base, ids
from tests.torch.test_bad_input import assert_untouched, snapshot
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils import parametrizations, prune

import tiebeam

PARALLEL = str(Path(__file__).with_name("tensor_parallel.py"))


class Modules(nn.Module):
    """Embedding and head as two modules on one parameter, with factors on either side."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.mid = nn.Embedding(VOCAB, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCAB, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids) * 4.0
        return self.head(self.norm(x + torch.tanh(self.mid(x)))) * 0.5


def check(report: tiebeam.Report, *endings: str, state: str = "tied") -> tiebeam.Table:
    (table,) = report.tables
    assert table.state == state, table.notes
    assert table.lookup_factor == pytest.approx(4.0)
    assert table.readout_factor == pytest.approx(0.5)
    for ending in endings or ("embed.weight", "head.weight"):
        assert any(n.endswith(ending) for n in table.names), table.names
    return table


def test_the_bare_model_is_what_the_wrapped_ones_are_held_against() -> None:
    check(tiebeam.inspect(Modules(), ids()))


def test_autocast_changes_no_fact_and_keeps_no_cast_copy() -> None:
    model = Modules()
    with torch.autocast("cpu", torch.bfloat16):
        model(ids())  # the cache now holds a cast table
        check(tiebeam.inspect(model, ids()))
        check(tiebeam.inspect(model, ids()))


# Importing the compiler warns of its own past.
compiler = pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")


@compiler
def test_a_compiled_wrapper_is_looked_through() -> None:
    model = Modules()
    check(tiebeam.inspect(torch.compile(model), ids()))


@compiler
def test_a_module_compiled_in_place_runs_eager_for_the_look() -> None:
    model = Modules()
    model.compile()
    check(tiebeam.inspect(model, ids()))
    model = Modules()
    model.mid.compile()
    check(tiebeam.inspect(model, ids()))


@pytest.fixture
def group(tmp_path: Any) -> Iterator[None]:
    """A process group of one."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.usefixtures("group")
def test_data_parallel_wrapping_keeps_the_tie() -> None:
    check(tiebeam.inspect(nn.parallel.DistributedDataParallel(Modules()), ids()))


@pytest.mark.slow
@pytest.mark.usefixtures("group")
@pytest.mark.filterwarnings("ignore")
def test_a_fully_sharded_model_is_seen_through_its_shards() -> None:
    from torch.distributed.fsdp import fully_shard

    model = Modules()
    mesh = dist.init_device_mesh("cpu", (1,))
    fully_shard(model.mid, mesh=mesh)
    fully_shard(model, mesh=mesh)
    table = check(tiebeam.inspect(model, ids()))
    assert (table.vocab, table.width) == (VOCAB, WIDTH)
    check(tiebeam.inspect(model, ids()))  # the first look left the shards as they were


@pytest.mark.slow
@pytest.mark.usefixtures("group")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("looked", [False, True], ids=["fresh", "looked at before"])
def test_initializing_a_fully_sharded_model_writes_what_it_keeps(looked: bool) -> None:
    from torch.distributed.fsdp import fully_shard

    model = Modules()
    fully_shard(model, mesh=dist.init_device_mesh("cpu", (1,)))
    if looked:
        model(ids())
        tiebeam.inspect(model, ids())
    done = tiebeam.initialize(model, ids()).init[0]
    weight = model.embed.weight
    assert type(weight.data).__name__ == "DTensor"
    assert weight.full_tensor().std().item() == pytest.approx(done.std, rel=0.1)
    assert done.settled


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_an_offloaded_model_is_seen_where_its_weights_are_fetched() -> None:
    from accelerate import cpu_offload

    model = cpu_offload(Modules(), execution_device=torch.device("cpu"))
    check(tiebeam.inspect(model, ids()))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_dispatched_model_keeps_its_tie() -> None:
    from accelerate import dispatch_model

    places = {"embed": "cpu", "mid": "cpu", "norm": "cpu", "head": "cpu"}
    check(tiebeam.inspect(dispatch_model(Modules(), places, force_hooks=True), ids()))


def adapted(**settings: Any) -> nn.Module:
    from peft import LoraConfig, get_peft_model

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return get_peft_model(Modules(), LoraConfig(r=2, init_lora_weights=False, **settings))


@pytest.mark.slow
def test_an_adapter_in_the_middle_leaves_the_tie_alone() -> None:
    report = tiebeam.inspect(adapted(target_modules=["mid"]), ids())
    assert report.tables[0].state == "tied"
    assert "adapter-on-readout" not in {f.code for f in report.findings}


@pytest.mark.slow
def test_an_adapter_on_the_head_alone_is_a_finding() -> None:
    report = tiebeam.inspect(adapted(target_modules=["head"]), ids())
    table = next(t for t in report.tables if any(n.endswith("embed.weight") for n in t.names))
    assert table.state == "tied"
    assert any(any("lora" in n for n in r.delta) for r in table.readouts)
    assert [f.severity for f in report.findings if f.code == "adapter-on-readout"] == ["warning"]


class ByHand(Modules):
    """An adapter of some rank on the head, written by hand."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(WIDTH, rank, bias=False), nn.Linear(rank, VOCAB, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids) * 4.0
        h = self.norm(x + torch.tanh(self.mid(x)))
        return (self.head(h) + 2.0 * self.up(self.down(F.dropout(h, 0.1)))) * 0.5


@pytest.mark.parametrize("rank", [1, WIDTH // 2, WIDTH, 2 * WIDTH])
def test_an_adapter_on_the_head_is_a_finding_whatever_its_rank(rank: int) -> None:
    """Of half the width, its factor counted as a table that is read out, and no warning was given."""
    found = [f for f in tiebeam.inspect(ByHand(rank), ids()).findings if f.code == "adapter-on-readout"]
    assert [f.severity for f in found] == ["warning"]
    assert "up.weight" in found[0].message


class Both(ByHand):
    """The same adapter in both roles: it is a table, looked up too."""

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids) * 4.0 + F.embedding(ids, self.up.weight) @ self.down.weight
        h = self.norm(x + torch.tanh(self.mid(x)))
        return (self.head(h) + self.up(self.down(h))) * 0.5


def test_an_adapter_in_both_roles_is_no_finding() -> None:
    report = tiebeam.inspect(Both(WIDTH // 2), ids())
    assert report.tables[0].tied
    assert "adapter-on-readout" not in {f.code for f in report.findings}


@pytest.mark.slow
def test_a_side_kept_as_a_trained_copy_is_a_finding() -> None:
    report = tiebeam.inspect(adapted(target_modules=["mid"], modules_to_save=["embed"]), ids())
    assert not any(t.tied for t in report.tables)
    assert {"one-side-trained", "copy-not-tie"} & {f.code for f in report.findings}


def test_weight_norm_on_the_head_is_no_sound_tie() -> None:
    """The head's direction keeps the storage, as another parameter, and its length becomes a third."""
    model = Modules()
    parametrizations.weight_norm(model.head)
    report = tiebeam.inspect(model, ids())
    assert not any(t.state == "tied" for t in report.tables)
    assert "reparametrized-role" in {f.code for f in report.findings}


def test_a_mask_on_one_side_is_a_finding_though_the_parameter_is_shared() -> None:
    model = Modules()
    prune.l1_unstructured(model.head, "weight", amount=0.5)
    report = tiebeam.inspect(model, ids())
    assert "reparametrized-role" in {f.code for f in report.findings}


def test_a_parametrization_of_both_sides_as_one_keeps_the_tie() -> None:
    class Halve(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 0.5

    class Model(Base):
        def __init__(self) -> None:
            super().__init__()
            nn.utils.parametrize.register_parametrization(self, "table", Halve())

    (table,) = tiebeam.inspect(Model(), ids()).tables
    assert table.state == "tied"
    assert (table.lookup_factor, table.readout_factor) == (0.5, 0.5)
    assert table.names == ("parametrizations.table.original",)


def test_hooks_of_the_user_run_and_their_factors_count() -> None:
    model, calls = Modules(), []
    model.embed.register_forward_hook(lambda m, args, out: calls.append(1) or out * 3.0)
    model.head.register_forward_pre_hook(lambda m, args: (args[0] * 0.1,))
    (table,) = tiebeam.inspect(model, ids()).tables
    assert calls
    assert table.lookup_factor == pytest.approx(12.0)
    assert table.readout_factor == pytest.approx(0.05)


def test_parameters_given_from_outside_are_followed() -> None:
    """A model whose forward calls another one functionally, with tensors of its own."""

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = nn.ParameterDict({"table": nn.Parameter(torch.randn(VOCAB, WIDTH))})
            self.inner = [Base()]  # not registered

        def forward(self, ids: Tensor) -> Tensor:
            return functional_call(self.inner[0], {"table": self.weights["table"]}, (ids,))

    (table,) = tiebeam.inspect(Outer(), ids()).tables
    assert table.state == "tied"
    assert table.names == ("weights.table",)


def test_two_values_for_one_name_are_not_a_tie() -> None:
    """`functional_call` with a table for each role undoes a tie for that call."""

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = (nn.Parameter(torch.randn(VOCAB, WIDTH)) for _ in range(2))
            self.inner = [Modules()]

        def forward(self, ids: Tensor) -> Tensor:
            given = {"embed.weight": self.one, "head.weight": self.two}
            return functional_call(self.inner[0], given, (ids,), tie_weights=False)

    assert {t.names for t in tiebeam.inspect(Outer(), ids()).tables} == {("one",), ("two",)}


@compiler
@pytest.mark.parametrize(
    "wrap",
    [torch.compile, lambda m: m, lambda m: parametrizations.weight_norm(m.head) and m],
    ids=["compiled", "bare", "parametrized"],
)
def test_a_look_through_a_wrapper_changes_nothing(wrap: Any) -> None:
    model = Modules()
    wrapped = wrap(model)
    before, answer = snapshot(model), model(ids())
    tiebeam.inspect(wrapped, ids())
    assert_untouched(before, model)
    assert torch.equal(model(ids()), answer)


def test_packed_tensors_are_not_kept_by_the_users_hooks() -> None:
    """The user's own saved-tensor hooks see what a pass would show them, or nothing; they do not break it."""
    packed: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t, lambda t: t):
        check(tiebeam.inspect(Modules(), ids()))
    packed.clear()
    assert F.linear(torch.ones(1, WIDTH), Modules().head.weight).shape == (1, VOCAB)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_a_tensor_parallel_model_is_seen_as_the_whole_one(processes: int, tmp_path: Path) -> None:
    """Shards are wrapped into whole tensors and taken out again in every layer, which nobody records."""
    ranks = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", PARALLEL, str(rank), str(processes), str(tmp_path)],
            stdout=subprocess.PIPE, text=True,
        )
        for rank in range(processes)
    ]  # fmt: skip
    for rank in ranks:
        said, _ = rank.communicate(timeout=120)
        assert json.loads(said) == [[[["embed.weight", "head.weight"], "tied", 512, 64, 8.0, 0.5]], []]


@pytest.mark.slow
def test_inputs_are_made_behind_an_adapter_that_hands_on_whatever_it_is_given() -> None:
    """Without a task_type its forward is `(*args, **kwargs)`, and the model inside was called with nothing."""
    from peft import LoraConfig, get_peft_model
    from tests.checkpoints.tiny import tiny

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peft asks transformers by an old name
        model = get_peft_model(tiny("GPT2LMHeadModel"), LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True))
    assert "input_ids" not in signature(model.forward).parameters
    assert tiebeam.inspect(model).tables[0].state == "tied"
