"""Role gradients of real architectures, against the same model with its head's table split off by hand."""

import copy
import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

import tiebeam

# Builders of many architectures warn as they like; none of it is ours.
pytestmark = [pytest.mark.slow, pytest.mark.zoo, pytest.mark.filterwarnings("ignore")]

TRUTH = Path(__file__).resolve().parents[3] / "shared" / "zoo" / "truth.json"
ROWS = json.loads(TRUTH.read_text("utf-8")) if TRUTH.is_file() else []
NAMES = [r["name"] for r in ROWS if r["tied"] and r["tie_kind"] == "module-shared parameter"][::2]
NOT_TRAINABLE = {"causal/rwkv"}  # its own loss.backward() raises: a state is written in place
PARTS, ENOUGH = 4, 40


@pytest.fixture(scope="module")
def zoo(shared: Path) -> Iterator[ModuleType]:
    folder = shared / "zoo"
    if not (folder / "zoo.py").is_file():
        pytest.skip("../shared holds no zoo")
    sys.path.insert(0, str(folder))
    kept = sys.modules.pop("zoo", None)
    try:
        yield importlib.import_module("zoo")
    finally:
        sys.path.remove(str(folder))
        sys.modules.pop("zoo", None)
        if kept is not None:
            sys.modules["zoo"] = kept


def table_of(model: nn.Module) -> tuple[nn.Module, nn.Module] | None:
    """The modules that look up and read out one table, by their own account; None where another reads it too."""
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    if embedding is None or getattr(head, "weight", None) is not getattr(embedding, "weight", 0):
        return None
    readers = [m for m in model.modules() if getattr(m, "weight", None) is head.weight]
    return (embedding, head) if len(readers) == 2 else None


def some_loss(output: Any, _: Any = None) -> torch.Tensor:
    logits = output.logits
    right = torch.arange(logits.shape[:-1].numel()) * 7 % logits.shape[-1]
    return torch.nn.functional.cross_entropy(logits.flatten(0, -2), right)


def split_by_hand(model: nn.Module, inputs: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    split = copy.deepcopy(model)
    modules = table_of(split)
    assert modules is not None
    embedding, head = modules
    head.weight = nn.Parameter(head.weight.detach().clone())
    some_loss(split(**inputs)).backward()
    return embedding.weight.grad, head.weight.grad


@pytest.mark.parametrize("part", range(PARTS))
def test_each_role_sends_what_a_model_split_by_hand_is_sent(part: int, zoo: ModuleType) -> None:
    compared = []
    for name in [n for n in NAMES if n in zoo.entries()][part::PARTS]:
        _, model, inputs, _, _ = zoo.build(name)
        model.eval()
        if table_of(model) is None or name in NOT_TRAINABLE:
            continue
        torch.manual_seed(0)
        found = tiebeam.measure(model, inputs, loss=some_loss, grad=True)
        assert all(p.grad is None for p in model.parameters()), name
        torch.manual_seed(0)
        for role, want in zip(("lookup", "readout"), split_by_hand(model, inputs), strict=True):
            torch.testing.assert_close(
                found.roles[role].grad, want, rtol=1e-6, atol=1e-6 * float(want.abs().max()), msg=f"{name}: {role}"
            )
        assert max(t.unaccounted or 0.0 for t in found.tables) < 1e-6, name
        compared.append(name)
    assert len(compared) >= ENOUGH // PARTS
