"""What each operation does to a small model, what it refuses, and that a refusal leaves everything as it was."""

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.torch.operations.models import IDS, LM, OPTIMIZERS, everything, gpt, gradient, same, train
from torch import Tensor, nn
from torch.nn.utils import prune
from torch.nn.utils.parametrizations import weight_norm

import tiebeam
from tiebeam.backends.torch.operations import resizing
from tiebeam.core.operations.rows import plan_rows, resized
from tiebeam.errors import InputError, RangeError, ShapeError, TieError


def test_a_tie_is_one_object_and_the_lookups_values() -> None:
    model = LM(tied=False)
    table = model.embed.weight
    values = table.detach().clone()
    change = tiebeam.tie(model, IDS, on_conflict="embedding")
    assert model.head.weight is model.embed.weight is table
    assert torch.equal(table, values)
    assert change.tables == (("embed.weight", "head.weight"),)
    assert change.report is not None
    assert change.report.tables[0].state == "tied"


@pytest.mark.parametrize("how", ["embedding", "readout", "mean"])
def test_whose_values_count_is_said(how: str) -> None:
    model = LM(tied=False)
    ends = {"embedding": model.embed.weight.detach().clone(), "readout": model.head.weight.detach().clone()}
    ends["mean"] = (ends["embedding"] + ends["readout"]) / 2
    tiebeam.tie(model, IDS, on_conflict=how)  # type: ignore[arg-type]
    assert torch.allclose(model.embed.weight, ends[how])


def test_tying_adds_gradients_and_moments() -> None:
    model = LM(tied=False)
    model.head.weight.data.copy_(model.embed.weight.data)
    optimizer = torch.optim.Adam(model.parameters(), 0.0)
    model(IDS).square().mean().backward()
    optimizer.step()
    a, b = model.embed.weight, model.head.weight
    grad, mean, square = (
        gradient(a) + gradient(b),
        *(optimizer.state[a][n] + optimizer.state[b][n] for n in ("exp_avg", "exp_avg_sq")),
    )
    change = tiebeam.tie(model, IDS, optimizer=optimizer)
    assert torch.equal(gradient(a), grad)
    assert torch.equal(optimizer.state[a]["exp_avg"], mean)
    assert torch.equal(optimizer.state[a]["exp_avg_sq"], square)
    assert optimizer.state[a]["step"] == 1
    assert b not in optimizer.state
    assert all(p is not b for p in optimizer.param_groups[0]["params"])
    assert change.optimizer == ("embed.weight: joined with head.weight",)


def test_an_optimizer_that_holds_the_readout_alone_steps_the_table_then() -> None:
    model = LM(tied=False)
    groups: list[dict[str, Any]] = [{"params": [model.mid.weight]}, {"params": [model.head.weight], "lr": 0.5}]
    optimizer = torch.optim.Adam(groups)
    tiebeam.tie(model, IDS, on_conflict="mean", optimizer=optimizer)
    assert optimizer.param_groups[1]["params"][0] is model.embed.weight


def test_named_parameters_of_an_optimizer_keep_their_names() -> None:
    model = LM()
    optimizer = torch.optim.AdamW(model.named_parameters())
    tiebeam.untie(model, IDS, optimizer=optimizer)
    names, held = optimizer.param_groups[0]["param_names"], optimizer.param_groups[0]["params"]
    assert all(dict(model.named_parameters())[n] is p for n, p in zip(names, held, strict=True))
    tiebeam.tie(model, IDS, optimizer=optimizer)
    assert optimizer.param_groups[0]["param_names"] == [n for n, _ in model.named_parameters()]


def test_several_optimizers_and_wrapped_ones_are_opened() -> None:
    class Wrapped:
        def __init__(self, optimizer: torch.optim.Optimizer) -> None:
            self.optimizer = optimizer

    model = LM()
    table, body = torch.optim.Adam([model.embed.weight]), torch.optim.SGD(model.mid.parameters(), 0.1)
    tiebeam.untie(model, IDS, optimizer=[Wrapped(table), body])
    assert [id(p) for p in table.param_groups[0]["params"]] == [id(model.embed.weight), id(model.head.weight)]
    assert len(body.param_groups[0]["params"]) == 2
    tiebeam.tie(model, IDS, optimizer=[body, Wrapped(table)])
    assert len(table.param_groups[0]["params"]) == 1


