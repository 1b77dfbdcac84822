"""A lost path is found, and so is the share of rows that would have hidden it."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import pytest
import torch
from tests.measure.models import APART, JOINED, VOCAB, Read, Tied, batch, next_token_loss, plain
from torch import Tensor, nn
from torch.nn import functional as F

import tiebeam
from tiebeam.core.measuring.gradient_check import check
from tiebeam.zoo.numpy.tied import TiedModel, wrong_rows

Path = Literal["kept", "dropped", "doubled"]
TIMES = {"kept": 1.0, "dropped": 0.0, "doubled": 2.0}
IDS, RIGHT = np.arange(8) * 5, np.arange(8) * 7 + 1


@dataclasses.dataclass
class ByHand:
    """The NumPy model: its readout's table can be another one."""

    model: TiedModel
    whole: np.ndarray
    name: str = "table"
    step: float = 1e-4
    eps: float = 2.3e-16

    vocab, width = 64, 16
    held = tuple(map(int, IDS))
    std = 0.25

    def gradient(self, row: int) -> np.ndarray:
        return self.whole[row]

    def loss(self, role: str, row: int, move: np.ndarray) -> float:
        moved = self.model.table.copy()
        moved[row] += move
        tables = {"lookup": (moved, self.model.table), "readout": (self.model.table, moved)}[role]
        return dataclasses.replace(self.model, table=tables[0], readout=tables[1]).loss(IDS, RIGHT)


@pytest.mark.parametrize(
    ("lookup", "readout", "wrong"),
    [
        ("kept", "kept", 0),
        ("dropped", "kept", 8),
        ("doubled", "kept", 8),
        ("kept", "dropped", 64),
        ("kept", "doubled", 64),
        ("dropped", "dropped", 64),
        ("doubled", "dropped", 64),
    ],
)
@pytest.mark.parametrize("hidden", [None, 12])
def test_a_backward_pass_written_by_hand_shows_all_three_columns(
    lookup: Path, readout: Path, wrong: int, hidden: int | None
) -> None:
    model = TiedModel.random(64, 16, hidden=hidden, seed=3)
    whole = model.backward(IDS, RIGHT, lookup=lookup, readout=readout).parameters["table"]
    found = check(ByHand(model, whole))
    assert (found.lookup, found.readout, found.wrong_rows) == (lookup, readout, wrong)
    assert wrong_rows(whole, model.backward(IDS, RIGHT).parameters["table"]) == wrong
    assert found.right_share == 1 - wrong / 64
    assert found.ok is (wrong == 0)
    assert [t for t in found.times if t is not None] == pytest.approx([TIMES[lookup], TIMES[readout]], abs=1e-4)


def test_the_trap_is_said_in_words() -> None:
    model = TiedModel.random(64, 16, seed=3)
    text = str(check(ByHand(model, model.backward(IDS, RIGHT, lookup="dropped").parameters["table"])))
    assert "8 of 64 rows wrong" in text
    assert "87.5% of the rows look right" in text
    assert "lookup   dropped (arrives" in text


def test_an_error_of_no_simple_kind_is_wrong() -> None:
    model = TiedModel.random(64, 16, seed=3)
    noise = np.random.default_rng(0).normal(size=(64, 16)) * 0.1
    found = check(ByHand(model, model.backward(IDS, RIGHT).parameters["table"] + noise))
    assert (found.lookup, found.readout, found.wrong_rows, found.ok) == ("wrong", "wrong", 64, False)


def test_a_step_too_small_for_the_arithmetic_leaves_rows_undecided() -> None:
    model = TiedModel.random(64, 16, seed=3)
    found = check(ByHand(model, model.backward(IDS, RIGHT).parameters["table"], step=1e-15))
    assert all(p.right is None for p in found.probes)
    assert (found.lookup, found.readout, found.wrong_rows, found.ok) == ("unknown", "unknown", None, False)


