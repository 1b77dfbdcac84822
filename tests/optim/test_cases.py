"""Rows of ../shared/cases that are about an optimizer: what it does is seen, and groups of the report are right."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import tiebeam
from tiebeam.torch import param_groups

IDS = torch.arange(8)[None]


@pytest.fixture
def run(shared: Path) -> Any:
    rows = {r["id"]: r for r in map(json.loads, (shared / "cases" / "cases.jsonl").read_text().splitlines())}

    def left_by(name: str) -> dict[str, Any]:
        names: dict[str, Any] = {"__name__": name}
        exec(compile(rows[name]["input"], name, "exec"), names)
        return names

    return left_by


def test_one_matrix_in_both_sets_of_decay_is_in_one_group(run: Any) -> None:
    names = run("pt-decay-conflict")
    assert {"head.weight"} <= names["decay"]
    assert {"embed.weight"} <= names["no_decay"]
    model = names["model"]
    groups = param_groups(model, tiebeam.inspect(model, IDS), lr=1.0, weight_decay=0.1)
    held = [id(p) for g in groups for p in g["params"]]
    assert len(held) == len(set(held)) == 3
    [table] = [g for g in groups if any(p is model.embed.weight for p in g["params"])]
    assert table["weight_decay"] > 0


def test_an_optimizer_built_before_the_tie_is_found(run: Any) -> None:
    names = run("pt-optimizer-built-before-tie")
    model = names["model"]
    report = tiebeam.inspect(model, IDS)
    [finding] = [f for f in tiebeam.inspect_optimizer(names["opt"], model, report).findings if f.code != "table-rate"]
    assert (finding.code, finding.severity) == ("optimizer-stale", "warning")
    assert "holds 1 tensor(s)" in finding.message


def test_an_optimizer_built_before_loading_is_found(run: Any) -> None:
    model = run("pt-optimizer-built-before-tie")["LM"]()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    model.load_state_dict({k: v.clone() for k, v in model.state_dict().items()}, assign=True)
    report = tiebeam.inspect(model, IDS)
    [finding] = tiebeam.inspect_optimizer(optimizer, model, report).findings
    assert (finding.code, finding.severity) == ("optimizer-stale", "error")
    assert "holds 3 tensor(s)" in finding.message
    assert "4 of the model's parameters are in no group" in finding.message


def test_shared_storage_is_stepped_twice_and_refused(run: Any) -> None:
    model = run("pt-param-wrap-shares-storage")["model"]
    report = tiebeam.inspect(model, IDS)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    assert "stepped-twice" in [f.code for f in tiebeam.inspect_optimizer(optimizer, model, report).findings]
    with pytest.raises(tiebeam.InputError, match="two parameters on one storage"):
        param_groups(model, report, lr=1.0)
