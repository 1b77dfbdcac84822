"""Each role's gradient, against the same model with a parameter for each role."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.measure.models import (
    APART,
    JOINED,
    VOCAB,
    WIDTH,
    Read,
    Tied,
    batch,
    looked_up,
    lying,
    next_token_loss,
    one_hot,
    plain,
)
from torch import Tensor, nn
from torch.nn import functional as F

import tiebeam


def by_hand(read: Read, ids: Tensor, **facts: Any) -> tuple[Tensor, Tensor]:
    model = Tied(read, split=True, **facts)
    next_token_loss(model(ids), ids).backward()
    grads = [model.table.grad, None if model.second is None else model.second.grad]
    lookup, readout = (g.to_dense() for g in grads if g is not None)
    return lookup, readout


@pytest.mark.parametrize("read", [*APART, *JOINED])
def test_each_role_sends_what_a_model_with_two_tables_sends(read: Read) -> None:
    ids = batch()
    found = tiebeam.measure(Tied(read), ids, grad=True)
    lookup, readout = by_hand(read, ids)
    torch.testing.assert_close(found.roles["lookup"].grad, lookup, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(found.roles["readout"].grad, readout, rtol=1e-6, atol=1e-7)
    assert found.roles["lookup"].grad_norm == pytest.approx(float(lookup.norm()), rel=1e-5)
    assert found.role_ratio == pytest.approx(float(lookup.norm() / readout.norm()), rel=1e-5)
    assert found.roles["lookup"].rows == int(lookup.any(1).sum())
    assert found.roles["readout"].rows == VOCAB
    cosine = F.cosine_similarity(lookup.flatten(), readout.flatten(), dim=0)
    assert found.role_cosine == pytest.approx(float(cosine), abs=1e-5)


@pytest.mark.parametrize("read", APART)
def test_uses_that_never_join_split_exactly(read: Read) -> None:
    [table] = tiebeam.measure(Tied(read), batch()).tables
    assert table.unaccounted is not None
    # A sparse gradient is added to a dense one row by row, repeated rows in turn: in another order than its own sum.
    assert table.unaccounted <= (1e-7 if read.__name__ == "sparse" else 0.0)


@pytest.mark.parametrize("read", JOINED)
def test_a_form_of_the_table_that_both_roles_share_is_parted_to_rounding(read: Read) -> None:
    [table] = tiebeam.measure(Tied(read), batch()).tables
    assert table.unaccounted is not None
    assert table.unaccounted < 1e-6


def test_a_lookup_by_a_one_hot_product_is_measured_as_one_by_rows_is() -> None:
    by_rows, by_product = (tiebeam.measure(Tied(read), batch()) for read in (plain, one_hot))
    for name in ("logit_std", "hidden_rms", "lookup_rms", "kappa", "own_logit"):
        assert getattr(by_product, name) == pytest.approx(getattr(by_rows, name), rel=1e-5), name


def test_a_table_stored_the_other_way_round_gives_rows_of_tokens() -> None:
    ids = batch()
    found = tiebeam.measure(Tied(lying, shape=(WIDTH, VOCAB)), ids, grad=True)
    lookup, readout = by_hand(lying, ids, shape=(WIDTH, VOCAB))
    assert found.roles["lookup"].rows == looked_up(ids)
    torch.testing.assert_close(found.roles["readout"].grad, readout.T)
    torch.testing.assert_close(found.roles["lookup"].grad, lookup.T)


def test_under_autocast_the_roles_are_told_apart() -> None:
    ids = batch()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = tiebeam.measure(Tied(plain), ids)
    assert found.tables[0].unaccounted == 0.0
    assert found.roles["lookup"].rows == looked_up(ids)


def test_what_comes_from_neither_role_is_said() -> None:
    model = Tied(plain)
    found = tiebeam.measure(
        model, batch(), loss=lambda out, ids: next_token_loss(out, ids) + 10 * model.table.square().sum()
    )
    assert found.targets == "loss="
    unaccounted = found.tables[0].unaccounted
    assert unaccounted is not None
    assert unaccounted > 0.5
    assert any("no lookup and no readout" in note for note in found.notes)


class Fused(torch.autograd.Function):
    """Both roles in one operation."""

    @staticmethod
    def forward(ctx: Any, ids: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(ids, w)
        return w[ids] @ w.T

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor]:
        ids, w = ctx.saved_tensors
        sent = grad.flatten(0, -2).T @ w[ids].flatten(0, -2)
        return None, sent.index_add(0, ids.flatten(), (grad @ w).flatten(0, -2))


def test_an_operation_in_both_roles_is_not_guessed_at() -> None:
    found = tiebeam.measure(Tied(lambda ids, a, b, body: Fused.apply(ids, a)), batch())  # type: ignore[no-any-return]
    assert {role: g.grad_norm for role, g in found.roles.items()} == {"lookup": None, "readout": None}
    assert found.tables[0].unaccounted == 1.0
    assert any("could not be told apart" in note for note in found.notes)


class Inner(torch.autograd.Function):
    """A backward pass of its own, as some checkpointing does it, which adds to `.grad`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, run: nn.Module, *_: Tensor) -> Tensor:
        ctx.x, ctx.run = x, run
        with torch.no_grad():
            out: Tensor = run(x)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        with torch.enable_grad():
            x = ctx.x.detach().requires_grad_()
            torch.autograd.backward(ctx.run(x), grad)
        return (x.grad, None, *[None] * 4)