def test_hooks_and_the_object_stay_through_a_resize() -> None:
    model, seen = LM(), []
    model.embed.weight.register_post_accumulate_grad_hook(lambda p: seen.append(tuple(p.shape)))
    model.embed.weight.register_hook(lambda g: g * 0)
    table = model.embed.weight
    model(IDS).sum().backward()
    tiebeam.resize(model, 60, IDS)
    table.grad = None
    model(IDS).sum().backward()
    assert model.embed.weight is table
    assert seen == [(50, 16), (60, 16)]
    assert not gradient(table).any()


def test_new_rows_are_those_of_the_rule_whatever_the_framework() -> None:
    model = LM()
    old = model.embed.weight.detach().numpy().copy()
    tiebeam.resize(model, 70, IDS, seed=5, parts={51: [1, 2]})
    assert np.array_equal(
        model.embed.weight.detach(), resized(old, 0, plan_rows(50, 70, seed=5, parts={51: [1, 2]}), 0)
    )


def test_a_table_in_half_precision_keeps_its_bits_and_its_dtype() -> None:
    model = LM().to(torch.bfloat16)
    old = model.embed.weight.detach().clone()
    tiebeam.resize(model, 64, IDS)
    assert model.embed.weight.dtype == torch.bfloat16
    assert torch.equal(model.embed.weight[:50], old)


def test_two_parameters_on_one_storage_become_one() -> None:
    model = LM(tied=False)
    model.head.weight = nn.Parameter(model.embed.weight.data)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    tiebeam.tie(model, IDS, optimizer=optimizer)
    assert model.head.weight is model.embed.weight
    assert len(optimizer.param_groups[0]["params"]) == 3


def test_what_is_as_asked_already_is_left() -> None:
    model = LM()
    assert tiebeam.tie(model, IDS).tables == ()
    tiebeam.untie(model, IDS)
    assert tiebeam.untie(model, IDS).tables == ()
    assert tiebeam.resize(model, 50, IDS).tables == ()
    assert tiebeam.retie(LM(), [("embed.weight", "head.weight")]).tables == ()


def test_an_untied_readout_holds_what_the_table_held() -> None:
    model = LM()
    vars(model.embed.weight)["marked"] = "no decay"
    logits = model(IDS)
    change = tiebeam.untie(model, IDS)
    assert change.tables == (("embed.weight",), ("head.weight",))
    assert torch.equal(model(IDS), logits)
    assert vars(model.head.weight)["marked"] == "no decay"
    assert change.report is not None
    assert {t.state for t in change.report.tables} == {"copy"}


def test_both_ends_and_the_bias_take_their_rows() -> None:
    model = LM(bias=True, tied=False)
    with torch.no_grad():
        model.head.bias.normal_()
    rows, out, bias = (p.detach().clone() for p in (model.embed.weight, model.head.weight, model.head.bias))
    optimizer = OPTIMIZERS["adafactor"](model.parameters())
    model(IDS).sum().backward()
    optimizer.step()
    rows, out, bias = (p.detach().clone() for p in (model.embed.weight, model.head.weight, model.head.bias))
    change = tiebeam.resize(model, 53, IDS, optimizer=optimizer, rows="mean")
    assert torch.equal(model.embed.weight[:50], rows)
    assert torch.equal(model.head.weight[:50], out)
    assert torch.equal(model.head.bias[:50], bias)
    assert torch.allclose(model.embed.weight[50:], rows.mean(0).expand(3, -1), atol=1e-6)
    assert torch.allclose(model.head.weight[50:], out.mean(0).expand(3, -1), atol=1e-6)
    assert torch.allclose(model.head.bias[50:], bias.mean().expand(3), atol=1e-6)
    assert (model.embed.num_embeddings, model.head.out_features, model.embed.embedding_dim) == (53, 53, 16)
    assert optimizer.state[model.head.weight]["row_var"].shape == (53, 1)
    assert optimizer.state[model.head.weight]["col_var"].shape == (1, 16)
    assert {n for names in change.tables for n in names} == {"embed.weight", "head.weight", "head.bias"}
    optimizer.step()


