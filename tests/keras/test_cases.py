"""The rows of the cases that are Keras programs: run as they stand, judged as their diagnosis says."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import tiebeam

IDS = np.array([[1, 2, 3]], dtype="int32")

#: row -> (state of the table that is looked up, codes that must appear, what of it a live model cannot show)
EXPECTED: dict[str, tuple[str, set[str], str]] = {
    "ks-healthy-reversible": ("tied", set(), ""),
    "ks-untied-from-tied-weights": ("untied", {"untied"}, "that a file of a tied model does not load: a file"),
    "ks-tied-from-untied-weights": ("tied", set(), "the matrix that only the file holds: a file"),
    "ks-symbolic-dtype-mismatch": ("tied", set(), ""),
    "ks-freeze-couples": ("tied", {"frozen-both-roles"}, ""),
    "ks-weights-file-two-copies": ("tied", {"several-names"}, "the two copies on disk: a file"),
}


def rows(shared: Path) -> dict[str, Any]:
    lines = (shared / "cases" / "cases.jsonl").read_text(encoding="utf-8").splitlines()
    return {r["id"]: r for r in map(json.loads, lines) if r["framework"] == "keras"}


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Rows set a global policy."""
    before = keras.config.dtype_policy()
    keras.backend.clear_session(free_memory=False)
    yield
    keras.config.set_dtype_policy(before)


def model_of(row: dict[str, Any]) -> Any:
    names: dict[str, Any] = {"__name__": row["id"]}
    exec(compile(row["input"], row["id"], "exec"), names)
    return names["model"]


def test_every_row_has_a_verdict(shared: Path) -> None:
    assert rows(shared).keys() == EXPECTED.keys()


every_row = pytest.mark.parametrize("name", EXPECTED)


@pytest.mark.filterwarnings("ignore")
@every_row
def test_the_verdict(name: str, shared: Path) -> None:
    row = rows(shared)[name]
    state, codes, _ = EXPECTED[name]
    report = tiebeam.inspect(model_of(row), IDS)
    found = {f.code for f in report.findings}
    table = next(t for t in report.tables if t.lookups)
    assert table.state == state, (row["diagnosis"], table.notes)
    assert codes <= found, (row["diagnosis"], found)
    if row["healthy"]:
        report.assert_healthy()


@pytest.mark.filterwarnings("ignore")
@every_row
def test_every_printed_fix_mends_what_it_was_printed_for(name: str, shared: Path) -> None:
    row = rows(shared)[name]
    for finding in tiebeam.inspect(model_of(row), IDS).findings:
        if not finding.fix:
            assert finding.severity == "info" or finding.hint, finding
            continue
        keras.backend.clear_session(free_memory=False)
        scope = {"model": model_of(row), "inputs": IDS, "tiebeam": tiebeam}
        exec(compile(finding.fix, finding.code, "exec"), scope)
        left = {(f.code, f.where) for f in tiebeam.inspect(scope["model"], IDS).findings}
        assert (finding.code, finding.where) not in left, finding.fix


@pytest.mark.filterwarnings("ignore")
def test_a_declared_dtype_that_is_not_the_real_one_is_noted(shared: Path) -> None:
    report = tiebeam.inspect(model_of(rows(shared)["ks-symbolic-dtype-mismatch"]), IDS)
    assert "the model declares an output of bfloat16 and returns float32" in report.notes
    keras.config.set_dtype_policy("float32")
    keras.backend.clear_session(free_memory=False)
    assert not tiebeam.inspect(model_of(rows(shared)["ks-healthy-reversible"]), IDS).notes