class Head(torch.autograd.Function):
    """A head whose backward pass sends the table `times` what it should."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, w: Tensor, times: float) -> Tensor:
        ctx.save_for_backward(h, w)
        ctx.times = times
        return h @ w.T

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        h, w = ctx.saved_tensors
        return grad @ w, ctx.times * (grad.flatten(0, -2).T @ h.flatten(0, -2)), None


class Whole(torch.autograd.Function):
    """Lookup and head in one operation, written by hand: `times` of each path arrive."""

    @staticmethod
    def forward(ctx: Any, ids: Tensor, w: Tensor, times: tuple[float, float]) -> Tensor:
        ctx.save_for_backward(ids, w)
        ctx.times = times
        return torch.tanh(w[ids]) @ w.T

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor, None]:
        ids, w = ctx.saved_tensors
        h = torch.tanh(w[ids])
        sent = ctx.times[1] * (grad.flatten(0, -2).T @ h.flatten(0, -2))
        to_rows = ctx.times[0] * ((grad @ w) * (1 - h * h))
        return None, sent.index_add(0, ids.flatten(), to_rows.flatten(0, -2)), None


@pytest.mark.parametrize("path", ["kept", "dropped", "doubled"])
def test_a_custom_head_that_loses_the_readout_is_found(path: Path) -> None:
    model = Tied(lambda ids, a, b, body: Head.apply(body(F.embedding(ids, a)), b, TIMES[path]))
    found = tiebeam.check_gradients(model, batch())
    assert (found.lookup, found.readout) == ("kept", path)
    assert found.wrong_rows == (0 if path == "kept" else VOCAB)


@pytest.mark.parametrize("path", ["kept", "dropped", "doubled"])
def test_an_operation_in_both_roles_that_loses_the_lookup_is_found(path: Path) -> None:
    model = Tied(lambda ids, a, b, body: Whole.apply(ids, a, (TIMES[path], 1.0)))
    found = tiebeam.check_gradients(model, batch())
    assert (found.lookup, found.readout) == (path, "kept")
    assert found.wrong_rows == (0 if path == "kept" else found.held)


def test_a_detached_role_is_a_dropped_path() -> None:
    model = Tied(lambda ids, a, b, body: body(F.embedding(ids, a.detach())) @ b.T)
    found = tiebeam.check_gradients(model, batch())
    assert (found.lookup, found.readout, found.wrong_rows) == ("dropped", "kept", found.held)


@pytest.mark.parametrize("read", APART, ids=lambda read: read.__name__)
def test_right_backward_passes_pass(read: Read) -> None:
    found = tiebeam.check_gradients(Tied(read), batch(), rows=2)
    assert found.ok, str(found)
    assert found.wrong_rows == 0
    assert json.loads(json.dumps(found.to_dict()))["ok"]


def test_dropout_draws_the_same_in_every_pass() -> None:
    model = Tied(lambda ids, a, b, body: F.dropout(body(F.embedding(ids, a)), 0.5) @ b.T)
    assert tiebeam.check_gradients(model, batch(), rows=2).ok


@pytest.mark.parametrize("read", [r for r in JOINED if r.__name__ != "one_split"], ids=lambda read: read.__name__)
def test_a_copy_that_serves_both_roles_cannot_be_moved_in_one(read: Read) -> None:
    with pytest.raises(tiebeam.InputError, match="cannot be moved in one role alone"):
        tiebeam.check_gradients(Tied(read), batch())


def test_the_model_is_left_alone() -> None:
    model = Tied(plain)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    state = torch.random.get_rng_state()
    tiebeam.check_gradients(model, batch(), loss=lambda out, ids: next_token_loss(out, ids))
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert torch.equal(state, torch.random.get_rng_state())
    assert model.table.dtype == torch.float32
    assert model.table.grad is None


class Fickle(nn.Module):
    """Runs one operation more each time."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.runs = nn.Embedding(VOCAB, 8), 0

    def forward(self, ids: Tensor) -> Tensor:
        self.runs += 1
        h = self.embed(ids)
        for _ in range(self.runs):
            h = torch.tanh(h)
        return h @ self.embed.weight.T


def test_a_model_that_runs_other_operations_each_time_is_refused() -> None:
    with pytest.raises(tiebeam.InputError, match="does not run the same operations again"):
        tiebeam.check_gradients(Fickle(), batch())


