"""Groups in what people train with: sharded parameters, adapters, a trainer, optimizers of other shapes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.optim import reference
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import tiebeam
from tiebeam.torch import param_groups, split_for_muon

IDS = torch.arange(8)[None] % 100


def gpt2(**more: Any) -> GPT2LMHeadModel:
    torch.manual_seed(0)
    config = GPT2Config(
        n_embd=32, n_layer=1, n_head=2, vocab_size=100, n_positions=16, bos_token_id=0, eos_token_id=0, **more
    )
    return GPT2LMHeadModel(config)


def sizes(groups: list[dict[str, Any]]) -> list[int]:
    return [len(g["params"]) for g in groups]


def assert_partition(model: nn.Module, groups: list[dict[str, Any]]) -> None:
    held = [id(p) for g in groups for p in g["params"]]
    assert sorted(held) == sorted({id(p) for p in model.parameters() if p.requires_grad})


@pytest.fixture
def one_process(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("one_process")
@pytest.mark.filterwarnings("ignore")
def test_a_sharded_model_takes_the_report_of_the_whole_one() -> None:
    model = gpt2()
    report = tiebeam.inspect(model, IDS)
    whole = param_groups(model, report, lr=1e-3, ratios={"transformer.wte.weight": 4.0})
    fully_shard(model, mesh=dist.device_mesh.init_device_mesh("cpu", (1,)))
    groups = param_groups(model, report, lr=1e-3, ratios={"transformer.wte.weight": 4.0})
    assert_partition(model, groups)
    assert sizes(groups) == sizes(whole)
    assert isinstance(groups[-1]["params"][0], DTensor)
    assert groups[-1]["params"][0] is model.transformer.wte.weight
    optimizer = torch.optim.AdamW(groups)
    assert [f.code for f in tiebeam.inspect_optimizer(optimizer, model, report).findings] == ["table-rate"]  # 4, not 1
    model(IDS, labels=IDS).loss.backward()
    optimizer.step()


@pytest.mark.filterwarnings("ignore")
def test_adapters_alone_are_trained_where_the_base_is_frozen() -> None:
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(gpt2(), LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True))
    report = tiebeam.inspect(model, IDS)
    groups = param_groups(model, report, lr=1e-3, weight_decay=0.1)
    assert_partition(model, groups)
    assert sizes(groups) == [2]
    torch.optim.AdamW(groups).step()


@pytest.mark.filterwarnings("ignore")
def test_a_table_that_an_adapter_trains_is_a_table() -> None:
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True, modules_to_save=["wte"])
    model = get_peft_model(gpt2(), config)
    report = tiebeam.inspect(model, IDS)
    groups = param_groups(model, report, lr=1e-3, weight_decay=0.1)
    assert_partition(model, groups)
    trained = {n for n, p in model.named_parameters() if p.requires_grad and "wte" in n}
    assert {id(model.get_parameter(n)) for n in trained} == {id(p) for g in groups[1:] for p in g["params"]}


def data() -> list[dict[str, torch.Tensor]]:
    return [{"input_ids": IDS[0], "labels": IDS[0]} for _ in range(4)]


def arguments(folder: Path) -> TrainingArguments:
    return TrainingArguments(
        str(folder), max_steps=2, per_device_train_batch_size=2, report_to=[], use_cpu=True, save_strategy="no",
        disable_tqdm=True, lr_scheduler_type="cosine", logging_strategy="no", learning_rate=1e-3,
    )  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("how", ["an optimizer", "a class and its arguments"])
def test_a_trainer_trains_on_the_groups(how: str, tmp_path: Path) -> None:
    model = gpt2()
    report = tiebeam.inspect(model, IDS)
    groups = param_groups(model, report, lr=1e-3, weight_decay=0.1, ratios={"transformer.wte.weight": 4.0})
    if how == "an optimizer":
        more: dict[str, Any] = {"optimizers": (torch.optim.AdamW(groups), None)}
    else:
        more = {"optimizer_cls_and_kwargs": (torch.optim.AdamW, {"params": groups, "lr": 1e-3})}
    before = model.transformer.wte.weight.detach().clone()
    trainer = Trainer(model=model, args=arguments(tmp_path), train_dataset=data(), **more)
    trainer.train()
    held = trainer.optimizer.param_groups
    assert [g["initial_lr"] for g in held] == [1e-3, 1e-3, 4e-3]
    assert [id(p) for g in held for p in g["params"]] == [id(p) for g in groups for p in g["params"]]
    assert not torch.equal(before, model.transformer.wte.weight)
    seen = tiebeam.inspect_optimizer(trainer.optimizer, model, report, trainer.lr_scheduler)
    assert [f.code for f in seen.findings] == ["table-rate"]  # 4 was asked for by hand, and the ratio is 1


@pytest.mark.filterwarnings("ignore")
def test_a_trainer_with_a_least_rate_of_its_own_kind_keeps_the_ratio(tmp_path: Path) -> None:
    model = gpt2()
    report = tiebeam.inspect(model, IDS)
    args = arguments(tmp_path)
    args.lr_scheduler_type = "cosine_with_min_lr"
    args.lr_scheduler_kwargs = {"min_lr_rate": 0.5}
    optimizer = torch.optim.AdamW(param_groups(model, report, lr=1e-3))
    trainer = Trainer(model=model, args=args, train_dataset=data(), optimizers=(optimizer, None))
    trainer.train()
    assert not tiebeam.inspect_optimizer(trainer.optimizer, model, report, trainer.lr_scheduler).findings


class EightBit(reference.Reference):
    """A shape that 8-bit optimizers have: options of a group beyond lr, state that is not kept in float32."""

    def __init__(self, params: Any, lr: float = 1e-3, weight_decay: float = 0.0, block_wise: bool = True) -> None:
        super().__init__(params, lr, weight_decay)
        for group in self.param_groups:
            group.setdefault("block_wise", block_wise)

    def update(self, p: torch.Tensor, g: torch.Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        assert group["block_wise"]
        if "m" in state:
            state["m"] = state["m"].float() * state["largest"] / 127
        m = reference.kept(state, "m", g).mul_(0.9).add_(g, alpha=0.1)
        state["largest"] = m.abs().max().clamp(min=1e-12)
        state["m"] = (m / state["largest"] * 127).round().to(torch.int8)
        p.sub_(m.sign(), alpha=group["lr"])


def test_an_optimizer_with_options_of_its_own_takes_the_groups() -> None:
    model = gpt2()
    report = tiebeam.inspect(model, IDS)
    optimizer = EightBit(param_groups(model, report, lr=1e-3))
    for _ in range(2):
        model(IDS, labels=IDS).loss.backward()
        optimizer.step()
    assert not tiebeam.inspect_optimizer(optimizer, model, report, family="lion").findings


def test_a_split_for_muon_trains() -> None:
    model = gpt2()
    muon, adam = split_for_muon(model, tiebeam.inspect(model, IDS), lr=1e-3, muon_lr=0.02, weight_decay=0.1)
    optimizers = [torch.optim.Muon(muon), torch.optim.AdamW(adam)]
    losses = []
    for _ in range(4):
        loss = model(IDS, labels=IDS).loss
        loss.backward()
        losses.append(loss.item())
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    assert losses[-1] < losses[0]
