"""Groups partition every architecture of ../shared/zoo, whose tables were found without tiebeam."""

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import tiebeam
from tiebeam.torch import param_groups, split_for_muon

# Builders of 261 architectures warn as they like; none of it is ours.
pytestmark = [pytest.mark.slow, pytest.mark.zoo, pytest.mark.filterwarnings("ignore")]

TRUTH = Path(__file__).resolve().parents[3] / "shared" / "zoo" / "truth.json"
NAMES = sorted(row["name"] for row in json.loads(TRUTH.read_text("utf-8"))) if TRUTH.is_file() else []
PARTS = 8


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


@pytest.mark.parametrize("part", range(PARTS))
def test_groups_partition_real_architectures(part: int, zoo: ModuleType) -> None:
    for name in (n for n in NAMES[part::PARTS] if n in zoo.entries()):
        _, model, inputs, _, _ = zoo.build(name)
        report = tiebeam.inspect(model, inputs)
        said = {t.name: 1.0 for t in report.tables if t.lr_ratio is None}
        trainable = sorted(id(p) for p in model.parameters() if p.requires_grad)
        groups = param_groups(model, report, lr=1.0, weight_decay=0.1, ratios=said)
        assert held(groups) == trainable, name
        muon, adam = split_for_muon(model, report, lr=1.0, muon_lr=1.0, ratios=said)
        assert held([*muon, *adam]) == trainable, name
        of_tables = {id(model.get_parameter(t.name)) for t in report.tables}
        assert not of_tables.intersection(held(muon)), name


def held(groups: list[dict[str, Any]]) -> list[int]:
    return sorted(id(p) for g in groups for p in g["params"])