def test_new_rows_have_the_mean_and_covariance_of_the_old_ones_at_each_end() -> None:
    torch.manual_seed(0)
    model = LM(4000, 8, tied=False)
    mix = torch.randn(8, 8)
    with torch.no_grad():
        model.embed.weight.copy_(torch.randn(4000, 8) @ mix + 2)
        model.head.weight.copy_(0.1 * torch.randn(4000, 8) - 1)
    tiebeam.resize(model, 12000, IDS)
    for table in (model.embed.weight.detach(), model.head.weight.detach()):
        old, new = table[:4000].T, table[4000:].T
        assert torch.allclose(new.mean(1), old.mean(1), atol=0.15 * old.std().item())
        assert (torch.cov(new) - torch.cov(old)).norm() < 0.1 * torch.cov(old).norm()
    assert not torch.equal(model.embed.weight[4000:], model.head.weight[4000:])


def test_rows_of_the_tables_std_are_those_that_a_larger_vocabulary_would_have_been_drawn_with() -> None:
    a, b = gpt(97), gpt(130)
    tiebeam.initialize(a, seed=7)
    tiebeam.initialize(b, seed=7)
    tiebeam.resize(a, 130, rows="std", seed=7)
    assert torch.allclose(a.embed.weight, b.embed.weight, rtol=0.02, atol=1e-3)
    assert torch.equal(a.embed.weight[:97], b.embed.weight[:97])


def test_a_new_token_is_the_mean_of_what_the_old_tokenizer_made_of_it() -> None:
    model = LM()
    tokens = {f"t{i}": i for i in range(50)}
    new = {**{t: i + 1 for t, i in tokens.items()}, "t3t5": 0}
    old = model.embed.weight.detach().clone()
    change = tiebeam.resize(model, inputs=IDS, tokens=(tokens, new), parts={0: [3, 5]})
    assert change.vocab == (50, 51)
    assert torch.equal(model.embed.weight[1:], old)
    assert torch.allclose(model.embed.weight[0], (old[3] + old[5]) / 2)


def test_a_smaller_vocabulary_drops_the_last_rows_whatever_ids_were_given() -> None:
    model = LM()
    old = model.embed.weight.detach().clone()
    tiebeam.resize(model, 20, torch.tensor([[1, 49, 30]]))
    assert torch.equal(model.embed.weight, old[:20])
    assert model(torch.tensor([[19]])).shape == (1, 1, 20)


def test_the_padding_row_moves_with_its_id_and_is_never_dropped() -> None:
    model = LM()
    model.embed = nn.Embedding(50, 16, padding_idx=49)
    tiebeam.tie(model, IDS, on_conflict="embedding")
    tiebeam.resize(model, ids=[49, *range(49), -1], inputs=IDS)
    assert model.embed.padding_idx == 0
    assert not model.embed.weight[0].any()
    assert model.embed.weight[50].any()  # the zeros of the padding row are no sample
    before = everything(model)
    with pytest.raises(TieError, match="padding row"):
        tiebeam.resize(model, ids=list(range(1, 51)), inputs=IDS)
    assert same(everything(model), before)


def test_a_table_that_lies_the_other_way_round_is_resized_too() -> None:
    class Turned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.randn(16, 50))
            self.vocab_size = 50

        def forward(self, ids: Tensor) -> Tensor:
            return torch.tanh(self.table.T[ids]) @ self.table

    model = Turned()
    old = model.table.detach().clone()
    tiebeam.resize(model, 64, IDS)
    assert model.table.shape == (16, 64)
    assert torch.equal(model.table[:, :50], old)
    assert model.vocab_size == 64


def test_a_frozen_table_stays_frozen() -> None:
    model = LM()
    model.embed.weight.requires_grad_(False)
    tiebeam.untie(model, IDS)
    tiebeam.resize(model, 60, IDS)
    assert not model.head.weight.requires_grad
    assert not model.embed.weight.requires_grad


def test_a_model_on_meta_is_changed_in_structure() -> None:
    with torch.device("meta"):
        model = LM()
    tiebeam.resize(model, 64, IDS.to("meta"))
    assert model.head.weight is model.embed.weight
    assert model.embed.weight.shape == (64, 16)
    assert model.embed.weight.is_meta
    tiebeam.untie(model, IDS.to("meta"))
    assert model.head.weight is not model.embed.weight


