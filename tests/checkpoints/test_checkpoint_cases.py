"""The ways in which people's checkpoints went wrong: what `tiebeam.checkpoints` says of each."""

import contextlib
import io
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.checkpoints.writing import gguf, safetensors, table

from tiebeam.checkpoints import inspect
from tiebeam.core.checkpoint import CheckpointReport

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@cache
def rows(shared: Path) -> dict[str, dict[str, Any]]:
    lines = (shared / "cases" / "cases.jsonl").read_text(encoding="utf-8").splitlines()
    return {r["id"]: r for r in map(json.loads, lines)}


@pytest.fixture(autouse=True)
def quiet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def names_of(name: str, shared: Path) -> dict[str, Any]:
    """What a row's program leaves."""
    names: dict[str, Any] = {"__name__": name}
    torch.manual_seed(0)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        exec(compile(rows(shared)[name]["input"], name, "exec"), names)
    return names


def codes(report: CheckpointReport) -> dict[str, str]:
    return {f.code: f.severity for f in report.findings}


#: row -> the name that holds the path, state, (table, readout), declared, codes that must be there.
FILES: dict[str, tuple[str, str, tuple[str, str | None], bool | None, dict[str, str]]] = {
    "ck-tied-redundant-equal": (
        "d", "equal", ("model.embed_tokens.weight", "lm_head.weight"), True, {"redundant-readout": "info"}),
    "ck-tied-distinct": (
        "d", "different", ("model.embed_tokens.weight", "lm_head.weight"), True, {"tied-file-differs": "error"}),
    "ck-untied-equal": (
        "d", "equal", ("model.embed_tokens.weight", "lm_head.weight"), False, {"equal-not-declared": "warning"}),
    "ck-odd-names": (
        "d", "equal", ("backbone.embeddings.weight", "decoder.output_projection.weight"), True,
        {"redundant-readout": "info"}),
    "pt-safetensors-drops-alias": ("path", "omitted", ("embed.weight", None), None, {"alias-recorded": "info"}),
    "pt-size-doubled-by-contiguous": (
        "path", "equal", ("embed.weight", "head.weight"), None, {"equal-not-declared": "warning"}),
    "hf-untied-config-no-head": (
        "d", "no-readout", ("model.embed_tokens.weight", None), False, {"readout-missing": "error"}),
    "hf-t5-third-alias": (
        "d", "different", ("decoder.embed_tokens.weight", "lm_head.weight"), True, {"tied-file-differs": "error"}),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_a_row_writes_gets_its_verdict(name: str, shared: Path) -> None:
    place, state, roles, declared, expected = FILES[name]
    report = inspect(names_of(name, shared)[place])
    assert (report.state, (report.table, report.readout), report.declared) == (state, roles, declared)
    assert codes(report) == expected
    if rows(shared)[name]["healthy"]:
        report.assert_healthy()


def test_the_gap_of_two_matrices_is_the_one_that_was_observed(shared: Path) -> None:
    gap = inspect(names_of("ck-tied-distinct", shared)["d"]).gap
    assert gap is not None
    assert gap.largest == pytest.approx(rows(shared)["ck-tied-distinct"]["observed"]["max_gap"], rel=1e-6)


def test_values_a_hundred_times_apart_are_reported_with_their_sizes(shared: Path) -> None:
    report = inspect(names_of("hf-t5-third-alias", shared)["d"])
    sizes = [end.std for end in report.ends]
    assert sizes[0] is not None
    assert sizes[1] is not None
    assert sizes[0] / sizes[1] == pytest.approx(100, rel=0.01)
    assert "in size" in report.findings[0].message


def test_a_state_dict_without_the_alias(shared: Path, tmp_path: Path) -> None:
    torch.save(names_of("zero-consolidated-missing-alias", shared)["consolidated"], tmp_path / "m.pt")
    report = inspect(tmp_path / "m.pt")
    assert (report.state, report.table) == ("no-readout", "embed.weight")
    assert codes(report) == {"readout-missing": "warning"}
    torch.save(names_of("pt-strict-false-random-head", shared)["ckpt"], tmp_path / "n.pt")
    assert inspect(tmp_path / "n.pt").state == "no-readout"


def test_an_untied_checkpoint_for_a_tied_model(shared: Path, tmp_path: Path) -> None:
    torch.save(names_of("pt-load-two-values-last-wins", shared)["sd"], tmp_path / "m.pt")
    report = inspect(tmp_path / "m.pt", {"tie_word_embeddings": True})
    assert report.state == "different"
    assert codes(report) == {"tied-file-differs": "error"}


@pytest.mark.parametrize(
    ("name", "holds", "state", "expected"),
    [
        ("hf-nested-config-flag", "checkpoint_keys", "omitted", {"config-scopes-disagree"}),
        ("hf-nested-config-flag-false", "checkpoint", "different", {"config-scopes-disagree"}),
    ],
)
def test_a_flag_in_the_wrong_scope(
    name: str, holds: str, state: str, expected: set[str], shared: Path, tmp_path: Path
) -> None:
    names = names_of(name, shared)
    tensors = {key: table(64, 16, seed=i) for i, key in enumerate(names[holds])}
    report = inspect(safetensors(tmp_path / "m.safetensors", tensors), names["config"])
    assert report.state == state
    assert expected <= codes(report).keys()


def test_an_adapter_on_the_readout_of_a_tied_base(shared: Path, tmp_path: Path) -> None:
    names = names_of("peft-adapter-static", shared)
    safetensors(tmp_path / "adapter_model.safetensors", {k: table(8, 8) for k in names["adapter_keys"]})
    (tmp_path / "adapter_config.json").write_text(json.dumps(names["adapter_config"]))
    report = inspect(tmp_path, names["base_config"])
    assert report.state == "no-table"
    assert codes(report) == {"adapter-only": "info", "adapter-on-readout": "warning"}


def test_a_file_converted_from_a_tied_model(shared: Path, tmp_path: Path) -> None:
    names = names_of("ck-gguf-style-names", shared)
    tensors = {n: (0, (64, 8), bytes(2048)) for n in names["tensor_names"] if "norm" not in n}
    for runtime in names["loader_required"]:
        report = inspect(gguf(tmp_path / "m.gguf", tensors, runtime))
        assert (report.table, report.readout) == ("token_embd.weight", None)
        assert codes(report) == {"runtime-fallback": "info"}


def test_one_end_quantised_alone(shared: Path, tmp_path: Path) -> None:
    torch.save(names_of("pt-one-side-quantised", shared)["model"].state_dict(), tmp_path / "m.pt")
    report = inspect(tmp_path / "m.pt", {"tie_word_embeddings": True})
    assert report.state == "different"
    assert report.gap is not None
    assert report.gap.largest == pytest.approx(rows(shared)["pt-one-side-quantised"]["observed"]["max_gap"], rel=1e-5)
