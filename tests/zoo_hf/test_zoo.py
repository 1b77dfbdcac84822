"""Every architecture of ../shared/zoo, built tiny from its own source, against the truth found without tiebeam.

Where the folder is not there, the tests skip. Architectures without a line of truth are held against
themselves: no finding that needs mending, and the same facts on meta.
"""

import importlib
import json
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import tiebeam

# Builders of 261 architectures warn as they like; none of it is ours.
pytestmark = [pytest.mark.slow, pytest.mark.zoo, pytest.mark.filterwarnings("ignore")]

TRUTH = Path(__file__).resolve().parents[3] / "shared" / "zoo" / "truth.json"
ROWS = {row["name"]: row for row in json.loads(TRUTH.read_text("utf-8"))} if TRUTH.is_file() else {}
NAMES = sorted(ROWS) or ["without-the-zoo"]
PARTS = 16  # the architectures without truth, in so many tests: their names need transformers to be told

LOUD = {
    "causal/minicpm3": 3.19,  # std 0.1 behind a norm and a factor of 4
    "masked/funnel": 7.98,  # std 1, width 64
    "seq2seq/mt5": 8.01,
    "seq2seq/t5[v1.1]": 8.01,
}
"""Architectures whose own initialisation is far from unit logits: the std that is said of them."""


@pytest.fixture(scope="module")
def score(shared: Path) -> Iterator[ModuleType]:
    """The scorer of the zoo; its builder is `score.zoo`."""
    folder = shared / "zoo"
    if not (folder / "score.py").is_file():
        pytest.skip("../shared holds no zoo")
    sys.path.insert(0, str(folder))
    kept = sys.modules.pop("zoo", None)
    try:
        yield importlib.import_module("score")
    finally:
        sys.path.remove(str(folder))
        for name in ("score", "zoo"):
            sys.modules.pop(name, None)
        if kept is not None:
            sys.modules["zoo"] = kept


def built(score: ModuleType, name: str) -> tuple[Any, dict[str, Any]]:
    if name not in score.zoo.entries():
        pytest.skip("this version of transformers has no such architecture")
    _, model, inputs, _, _ = score.zoo.build(name)
    return model, inputs


def assert_nothing_to_mend(name: str, report: tiebeam.Report) -> None:
    """No error and no warning, but for `init-scale` of exactly the architectures that start loud."""
    said = [f for f in report.findings if f.severity != "info"]
    assert [f.code for f in said] == ["init-scale"] * (name in LOUD), said
    if name in LOUD:
        [std] = [t.predicted.logit_std for t in report.tables if t.name == said[0].where]
        assert std == pytest.approx(LOUD[name], rel=0.02)


@pytest.mark.parametrize("name", NAMES)
def test_roles_factors_and_initialisation_are_right(name: str, score: ModuleType) -> None:
    row = ROWS[name]
    model, inputs = built(score, name)
    assert_nothing_to_mend(name, score.check_inspect(tiebeam, model, inputs, row, "real"))
    if row["tied"] and not row["vocab_scale"]:
        score.check_init(tiebeam, model, inputs, row)


@pytest.mark.parametrize("name", NAMES)
def test_facts_on_meta_are_right_or_said_to_be_lost(name: str, score: ModuleType) -> None:
    row = ROWS[name]
    model, inputs = built(score, name)
    lost = [
        field
        for field, truth in (("lookup_factor", "lookup_factor"), ("readout_factor", "logit_factor"))
        if row[truth] not in (None, 1.0) and score.in_buffer(model, row[truth])
    ]
    model, inputs = score.to_meta(model.bfloat16()), {k: v.to("meta") for k, v in inputs.items()}
    try:
        score.check_inspect(tiebeam, model, inputs, row, "meta", lost)
    except tiebeam.TiebeamError:
        if score.runs(model, inputs):
            raise
        pytest.skip("the model itself does not run on meta in bfloat16")


def without_truth(score: ModuleType, part: int) -> list[str]:
    names = [name for name in score.zoo.entries() if name not in ROWS]
    return [name for name in names if zlib.crc32(name.encode()) % PARTS == part]


@pytest.mark.parametrize("part", range(PARTS))
def test_an_architecture_without_truth_has_nothing_to_mend_either(part: int, score: ModuleType) -> None:
    names = without_truth(score, part)
    for name in names:
        model, inputs = built(score, name)
        report = tiebeam.inspect(model, inputs)
        assert report.tables, name
        assert_nothing_to_mend(name, report)
        unsaid = [
            (name, table.name, field)
            for table in report.tables
            for field, records in (("lookup_factor", table.lookups), ("readout_factor", table.readouts))
            if records and getattr(table, field) is None and not any(n.startswith(field) for n in table.notes)
        ]
        assert not unsaid, "a factor is None without a reason"


@pytest.mark.parametrize("part", range(0, PARTS, 4))
def test_without_truth_meta_tells_the_same_as_the_weights_or_says_why_not(part: int, score: ModuleType) -> None:
    compared = 0
    for name in without_truth(score, part):
        model, inputs = built(score, name)
        seen = {t.name: t for t in tiebeam.inspect(model, inputs).tables if t.tied}
        model, inputs = score.to_meta(model.bfloat16()), {k: v.to("meta") for k, v in inputs.items()}
        if not score.runs(model, inputs):
            continue
        again = {t.name: t for t in tiebeam.inspect(model, inputs).tables if t.tied}
        assert sorted(again) == sorted(seen), name
        for table, other in ((seen[n], again[n]) for n in seen):
            for field in ("lookup_factor", "readout_factor"):
                if getattr(other, field) is None:
                    assert any(n.startswith(field) for n in other.notes), (name, field)
                else:
                    assert getattr(other, field) == pytest.approx(getattr(table, field), rel=5e-3), name
                    compared += 1
            assert other.soft_cap == table.soft_cap, name
    assert compared
