"""Each finding on checkpoints fires where it should, says what to do, and is silent where it should be."""

import json
from pathlib import Path

import jsonschema
import pytest
from tests.checkpoints.checkpoint_findings_examples import FIRES, SILENT, Make
from tests.checkpoints.writing import gguf

from tiebeam.checkpoints import inspect
from tiebeam.core.checkpoint import CheckpointReport
from tiebeam.core.findings import CATALOG
from tiebeam.reports.jsontext import checkpoint_schema

CASES = [pytest.param(code, make, id=f"{code}-{i}") for code, makes in FIRES.items() for i, make in enumerate(makes)]
QUIET = [pytest.param(code, make, id=f"{code}-{i}") for code, makes in SILENT.items() for i, make in enumerate(makes)]
SEVERITY = {entry.code: entry.severity for entry in CATALOG}
ORDER = ("info", "warning", "error")


def test_every_finding_has_files_on_both_sides() -> None:
    assert FIRES.keys() == SILENT.keys()


@pytest.mark.parametrize(("code", "make"), CASES)
def test_a_finding_fires(code: str, make: Make, tmp_path: Path) -> None:
    found = [f for f in inspect(make(tmp_path)).findings if f.code == code]
    assert found
    for finding in found:
        assert ORDER.index(finding.severity) <= ORDER.index(SEVERITY[code])
        assert finding.severity == "info" or finding.hint
        assert finding.message
        assert not finding.message.endswith(".")


def test_no_hint_names_a_command_that_would_refuse_the_file(tmp_path: Path) -> None:
    rows = (0, (64, 8), bytes(2048))
    found = inspect(gguf(tmp_path / "m.gguf", {"token_embd.weight": rows, "output.weight": rows})).findings
    assert [f.code for f in found] == ["equal-not-declared"]
    assert "--fix mends safetensors alone" in found[0].hint
    assert "tiebeam checkpoint" not in found[0].hint


@pytest.mark.parametrize(("code", "make"), CASES)
def test_the_report_is_as_its_schema_says_in_every_format(code: str, make: Make, tmp_path: Path) -> None:
    report = inspect(make(tmp_path))
    jsonschema.validate(json.loads(report.to_json()), checkpoint_schema())
    for text in (str(report), report.to_markdown(), report.to_html()):
        assert code in text


def test_the_schema_refuses_a_state_that_there_is_not() -> None:
    plain = json.loads(CheckpointReport(path="m", format="npz", state="equal").to_json())
    jsonschema.validate(plain, checkpoint_schema())
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**plain, "state": "tied"}, checkpoint_schema())


@pytest.mark.parametrize(("code", "make"), QUIET)
def test_a_finding_is_silent(code: str, make: Make, tmp_path: Path) -> None:
    assert code not in {f.code for f in inspect(make(tmp_path)).findings}