REFUSED: dict[str, tuple[Callable[[LM], Any], Callable[[LM, Any], Any], type[Exception], str]] = {
    "other values": (
        lambda m: setattr(m.head, "weight", nn.Parameter(torch.randn(50, 16))),
        lambda m, o: tiebeam.tie(m, IDS, optimizer=o),
        TieError,
        "different values",
    ),
    "another dtype": (
        lambda m: setattr(m.head, "weight", nn.Parameter(torch.randn(50, 16).half())),
        lambda m, o: tiebeam.tie(m, lookup="embed.weight", readout="head.weight", optimizer=o),
        TieError,
        "float16",
    ),
    "another shape": (
        lambda m: setattr(m.head, "weight", nn.Parameter(torch.randn(16, 50))),
        lambda m, o: tiebeam.tie(m, lookup="embed.weight", readout="head.weight", optimizer=o),
        ShapeError,
        "transpose",
    ),
    "one end frozen": (
        lambda m: setattr(m.head, "weight", nn.Parameter(m.embed.weight.detach().clone(), requires_grad=False)),
        lambda m, o: tiebeam.tie(m, IDS, optimizer=o),
        TieError,
        "frozen",
    ),
    "a mask on one end": (
        lambda m: prune.l1_unstructured(m.head, "weight", 0.5),
        lambda m, o: tiebeam.resize(m, 60, IDS, optimizer=o),
        TieError,
        "prune.remove",
    ),
    "a norm on one end": (
        lambda m: weight_norm(m.head),
        lambda m, o: tiebeam.tie(m, IDS, optimizer=o),
        TieError,
        "remove_parametrizations",
    ),
    "a name that is computed": (
        lambda m: weight_norm(m.head),
        lambda m, o: tiebeam.tie(m, lookup="embed.weight", readout="head.weight", optimizer=o),
        TieError,
        "computed each time",
    ),
    "a name that is not there": (
        lambda m: None,
        lambda m, o: tiebeam.tie(m, lookup="embed.weight", readout="haed.weight", optimizer=o),
        InputError,
        "head.weight",
    ),
    "another model's optimizer": (
        lambda m: None,
        lambda m, o: tiebeam.untie(m, IDS, optimizer=torch.optim.SGD(LM().parameters())),
        InputError,
        "no parameter of this model",
    ),
    "no optimizer at all": (
        lambda m: None,
        lambda m, o: tiebeam.untie(m, IDS, optimizer="adam"),
        InputError,
        "no optimizer",
    ),
    "rows that are not there": (
        lambda m: None,
        lambda m, o: tiebeam.resize(m, ids=[0, 50], inputs=IDS, optimizer=o),
        RangeError,
        "beyond the table",
    ),
    "a vocabulary of nothing": (
        lambda m: None,
        lambda m, o: tiebeam.resize(m, 0, IDS, optimizer=o),
        RangeError,
        "vocab is out of range",
    ),
    "no such rows": (
        lambda m: None,
        lambda m, o: tiebeam.resize(m, 60, IDS, rows="best", optimizer=o),  # type: ignore[arg-type]
        RangeError,
        "covariance",
    ),
    "parts of an old row": (
        lambda m: None,
        lambda m, o: tiebeam.resize(m, 60, IDS, parts={3: [1]}, optimizer=o),
        RangeError,
        "not new",
    ),
    "a policy that is none": (
        lambda m: None,
        lambda m, o: tiebeam.tie(m, IDS, on_conflict="best", optimizer=o),  # type: ignore[arg-type]
        RangeError,
        "embedding",
    ),
    "no word on what was tied": (lambda m: None, lambda m, o: tiebeam.retie(m, optimizer=o), InputError, "ties="),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_refusal_says_why_and_leaves_everything(case: str) -> None:
    damage, operation, error, says = REFUSED[case]
    model = LM()
    damage(model)
    optimizer = torch.optim.Adam(model.parameters())
    with contextlib.suppress(RuntimeError):  # some of them cannot run either
        model(IDS).sum().backward()
        optimizer.step()
    before = everything(model, optimizer)
    with pytest.raises(error, match=says):
        operation(model, optimizer)
    assert same(everything(model, optimizer), before)


def test_a_functional_tie_has_no_place_for_a_readout_of_its_own() -> None:
    class Functional(LM):
        def forward(self, ids: Tensor) -> Tensor:
            return torch.tanh(self.mid(self.embed(ids))) @ self.embed.weight.T

    with pytest.raises(TieError, match="no place of its own"):
        tiebeam.untie(Functional(), IDS)


def test_several_tables_must_be_told_apart() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Embedding(50, 16), nn.Embedding(50, 16)
            self.head = nn.Linear(16, 50, bias=False)

        def forward(self, ids: Tensor, other: Tensor) -> Tensor:
            out: Tensor = self.head(torch.tanh(self.a(ids) + self.b(other)))
            return out

    model = Two()
    with pytest.raises(InputError, match="several tables"):
        tiebeam.tie(model, (IDS, IDS), on_conflict="mean")
    tiebeam.tie(model, (IDS, IDS), lookup="b.weight", on_conflict="mean")
    assert model.head.weight is model.b.weight


FAILING: dict[str, Callable[[nn.Module, Any], Any]] = {
    "untie": lambda m, o: tiebeam.untie(m, optimizer=o),
    "resize": lambda m, o: tiebeam.resize(m, 128, optimizer=o),
    "remap": lambda m, o: tiebeam.resize(m, ids=list(range(96, -1, -1)), optimizer=o),
    "tie": lambda m, o: tiebeam.tie(m, optimizer=o, on_conflict="mean"),
}


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, TieError])
@pytest.mark.parametrize("name", FAILING)
def test_a_failure_at_the_end_undoes_everything(
    name: str, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look that confirms is the last thing that happens: whatever it raises, all before it is undone."""
    model = gpt()
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    train(model, optimizer, 2, 1)
    if name == "tie":
        tiebeam.untie(model, optimizer=optimizer)
        train(model, optimizer, 2, 1)
    before = everything(model, optimizer)

    def fails(*_: Any, **__: Any) -> None:
        raise error("stopped")

    with monkeypatch.context() as patched:
        patched.setattr("tiebeam.core.operations.verify.check_same_reads", fails)
        with pytest.raises(error, match="stopped"):
            FAILING[name](model, optimizer)
    assert same(everything(model, optimizer), before)
    FAILING[name](model, optimizer)  # and it would have gone through
    assert not same(everything(model, optimizer), before)


def test_a_failure_half_way_undoes_the_first_half(monkeypatch: pytest.MonkeyPatch) -> None:
    model = LM(tied=False, bias=True)
    before = everything(model)
    resize, calls = resizing.resize, []

    def second_fails(*args: Any) -> None:
        calls.append(1)
        if len(calls) == 2:
            raise MemoryError
        resize(*args)

    monkeypatch.setattr("tiebeam.backends.torch.operations.resizing.resize", second_fails)
    with pytest.raises(MemoryError):
        tiebeam.resize(model, 60, IDS)
    assert same(everything(model), before)


def test_code_that_reads_the_flag_is_found_out_by_looking_again() -> None:
    """A class that multiplies by a factor only while the config says that it is tied."""

    class Reads(LM):
        def __init__(self) -> None:
            super().__init__()
            from types import SimpleNamespace

            self.config = SimpleNamespace(tie_word_embeddings=True, vocab_size=50)

        def forward(self, ids: Tensor) -> Tensor:
            return super().forward(ids) * (0.25 if self.config.tie_word_embeddings else 1.0)

    model = Reads()
    before = everything(model)
    with pytest.raises(TieError, match="changed a factor"):
        tiebeam.untie(model, IDS)
    assert same(everything(model), before)
    assert model.config.tie_word_embeddings is True


def test_state_that_does_not_say_whose_rows_are_whose_is_refused() -> None:
    model = LM()
    optimizer = torch.optim.Adam(model.parameters())
    model(IDS).sum().backward()
    optimizer.step()
    optimizer.state[model.embed.weight]["blocks"] = torch.zeros(7, 3)
    before = everything(model, optimizer)
    with pytest.raises(TieError, match="blocks"):
        tiebeam.resize(model, 60, IDS, optimizer=optimizer)
    assert same(everything(model, optimizer), before)


def test_a_model_in_shards_or_buckets_is_refused() -> None:
    """A replica's buckets know the parameters that it was built with: gradients of a new one would not be reduced."""
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    try:
        replica, shards = nn.parallel.DistributedDataParallel(LM()), LM()
        fully_shard(shards)
        for operation in (lambda m: tiebeam.untie(m, IDS), lambda m: tiebeam.resize(m, 60, IDS)):
            with pytest.raises(TieError, match="data-parallel"):
                operation(replica)
            with pytest.raises(TieError, match="lies in shards"):
                operation(shards)
        assert tiebeam.ties(replica) == (("module.embed.weight", "module.head.weight"),)
    finally:
        dist.destroy_process_group()
