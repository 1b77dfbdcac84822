"""Programs with operators for control flow, derivatives and layouts of their own, as plain ones."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import tiebeam

IDS = torch.arange(1, 25).view(2, 12)


class Tied(nn.Module):
    def __init__(self, rows: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.embed = nn.Embedding(300, 64)
        self.norm = nn.LayerNorm(64)
        self.rows = rows

    def forward(self, ids: Tensor) -> Tensor:
        return self.norm(self.rows(self.embed(ids), ids)) @ self.embed.weight.T


def cond(x: Tensor, ids: Tensor) -> Tensor:
    out: Tensor = torch.cond((ids >= 0).all(), lambda x: x * 8, lambda x: x * 2, (x,))
    return out


def loop(x: Tensor, ids: Tensor) -> Tensor:
    from torch._higher_order_ops.while_loop import while_loop

    start = torch.zeros((), dtype=torch.long, device=x.device)
    _, out = while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 2), (start, x))
    return out


def pairs(x: Tensor) -> Tensor:
    return torch.view_as_complex(x.view(*x.shape[:-1], -1, 2))


PROGRAMS: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], float | None]] = {
    "cond": (cond, 8.0),
    "complex": (lambda x, ids: torch.view_as_real(pairs(x) * 8).flatten(-2), 8.0),
    "imaginary": (lambda x, ids: torch.view_as_real(pairs(x) * 8j).flatten(-2), None),
    "stretched": (lambda x, ids: F.interpolate(x * 4, size=64, mode="nearest") * 2, 8.0),
}


@pytest.mark.filterwarnings("ignore")  # the compiler warns of itself
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_factor_within_an_operator_is_seen(name: str) -> None:
    rows, factor = PROGRAMS[name]
    report = tiebeam.inspect(Tied(rows), IDS)
    (table,) = report.tables
    assert (table.state, table.lookup_factor) == ("tied", factor)
    assert report.notes == ()


@pytest.mark.filterwarnings("ignore")
def test_a_branch_is_followed_without_values_too() -> None:
    with torch.device("meta"):
        model = Tied(cond)
    (table,) = tiebeam.inspect(model, IDS.to("meta")).tables
    assert (table.state, table.lookup_factor) == ("tied", 8.0)


@pytest.mark.filterwarnings("ignore")
def test_an_operation_that_could_hide_a_factor_is_named() -> None:
    for hidden, name in ((lambda x, ids: torch._foreach_mul([x], 8.0)[0], "_foreach_mul"), (loop, "while_loop")):
        report = tiebeam.inspect(Tied(hidden), IDS)
        assert any(name in note and "has an unknown body" in note for note in report.notes)
    for known in (lambda x, ids: x.cumsum(1), lambda x, ids: F.scaled_dot_product_attention(x, x, x)):
        assert tiebeam.inspect(Tied(known), IDS).notes == ()


def by_derivative(x: Tensor, ids: Tensor) -> Tensor:
    step: Any = torch.func.grad(lambda y: (y * y).sum())(x)
    return x - 0.25 * step


def by_flex_attention(x: Tensor, ids: Tensor) -> Tensor:
    from torch.nn.attention.flex_attention import flex_attention

    heads = x.view(*x.shape[:2], 4, 16).transpose(1, 2)
    out: Any = flex_attention(heads, heads, heads)
    return out.transpose(1, 2).flatten(2)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("rows", [by_derivative, by_flex_attention], ids=["derivative", "flex"])
def test_what_runs_plainly_is_looked_at(rows: Callable[[Tensor, Tensor], Tensor]) -> None:
    model = Tied(rows)
    with torch.no_grad():
        model(IDS)
        (table,) = tiebeam.inspect(model, IDS).tables
        assert tiebeam.initialize(model, IDS).init[0].settled
    assert table.state == "tied"


def test_a_model_that_refuses_its_inputs_is_run_as_a_plain_call_last_and_then_refused() -> None:
    calls = []

    def refuses(x: Tensor, ids: Tensor) -> Tensor:
        calls.append(torch.is_grad_enabled())
        raise RuntimeError("no")

    with torch.no_grad(), pytest.raises(tiebeam.InputError, match="RuntimeError: no"):
        tiebeam.inspect(Tied(refuses), IDS)
    assert calls[0] is True
    assert calls[-1] is False
    calls.clear()

    def mistaken(x: Tensor, ids: Tensor) -> Tensor:
        calls.append(True)
        raise KeyError("no")

    with pytest.raises(tiebeam.InputError, match="KeyError: 'no'"):
        tiebeam.inspect(Tied(mistaken), IDS)
    assert len(calls) == 1  # nothing that tiebeam does raises that