def test_a_backward_pass_within_the_backward_pass_leaves_grad_alone() -> None:
    model = Tied(lambda ids, a, b, body: Inner.apply(F.embedding(ids, a), body, *body.parameters()) @ b.T)
    model.body[0].weight.grad = kept = torch.ones(WIDTH, WIDTH)
    found = tiebeam.measure(model, batch())
    assert found.tables[0].unaccounted == 0.0
    assert model.body[0].weight.grad is kept
    assert bool((kept == 1).all())
    assert model.body[0].bias.grad is None


def test_an_untied_model_has_its_ratio_too() -> None:
    ids = batch()
    found = tiebeam.measure(Tied(plain, split=True), ids)
    lookup, readout = by_hand(plain, ids)
    assert found.role_ratio == pytest.approx(float(lookup.norm() / readout.norm()), rel=1e-5)
    assert found.role_cosine is None
    assert (found.roles["lookup"].table, found.roles["readout"].table) == ("table", "second")


def test_two_parameters_on_one_storage_are_one_table() -> None:
    model = Tied(plain, split=True)
    model.second = nn.Parameter(model.table.detach())
    found = tiebeam.measure(model, batch())
    [table] = found.tables
    assert table.state == "aliased"
    assert set(table.roles) == {"lookup", "readout"}
    assert table.unaccounted == 0.0
    assert found.role_cosine is not None


def test_a_gradient_whose_squares_vanish_is_no_dead_role() -> None:
    """Entries of 1e-25, as a loss that is all but zero sends them: their squares are 0 in float32."""
    small = tiebeam.measure(Tied(plain), batch(), loss=lambda out, ids: 1e-25 * next_token_loss(out, ids))
    usual = tiebeam.measure(Tied(plain), batch())
    for role in ("lookup", "readout"):
        assert small.roles[role].rows == usual.roles[role].rows
        assert small.roles[role].grad_norm == pytest.approx(1e-25 * usual.roles[role].grad_norm, rel=1e-3)
    assert small.role_cosine == pytest.approx(usual.role_cosine, abs=1e-3)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("where", ["memory", "disk"])
def test_an_offloaded_model_is_measured_by_what_its_hooks_fetch(where: str, tmp_path: Path) -> None:
    accelerate = pytest.importorskip("accelerate")
    ids, model, here = batch(), Tied(plain), torch.device("cpu")
    if where == "memory":
        accelerate.cpu_offload(model, execution_device=here)
    else:
        accelerate.disk_offload(model, str(tmp_path), execution_device=here)
    found = tiebeam.measure(model, ids, grad=True)
    for role, want in zip(("lookup", "readout"), by_hand(plain, ids), strict=True):
        torch.testing.assert_close(found.roles[role].grad, want, rtol=1e-6, atol=1e-7)
    assert model.table.is_meta
