"""Real architectures resized and back, untied and tied again: their logits are bit by bit what they were."""

from types import ModuleType
from typing import Any

import pytest
import torch
from tests.zoo_hf.test_zoo import ROWS, built
from tests.zoo_hf.test_zoo import score as score

import tiebeam

pytestmark = [pytest.mark.slow, pytest.mark.wide, pytest.mark.zoo, pytest.mark.filterwarnings("ignore")]

TIED = sorted(name for name, row in ROWS.items() if row["tied"])
BY_THE_FLAG = ("seq2seq/switch_transformers",)
"""Their code multiplies the hidden state only while the config says that they are tied: untied they would be others."""

NAMES = sorted({*TIED[::6], *(set(TIED) & set(BY_THE_FLAG))}) or ["without-the-zoo"]
"""A sixth of them, to keep the tests cheap: `TIED` here tries all."""


def logits(model: Any, inputs: dict[str, Any]) -> torch.Tensor:
    torch.manual_seed(0)
    with torch.no_grad():
        out: torch.Tensor = model(**inputs).logits
    return out


@pytest.mark.parametrize("name", NAMES)
def test_operations_leave_the_logits_as_they_were(name: str, score: ModuleType) -> None:
    model, inputs = built(score, name)
    model.eval()
    before = logits(model, inputs)
    change = tiebeam.resize(model, None, inputs, multiple=1 << 10, rows="mean")
    assert change.vocab is not None
    vocab = change.vocab[0]
    assert logits(model, inputs).shape != before.shape
    tiebeam.resize(model, vocab, inputs)
    assert torch.equal(logits(model, inputs), before)
    if name in BY_THE_FLAG:
        with pytest.raises(tiebeam.TieError, match="changed a factor"):
            tiebeam.untie(model, inputs)
        assert torch.equal(logits(model, inputs), before)
        return
    tiebeam.untie(model, inputs)
    assert torch.equal(logits(model, inputs), before)
    tiebeam.tie(model, inputs)
    assert torch.equal(logits(model, inputs), before)
