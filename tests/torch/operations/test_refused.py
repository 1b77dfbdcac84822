"""What is refused, and that a refusal or a failure leaves everything as it was, bit by bit."""

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.torch.operations.models import IDS, LM, OPTIMIZERS, everything, gpt, same, train
from torch import Tensor, nn
from torch.nn.utils import prune
from torch.nn.utils.parametrizations import weight_norm

import tiebeam
from tiebeam.backends.torch.operations import resizing
from tiebeam.errors import InputError, RangeError, ShapeError, TieError

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


@pytest.mark.parametrize("operation", [tiebeam.untie, lambda m, inputs: tiebeam.resize(m, 70, inputs)])
def test_a_gradient_of_before_a_resize_by_other_means_is_to_be_dropped_first(operation: Callable[..., Any]) -> None:
    """`resize_token_embeddings` of Transformers sets `.data` and leaves the gradient that the smaller table had."""
    model = LM()
    model(IDS).sum().backward()
    stale = model.embed.weight.grad
    model.embed.weight.data = torch.randn(60, 16)
    model.embed.num_embeddings = model.head.out_features = 60
    with pytest.raises(TieError, match=r"(?s)gradient of 'embed.weight'.*\(50, 16\).*\(60, 16\).*zero_grad"):
        operation(model, IDS)
    assert model.embed.weight.grad is stale
    assert model.embed.weight is model.head.weight
    model.zero_grad()
    operation(model, IDS)


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


@pytest.mark.parametrize(
    ("name", "error"), [*((name, KeyboardInterrupt) for name in FAILING), ("untie", ValueError), ("resize", TieError)]
)
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
