"""What is written can be read back whole, and a folder is never half written."""

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, load_model
from tests.checkpoints.tiny import tiny
from torch import nn

from tiebeam.cli.save import check_out, save
from tiebeam.cli.targets import resolve
from tiebeam.core.report import Report, TableInit
from tiebeam.errors import TargetError

REPORT = Report(model="m", framework="torch", init=(TableInit("table.weight", "analytic", 1.0, 0.125, 1.0, 1.0),))


def keys(folder: Path) -> set[str]:
    with safe_open(folder / "model.safetensors", "pt") as file:
        return set(file.keys())


@pytest.mark.parametrize("name", ["GPT2LMHeadModel", "T5ForConditionalGeneration", "BertForMaskedLM"])
def test_a_transformers_model_reloads_with_equal_weights_and_its_tie(tmp_path: Path, name: str) -> None:
    model = tiny(name)
    save(model, REPORT, tmp_path / "out")
    again, info = type(model).from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not info["missing_keys"]
    for key, value in model.state_dict().items():
        assert torch.equal(again.state_dict()[key], value)
    assert again.get_output_embeddings().weight is again.get_input_embeddings().weight
    assert resolve(str(tmp_path / "out")).weights == "file"


def test_a_tie_that_the_config_does_not_declare_is_written_under_both_names(tmp_path: Path) -> None:
    """Written once, the reloaded head would be random: transformers drops it and does not tie it again."""
    model = tiny("LlamaForCausalLM", tie_word_embeddings=False)
    model.lm_head.weight = model.model.embed_tokens.weight
    save(model, REPORT, tmp_path / "out")
    again, info = type(model).from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not info["missing_keys"]
    assert torch.equal(again.lm_head.weight, model.model.embed_tokens.weight)


class Parts(nn.Module):
    """Tied, aliased, viewed and transposed tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(12, 4)
        self.head = nn.Linear(4, 12, bias=False)
        self.head.weight = self.table.weight
        fused = torch.randn(8, 4)
        self.upper, self.lower = nn.Parameter(fused[:4]), nn.Parameter(fused[4:])
        self.turned = nn.Parameter(torch.randn(4, 6).t())
        self.register_buffer("empty", torch.zeros(0))


def test_a_module_of_shared_viewed_and_turned_tensors_is_written_each_tensor_once(tmp_path: Path) -> None:
    model = Parts()
    assert save(model, REPORT, tmp_path / "out") == ("config.json", "model.safetensors")
    held = load_file(tmp_path / "out" / "model.safetensors")
    assert set(held) == set(model.state_dict()) - {"head.weight"}
    for key, value in held.items():
        assert torch.equal(model.state_dict()[key], value)


def test_a_tied_module_is_read_back_by_safetensors_with_its_tie(tmp_path: Path) -> None:
    def build() -> nn.ModuleDict:
        model = nn.ModuleDict({"head": nn.Linear(4, 12, bias=False), "table": nn.Embedding(12, 4)})
        model["head"].weight = model["table"].weight
        return model

    model, again = build(), build()
    save(model, REPORT, tmp_path / "out")
    load_model(again, tmp_path / "out" / "model.safetensors")
    assert keys(tmp_path / "out") == {"head.weight"}
    assert torch.equal(again["table"].weight, model["table"].weight)


def test_the_config_of_a_plain_module_says_what_was_done(tmp_path: Path) -> None:
    model = Parts()
    model.config = {"vocab_size": 12, "dtype": torch.float32, "_private": 1}
    save(model, REPORT, tmp_path / "out")
    config: dict[str, Any] = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["architectures"] == ["Parts"]
    assert (config["vocab_size"], config["dtype"]) == (12, "torch.float32")
    assert "_private" not in config
    assert config["tiebeam"]["init"] == [{"table": "table.weight", "std": 0.125, "mode": "analytic", "seed": 0}]


def test_the_folder_has_the_permissions_of_any_other(tmp_path: Path) -> None:
    mask = os.umask(0o022)
    try:
        save(Parts(), REPORT, tmp_path / "out")
    finally:
        os.umask(mask)
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o755
    assert {stat.S_IMODE(p.stat().st_mode) for p in (tmp_path / "out").iterdir()} == {0o644}


def test_an_empty_folder_is_filled_and_a_full_one_refused(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    save(Parts(), REPORT, out)
    (out / "notes.txt").write_text("mine")
    before = (out / "model.safetensors").read_bytes()
    with pytest.raises(TargetError, match=r"is not empty(.|\n)*--force"):
        save(Parts(), REPORT, out)
    assert (out / "model.safetensors").read_bytes() == before


def test_a_link_to_an_empty_folder_stays_and_the_folder_is_filled(tmp_path: Path) -> None:
    (tmp_path / "deep" / "out").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "deep" / "out")
    save(Parts(), REPORT, tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert sorted(p.name for p in (tmp_path / "deep" / "out").iterdir()) == ["config.json", "model.safetensors"]
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["out"]


def test_the_current_folder_is_filled_and_stays_the_same_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = tmp_path.stat().st_ino
    save(Parts(), REPORT, Path())
    assert tmp_path.stat().st_ino == before
    assert Path("model.safetensors").exists()


def test_force_replaces_files_of_the_same_names_and_leaves_others(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    for name in ("notes.txt", "model.safetensors", "model.safetensors.index.json"):
        (out / name).write_text("mine")
    model = Parts()
    save(model, REPORT, out, force=True)
    assert sorted(p.name for p in out.iterdir()) == ["config.json", "model.safetensors", "notes.txt"]
    assert (out / "notes.txt").read_text() == "mine"
    assert "table.weight" in keys(out)


@pytest.mark.parametrize("force", [False, True])
def test_a_failure_while_writing_leaves_everything_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, force: bool
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    out = tmp_path / "out"
    if force:
        out.mkdir()
        (out / "config.json").write_text("mine")
    monkeypatch.setattr("safetensors.torch.save_file", fails)
    with pytest.raises(TargetError, match="No space left"):
        save(Parts(), REPORT, out, force=force)
    assert [p.name for p in tmp_path.iterdir()] == (["out"] if force else [])
    assert not force or (out / "config.json").read_text() == "mine"


def test_places_that_cannot_be_written_are_refused_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TargetError, match="got: a file"):
        check_out(tmp_path / "file", force=True)
    with pytest.raises(TargetError, match="no folder"):
        check_out(tmp_path / "a" / "b", force=True)


def test_models_without_values_and_of_other_frameworks_are_refused(tmp_path: Path) -> None:
    with torch.device("meta"):
        model = nn.Embedding(4, 2)
    with pytest.raises(TargetError, match="'weight' has no values"):
        save(model, REPORT, tmp_path / "out")
    with pytest.raises(TargetError, match="models of numpy are not written"):
        save(object(), Report(model="m", framework="numpy"), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
