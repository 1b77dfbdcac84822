"""Ordinary slips: each is refused with what to do, none is passed over in silence."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tiebeam
from tiebeam.cli.output import check_file
from tiebeam.cli.targets import _attribute
from tiebeam.torch import param_groups, readout_loss
from tiebeam.zoo.minigpt import MiniGPTConfig
from tiebeam.zoo.torch.minigpt import MiniGPT

IDS = torch.arange(16).view(2, 8)
HIDDEN, TABLE, TARGETS = torch.ones(2, 3, 8), torch.ones(10, 8), torch.zeros(2, 3, dtype=torch.long)


def _model() -> MiniGPT:
    return MiniGPT(MiniGPTConfig.from_scheme("C", vocab=64, width=16))


def _stored(folder: Path) -> Path:
    tiebeam.save(_model(), folder / "model.safetensors")
    return folder / "model.safetensors"


class Adapted(nn.Module):
    """A tied model with a low-rank product added to one end."""

    def __init__(self, end: str) -> None:
        super().__init__()
        self.end = end
        self.embed = nn.Embedding(64, 16)
        self.head = nn.Linear(16, 64, bias=False)
        self.head.weight = self.embed.weight
        self.narrow = nn.Embedding(64, 2) if end == "lookup" else nn.Linear(16, 2, bias=False)
        self.wide = nn.Linear(2, 16 if end == "lookup" else 64, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(ids)
        if self.end == "lookup":
            hidden = hidden + self.wide(self.narrow(ids))
        hidden = nn.functional.layer_norm(hidden, (16,))
        logits: torch.Tensor = self.head(hidden)
        return logits + self.wide(self.narrow(hidden)) if self.end == "readout" else logits


SLIPS: dict[str, Callable[[Path], Any]] = {
    "every": lambda at: tiebeam.Watch(_model(), every=0),
    "soft_cap": lambda at: readout_loss(HIDDEN, TABLE, TARGETS, soft_cap=-1.0),
    "reduction": lambda at: readout_loss(HIDDEN, TABLE, TARGETS, reduction="avg"),
    "returns": lambda at: readout_loss(HIDDEN, TABLE, TARGETS, returns="avg"),  # type: ignore[call-overload]  # the slip
    "chunk": lambda at: readout_loss(HIDDEN, TABLE, TARGETS, chunk=0),
    "chunk by name": lambda at: readout_loss(HIDDEN, TABLE, TARGETS, chunk="all"),  # type: ignore[call-overload]  # the slip
    "rows": lambda at: tiebeam.resize(_model(), 70, IDS, rows="none"),  # type: ignore[arg-type]  # the slip
    "on_conflict": lambda at: tiebeam.tie(_model(), IDS, on_conflict="none"),  # type: ignore[arg-type]  # the slip
    "an optimizer's class": lambda at: tiebeam.inspect_optimizer(
        torch.optim.AdamW, _model(), tiebeam.inspect(_model(), IDS)
    ),
    "no file": lambda at: tiebeam.load(_model(), at / "none.safetensors"),
    "no such table": lambda at: tiebeam.checkpoints.inspect(_stored(at), table="wte"),
    "ratios": lambda at: param_groups(_model(), tiebeam.inspect(_model(), IDS), lr=1e-3, ratios={"wet": 2.0}),
    "optimizer by name": lambda at: tiebeam.measure(_model(), IDS, optimizer="adam"),
    "optimizer's class": lambda at: tiebeam.measure(_model(), IDS, optimizer=torch.optim.AdamW),
    "a seed of checks": lambda at: tiebeam.check_gradients(_model(), IDS, seed=-1),
    "no attribute": lambda at: _attribute(tiebeam.errors, "nope", "tiebeam.errors:nope"),
    "no folder": lambda at: check_file(at / "none" / "report.html"),
}


@pytest.mark.parametrize("slip", SLIPS)
def test_a_slip_is_refused_with_a_hint(slip: str, tmp_path: Path) -> None:
    with pytest.raises(tiebeam.TiebeamError) as caught:
        SLIPS[slip](tmp_path)
    assert caught.value.hint


@pytest.mark.parametrize("seed", [np.int64(3), np.uint8(3)])
def test_a_seed_of_numpy_draws_as_the_same_int_does(seed: Any) -> None:
    one, other = _model(), _model()
    tiebeam.initialize(one, IDS, seed=seed)
    tiebeam.initialize(other, IDS, seed=3)
    assert all(
        torch.equal(a, b) for (n, a), b in zip(one.named_parameters(), other.parameters(), strict=True) if "wte" in n
    )


@pytest.mark.parametrize("seed", [True, np.True_, 1.5, "1", -1])
def test_what_is_no_natural_number_is_no_seed(seed: Any) -> None:
    with pytest.raises(tiebeam.RangeError, match="natural number"):
        tiebeam.initialize(_model(), IDS, seed=seed)


def test_an_adapter_on_the_lookup_stays_where_it_is_when_the_table_is_untied_and_tied() -> None:
    model = Adapted("lookup")
    before = model(IDS)
    tiebeam.untie(model, IDS)
    assert model.head.weight is not model.embed.weight
    assert torch.equal(model(IDS), before)
    tiebeam.tie(model, IDS)
    assert model.head.weight is model.embed.weight
    assert torch.equal(model(IDS), before)


@pytest.mark.parametrize("operation", [tiebeam.untie, tiebeam.tie])
def test_an_adapter_on_the_readout_is_refused_without_sending_back_to_untie(operation: Callable[..., Any]) -> None:
    with pytest.raises(tiebeam.TieError, match="adapter") as caught:
        operation(Adapted("readout"), IDS)
    assert "unload, untie, load it again" in caught.value.hint
