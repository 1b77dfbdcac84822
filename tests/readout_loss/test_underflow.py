"""Probabilities below what a dtype holds in full: processors take a hundred times as long for them."""

import pytest
import torch
import torch.nn.functional as F

from tiebeam.blocks.readout_loss.torch import careful
from tiebeam.torch import readout_loss

TINY = torch.finfo(torch.float32).tiny


def problem(std=3.0, tokens=40, vocab=700, width=64):
    draws = torch.Generator().manual_seed(0)
    hidden, table = torch.randn(tokens, width, generator=draws), torch.randn(vocab, width, generator=draws) * std
    return hidden.requires_grad_(), table.requires_grad_(), torch.randint(vocab, (tokens,), generator=draws)


@pytest.mark.parametrize(
    "options", [{}, {"soft_cap": 100.0}, {"weight": "rising"}], ids=["plain", "capped", "weighted"]
)
def test_no_probability_is_multiplied_that_is_subnormal(monkeypatch, options):
    seen, multiply = [], careful.multiply

    def noting(out, a, b, *, add):
        seen.append(a.detach().clone())
        multiply(out, a, b, add=add)

    monkeypatch.setattr(careful, "multiply", noting)
    hidden, table, targets = problem()
    if options.get("weight") == "rising":
        options = {"weight": torch.logspace(-6, 3, len(table))}
    readout_loss(hidden, table, targets, **options).backward()
    probabilities = [a for a in seen if a.shape[-1] != hidden.shape[-1]]
    assert probabilities, "the logits were looked at by the book"
    for p in probabilities:
        assert not ((p != 0.0) & (p.abs() < TINY)).any()


@pytest.mark.parametrize("std", [1.5, 3.0, 10.0])
def test_what_is_left_out_is_nothing_beside_the_rest(std):
    hidden, table, targets = problem(std)
    readout_loss(hidden, table, targets).backward()
    exact = [t.detach().double().requires_grad_() for t in (hidden, table)]
    F.cross_entropy(exact[0] @ exact[1].T, targets).backward()
    for found, wanted in zip((hidden, table), exact, strict=True):
        assert float((found.grad - wanted.grad).norm() / wanted.grad.norm()) < 1e-5
        rare = (wanted.grad.norm(dim=-1) > 1e-30) & (wanted.grad.norm(dim=-1) < 1e-15)
        off = (found.grad[rare] - wanted.grad[rare]).norm(dim=-1) / wanted.grad[rare].norm(dim=-1)
        assert (off < 1e-3).all(), "rare rows keep theirs"


def test_weights_of_zero_or_below_are_as_in_plain_cross_entropy():
    hidden, table, targets = problem()
    weight = torch.linspace(-1.0, 1.0, len(table)).where(torch.arange(len(table)) % 3 > 0, 0.0)
    plain = [t.detach().double().requires_grad_() for t in (hidden, table)]
    wanted = F.cross_entropy(plain[0] @ plain[1].T, targets, weight=weight.double(), reduction="sum")
    found = readout_loss(hidden, table, targets, weight=weight, reduction="sum")
    found.backward(), wanted.backward()
    assert found.item() == pytest.approx(wanted.item(), rel=1e-5)
    for ours, theirs in zip((hidden, table), plain, strict=True):
        assert torch.allclose(ours.grad.double(), theirs.grad, rtol=1e-4, atol=1e-4)


def test_a_loss_that_counts_next_to_nothing_has_the_gradients_of_what_it_counts():
    """One over a large denominator times a small upstream gradient was 0 in float32."""
    hidden, table, targets = problem(std=0.1)
    bias, upstream = torch.full((len(table),), 34.0), 1e-30
    readout_loss(hidden, table, targets, bias=bias, reduction="none").sum().backward(torch.tensor(upstream))
    exact = [t.detach().double().requires_grad_() for t in (hidden, table)]
    F.cross_entropy(exact[0] @ exact[1].T + bias, targets, reduction="sum").backward(torch.tensor(upstream).double())
    for found, wanted in zip((hidden, table), exact, strict=True):
        assert float((found.grad - wanted.grad).norm() / wanted.grad.norm()) < 1e-5


@pytest.mark.parametrize(("size", "reduction", "upstream"), [(1e-4, "mean", 65536.0), (3.0, "sum", 1e-3)])
def test_the_gradient_of_a_float16_factor_is_scaled_before_it_is_rounded(size, reduction, upstream):
    hidden, table, targets = problem(std=size, tokens=4096, vocab=11)
    hidden, table = (hidden.detach() * size).half(), table.detach().half()
    factor = torch.ones((), dtype=torch.float16, requires_grad=True)
    exact = torch.ones((), dtype=torch.float64, requires_grad=True)
    (readout_loss(hidden, table, targets, factor=factor, reduction=reduction) * upstream).backward()
    logits = exact * hidden.double() @ table.double().T
    (F.cross_entropy(logits, targets, reduction=reduction) * upstream).backward()
    assert factor.grad.dtype == torch.float16
    assert factor.grad.item() == pytest.approx(exact.grad.item(), rel=1e-3)
