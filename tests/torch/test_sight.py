"""Tables that hang elsewhere than in a parameter, and passes that run elsewhere: seen, or said to be unseen."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import tiebeam

IDS = torch.arange(24).view(2, 12)


class Held(nn.Module):
    """A tied table that `hold` puts somewhere, and that `get` finds there."""

    def __init__(self, hold: Callable[[nn.Module, Tensor], Any], get: Callable[[nn.Module], Tensor]) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(64)
        self.body = nn.Linear(64, 64)
        hold(self, 0.02 * torch.randn(300, 64))
        self.get = get

    def forward(self, ids: Tensor) -> Tensor:
        rows = F.embedding(ids, self.get(self))
        return self.norm(rows + self.body(rows)) @ self.get(self).T


@pytest.mark.parametrize(
    ("hold", "get", "name"),
    [
        pytest.param(lambda m, w: setattr(m, "w", w), lambda m: m.w, "w", id="attribute"),
        pytest.param(lambda m, w: setattr(m, "ws", [w]), lambda m: m.ws[0], "ws.0", id="list"),
        pytest.param(lambda m, w: setattr(m, "ws", {"a": w}), lambda m: m.ws["a"], "ws.a", id="dictionary"),
        pytest.param(lambda m, w: setattr(m.body, "w", w), lambda m: m.body.w, "body.w", id="of a submodule"),
    ],
)
def test_a_table_in_a_plain_attribute_is_seen_and_written(hold: Any, get: Any, name: str) -> None:
    model = Held(hold, get)
    (table,) = tiebeam.inspect(model, IDS).tables
    assert (table.names, table.state) == ((name,), "tied")
    assert tiebeam.initialize(model, IDS).init[0].settled
    assert get(model).std().item() == pytest.approx(1 / 8, rel=0.02)


def test_a_table_that_nothing_of_the_model_holds_is_said_to_be_none() -> None:
    kept = torch.randn(300, 64)
    model = Held(lambda m, w: None, lambda m: kept)
    report = tiebeam.inspect(model, IDS)
    assert report.tables == ()
    assert [n for n in report.notes if "shape (300, 64)" in n and "no parameter, buffer or attribute" in n]


def test_a_pass_that_runs_in_another_thread_is_said() -> None:
    class Elsewhere(Held):
        def forward(self, ids: Tensor) -> Tensor:
            found: list[Tensor] = []
            work = super().forward
            thread = threading.Thread(target=lambda: found.append(work(ids)))
            thread.start()
            thread.join()
            return found[0]

    model = Elsewhere(lambda m, w: setattr(m, "w", nn.Parameter(w)), lambda m: m.w)
    notes = tiebeam.inspect(model, IDS).notes
    assert [n for n in notes if "made out of sight" in n]


def test_nothing_is_said_of_a_model_that_returns_its_parameters_or_inputs() -> None:
    class Returns(Held):
        def forward(self, ids: Tensor) -> Any:
            return super().forward(ids), self.body.weight, ids, torch.zeros(3)

    model = Returns(lambda m, w: setattr(m, "w", nn.Parameter(w)), lambda m: m.w)
    assert tiebeam.inspect(model, IDS).notes == ()