class CastsWithin(nn.Module):
    """Normalises in float32 whatever it is in, as most models do."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, 8)

    def forward(self, ids: Tensor) -> Tensor:
        h = torch.tanh(self.embed(ids)).float()
        return (h * torch.rsqrt(h.square().mean(-1, keepdim=True) + 1e-6)).to(self.embed.weight) @ self.embed.weight.T


@pytest.mark.parametrize("seed", range(4))
def test_a_norm_in_float32_raises_no_false_alarm(seed: int) -> None:
    torch.manual_seed(seed)
    found = tiebeam.check_gradients(CastsWithin(), batch(seed=seed), seed=seed)
    assert (found.lookup, found.readout, found.wrong_rows) == ("kept", "kept", 0), str(found)


class OneType(nn.Module):
    """An operation that knows float32 alone."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, 8)

    def forward(self, ids: Tensor) -> Tensor:
        if self.embed.weight.dtype != torch.float32:
            raise RuntimeError("float32 only")
        return torch.tanh(self.embed(ids)) @ self.embed.weight.T


def test_where_float64_is_refused_float32_is_taken_and_said() -> None:
    found = tiebeam.check_gradients(OneType(), batch(), tolerance=1e-2)
    assert found.lookup in ("kept", "unknown")
    assert found.readout == "kept"
    assert any("float32" in note for note in found.notes)


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"rows": 0}, "needs rows"),
        (
            {"model": nn.Linear(3, 3), "batch": torch.ones(1, 3), "loss": lambda o, b: o.sum()},
            "no table is read in both",
        ),
        (
            {"model": Tied(plain, split=True)},
            r"(?s)roles: the model is untied\n.*'table' is looked up and 'second' read out.*tiebeam\.tie ties it",
        ),
        ({"model": Tied(plain).requires_grad_(False)}, "gets no gradient"),
        ({"batch": torch.zeros(0, 3).long()}, "empty"),
        ({"batch": torch.full((1, 3), VOCAB)}, "does not run"),
        ({"batch": torch.zeros(2, 1).long()}, "no targets"),
        ({"batch": (batch(), torch.full((2, 6), -100))}, "no targets"),
        ({"loss": lambda out, ids: out.sum() * float("nan")}, "loss is not finite"),
    ],
)
def test_what_cannot_be_checked_is_refused(given: Mapping[str, Any], word: str) -> None:
    facts = {"model": Tied(plain), "batch": batch(), **given}
    with pytest.raises((tiebeam.InputError, tiebeam.RangeError), match=word):
        tiebeam.check_gradients(facts.pop("model"), facts.pop("batch"), **facts)


class Narrow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding.from_pretrained(
            torch.randn(64, 16, generator=torch.Generator().manual_seed(0)) / 4, False
        )

    def forward(self, ids: Tensor) -> Tensor:
        x = nn.functional.rms_norm(self.embed.weight.bfloat16()[ids], (16,))
        return x @ self.embed.weight.bfloat16().T


def test_a_right_gradient_of_a_model_in_half_precision_is_undecided_and_not_called_wrong() -> None:
    """Losses are rounded to more than a move of a row changes them by: their differences decide nothing."""
    ids = torch.randint(48, (8, 16), generator=torch.Generator().manual_seed(0))
    found = tiebeam.check_gradients(Narrow(), ids)
    assert (found.lookup, found.readout, found.wrong_rows) == ("unknown", "unknown", None)


class Cached(nn.Module):
    """Float32 on the way to the logits; a rotation, a cache and a figure beside them are in bfloat16."""

    def __init__(self, times: float) -> None:
        super().__init__()
        self.embed, self.times = Narrow().embed, times
        self.register_buffer("turn", torch.linspace(0.5, 1.5, 16).bfloat16())

    def forward(self, ids: Tensor) -> Any:
        x = nn.functional.rms_norm(self.embed(ids) * (self.turn * 2).float(), (16,))
        logits = Head.apply(x, self.embed.weight, self.times)
        return {"logits": logits, "cache": x.bfloat16(), "right": logits.bfloat16().argmax(-1)}


@pytest.mark.parametrize("path", ["kept", "dropped", "doubled"])
def test_half_precision_that_is_not_between_the_table_and_the_loss_hides_no_lost_path(path: Path) -> None:
    ids = torch.randint(48, (8, 16), generator=torch.Generator().manual_seed(0))
    found = tiebeam.check_gradients(Cached(TIMES[path]), ids)
    assert (found.lookup, found.readout, found.wrong_rows) == ("kept", path, 0 if path == "kept" else 64)
