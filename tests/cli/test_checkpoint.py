"""`tiebeam checkpoint`: what it prints, where it writes, and with which code it ends."""

import json
from pathlib import Path

import numpy as np
import pytest
from tests.checkpoints.writing import READOUT, TABLE, folder, table
from tests.cli.conftest import Run

E = table()
LLAMA = {"model_type": "llama", "vocab_size": 64}
TIED = {**LLAMA, "tie_word_embeddings": True}


@pytest.fixture
def healthy(tmp_path: Path) -> Path:
    return folder(tmp_path / "healthy", {TABLE: E}, TIED)


@pytest.fixture
def conflict(tmp_path: Path) -> Path:
    return folder(tmp_path / "conflict", {TABLE: E, READOUT: table(seed=1)}, TIED)


def test_a_healthy_checkpoint_ends_with_0(run: Run, healthy: Path) -> None:
    done = run("checkpoint", healthy)
    assert done.code == 0
    assert "omitted, healthy" in " ".join(done.out.split())


def test_a_finding_ends_with_1_by_its_severity(run: Run, conflict: Path) -> None:
    done = run("checkpoint", conflict)
    assert done.code == 1
    assert "tied-file-differs" in done.out
    assert run("checkpoint", conflict, "--fail-on", "never").code == 0
    assert run("checkpoint", conflict, "--fail-on", "error").code == 1


def test_what_cannot_be_looked_at_ends_with_2(run: Run, tmp_path: Path) -> None:
    done = run("checkpoint", tmp_path / "nothing")
    assert done.code == 2
    assert "is not there" in done.err
    assert done.out == ""
    (tmp_path / "m.safetensors").write_bytes(b"\0" * 7)
    assert run("checkpoint", tmp_path / "m.safetensors").code == 2


def test_json_is_the_report_as_data(run: Run, conflict: Path) -> None:
    plain = json.loads(run("checkpoint", conflict, "--format", "json").out)
    assert plain["state"] == "different"
    assert (plain["table"], plain["readout"], plain["declared"], plain["effective"]) == (TABLE, READOUT, True, True)
    assert [f["code"] for f in plain["findings"]] == ["tied-file-differs"]


@pytest.mark.parametrize("suffix", ["md", "html", "txt", "json"])
def test_the_suffix_of_the_output_tells_the_format(run: Run, conflict: Path, tmp_path: Path, suffix: str) -> None:
    done = run("checkpoint", conflict, "--output", tmp_path / f"r.{suffix}")
    assert done.code == 1
    assert "tied-file-differs" in (tmp_path / f"r.{suffix}").read_text()


def test_a_config_elsewhere_and_names_can_be_given(run: Run, tmp_path: Path) -> None:
    path = folder(tmp_path / "m", {"a": E, "b": E + 1}, None)
    (tmp_path / "c.json").write_text(json.dumps(TIED))
    done = run("checkpoint", path, "--config", tmp_path / "c.json", "--table", "a", "--readout", "b")
    assert done.code == 1
    assert "tied-file-differs" in done.out


def test_names_that_act_on_a_terminal_are_spelt_out(run: Run, tmp_path: Path) -> None:
    path = folder(tmp_path / "m", {"\x1b[31mwte.weight": E}, None)
    done = run("checkpoint", path, "--table", "\x1b[31mwte.weight")
    assert "\x1b[31m" not in done.out
    assert "\\x1b[31mwte.weight" in done.out


def test_a_dry_run_prints_the_plan_and_writes_nothing(run: Run, conflict: Path, tmp_path: Path) -> None:
    before = sorted(tmp_path.iterdir())
    done = run("checkpoint", conflict, "--fix", "--dry-run", "--on-conflict", "mean")
    assert done.code == 0
    assert f"drop {READOUT}" in done.out
    plan = json.loads(
        run("checkpoint", conflict, "--fix", "--dry-run", "--on-conflict", "mean", "--format", "json").out
    )
    assert (plan["values"], plan["written"]) == ("mean", False)
    assert sorted(tmp_path.iterdir()) == before


def test_fix_writes_a_copy_that_is_healthy(run: Run, conflict: Path, tmp_path: Path) -> None:
    refused = run("checkpoint", conflict, "--fix", "--out", tmp_path / "out")
    assert refused.code == 2
    assert "--on-conflict" in refused.err
    assert not (tmp_path / "out").exists()
    done = run("checkpoint", conflict, "--fix", "--out", tmp_path / "out", "--on-conflict", "readout")
    assert done.code == 0
    assert "is tied" in done.out
    assert run("checkpoint", tmp_path / "out").code == 0
    back = run("checkpoint", tmp_path / "out", "--fix", "--out", tmp_path / "back", "--untie")
    assert back.code == 0
    assert f"add {READOUT}" in back.out


def test_options_of_fix_without_it_are_refused(run: Run, healthy: Path, tmp_path: Path) -> None:
    for options in (["--dry-run"], ["--out", tmp_path / "x"], ["--tie"], ["--untie"]):
        done = run("checkpoint", healthy, *options)
        assert done.code == 2
        assert "add --fix" in done.err
    assert run("checkpoint", healthy, "--fix").code == 2


def test_a_real_index_is_judged_from_the_shell(run: Run, shared: Path) -> None:
    place = shared / "data"
    index = place / "index" / "gemma-2b-it.model.safetensors.index.json"
    done = run("checkpoint", index, "--config", place / "configs" / "models" / "hub__gemma-2b-it.json")
    assert done.code == 0
    assert "omitted" in done.out


def test_nothing_of_a_framework_is_loaded(tmp_path: Path) -> None:
    import subprocess
    import sys

    np.savez(tmp_path / "m.npz", embedding=E)
    ask = "import sys; from tiebeam.cli import main\ntry: main(sys.argv[1:])\nexcept SystemExit: pass\n"
    code = f"{ask}print(*sys.modules)"
    command = [sys.executable, "-c", code, "checkpoint", str(tmp_path / "m.npz")]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert "numpy" in loaded
    assert not {"torch", "jax", "keras", "tensorflow", "transformers", "h5py"} & set(loaded)
