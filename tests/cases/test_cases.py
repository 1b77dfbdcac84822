"""Every way in which people were seen to go wrong: the verdict on it, and that the printed fix mends it."""

import contextlib
import io
import json
import random
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.cases.verdicts import ELSEWHERE, EXPECTED, Verdict

import tiebeam

ROWS = 90


@cache
def rows(shared: Path) -> dict[str, dict[str, Any]]:
    lines = (shared / "cases" / "cases.jsonl").read_text().splitlines()
    return {r["id"]: r for r in map(json.loads, lines)}


@pytest.fixture(autouse=True)
def quiet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Rows write files, draw numbers and set a global flag of torch."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    random.seed(0)
    yield
    torch.__future__.set_overwrite_module_params_on_conversion(False)


def build(row: dict[str, Any], verdict: Verdict) -> tuple[Any, Any]:
    """Run a row's program and make the live model of what it leaves."""
    names: dict[str, Any] = {"__name__": row["id"]}
    torch.manual_seed(0)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        exec(compile(row["input"], row["id"], "exec"), names)
    return verdict.make(names)


pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
every_row = pytest.mark.parametrize("name", EXPECTED)
rows_that_run = pytest.mark.parametrize("name", [n for n, v in EXPECTED.items() if not v.raises])


def test_every_row_has_a_verdict_or_a_reason_for_none(shared: Path) -> None:
    assert not EXPECTED.keys() & ELSEWHERE.keys()
    assert EXPECTED.keys() | ELSEWHERE.keys() == rows(shared).keys()
    assert len(rows(shared)) == ROWS


def test_a_row_that_is_not_healthy_has_a_finding_or_a_note(shared: Path) -> None:
    silent = {n for n, v in EXPECTED.items() if not (v.codes or v.raises or v.note or rows(shared)[n]["healthy"])}
    assert not silent


@rows_that_run
def test_the_verdict_on_a_live_model(name: str, shared: Path) -> None:
    row, verdict = rows(shared)[name], EXPECTED[name]
    report = tiebeam.inspect(*build(row, verdict))
    codes = {f.code: f.severity for f in report.findings}
    assert verdict.codes <= codes.keys(), f"{row['diagnosis']}\n{codes}"
    read = [t for t in report.tables if t.lookups]
    assert read, [t.names for t in report.tables]
    if verdict.state is not None:
        assert {t.state for t in read} == {verdict.state}, f"{row['diagnosis']}\n{[t.notes for t in read]}"
    if row["healthy"]:
        report.assert_healthy()
    if verdict.state not in ("tied", "aliased") and "aliased" not in {t.state for t in read} and verdict.state:
        assert not any(t.tied for t in report.tables)


@pytest.mark.parametrize("name", [n for n, v in EXPECTED.items() if v.raises])
def test_a_model_that_cannot_run_is_an_error_that_names_the_part(name: str, shared: Path) -> None:
    verdict = EXPECTED[name]
    model, inputs = build(rows(shared)[name], verdict)
    with pytest.raises(tiebeam.TiebeamError, match=verdict.raises) as caught:
        tiebeam.inspect(model, inputs)
    assert caught.value.got


@rows_that_run
def test_every_printed_fix_mends_what_it_was_printed_for(name: str, shared: Path) -> None:
    row, verdict = rows(shared)[name], EXPECTED[name]
    model, inputs = build(row, verdict)
    for finding in tiebeam.inspect(model, inputs).findings:
        if not finding.fix:
            assert finding.severity == "info" or finding.hint, f"{finding.code}: neither a fix nor a hint"
            continue
        model, inputs = build(row, verdict)
        scope = {"model": model, "inputs": inputs, "tiebeam": tiebeam}
        exec(compile(finding.fix, f"fix of {finding.code}", "exec"), scope)
        left = {(f.code, f.where) for f in tiebeam.inspect(scope["model"], inputs).findings}
        assert (finding.code, finding.where) not in left, f"{finding.code} is still there after:\n{finding.fix}"


def test_parameters_are_counted_once_however_many_names_they_have(shared: Path) -> None:
    model, inputs = build(rows(shared)["pt-sd-numel-vs-params"], EXPECTED["pt-sd-numel-vs-params"])
    report = tiebeam.inspect(model, inputs)
    assert report.parameters == sum(p.numel() for p in model.parameters())
    assert report.parameters < sum(v.numel() for v in model.state_dict().values())


@pytest.mark.parametrize("std", [1.0, 0.02])
def test_the_init_finding_goes_by_the_std_and_not_by_the_row(std: float, shared: Path) -> None:
    """The check can tell: the same model with a fitting std is silent."""
    model, inputs = build(rows(shared)["pt-tie-keeps-normal1-init"], EXPECTED["pt-tie-keeps-normal1-init"])
    torch.nn.init.normal_(model.embed.weight, std=std)
    severities = [f.severity for f in tiebeam.inspect(model, inputs).findings if f.code == "init-scale"]
    assert severities == (["error"] if std == 1.0 else [])
