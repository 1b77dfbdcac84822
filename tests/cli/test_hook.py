"""What a commit or a pull request is told about checkpoints and configs."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from tiebeam.cli.hook import main

ROOT = Path(__file__).resolve().parents[2]
SOUND = {"model_type": "llama", "tie_word_embeddings": True}
TABLE = np.random.default_rng(0).normal(size=(64, 8)).astype(np.float32)


def checkpoint(folder: Path, config: object, **tensors: np.ndarray) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file({"model.embed_tokens.weight": TABLE, **tensors}, folder / "model.safetensors")
    return folder


def test_a_sound_checkpoint_is_silent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = checkpoint(tmp_path / "sound", SOUND)
    assert main([str(folder / "config.json"), str(folder / "model.safetensors"), str(folder)]) == 0
    assert capsys.readouterr().out == ""


def test_two_matrices_under_a_true_flag_fail_once_and_are_annotated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = checkpoint(tmp_path / "bad", SOUND, **{"lm_head.weight": TABLE + 1})
    files = [str(p) for p in sorted(folder.iterdir())]
    assert main(files) == 1
    text = capsys.readouterr().out
    assert text.count("model.safetensors: ") == text.count("Hint: ") > 0
    assert main(["--annotations", "github", *files]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines
    assert all(re.fullmatch(r"::(error|warning) file=[^,:]+,title=tiebeam [a-z-]+::.+", line) for line in lines)
    assert main(["--fail-on", "never", *files]) == 0


def test_a_config_alone_is_judged_by_what_it_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"tie_word_embedding": True, "text_config": {"vocab_size": 9}}))
    assert main([str(config)]) == 1
    assert "misspelt-flag" in capsys.readouterr().out
    config.write_text(json.dumps({"tie_word_embeddings": False, "text_config": {"tie_word_embeddings": True}}))
    assert main([str(config)]) == 1
    assert "config-scopes-disagree" in capsys.readouterr().out


def test_what_cannot_be_read_is_another_code_and_the_rest_is_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken.safetensors").write_bytes(b"\xff" * 16)
    checkpoint(tmp_path / "bad", SOUND, **{"lm_head.weight": TABLE + 1})
    assert main([str(tmp_path)]) == 2
    out = capsys.readouterr().out
    assert "expected: a header that ends before the file does" in out
    assert "bad/model.safetensors" in out


def test_shards_are_judged_by_their_index_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_file({"model.embed_tokens.weight": TABLE}, tmp_path / "model-1.safetensors")
    save_file({"lm_head.weight": TABLE + 1}, tmp_path / "model-2.safetensors")
    shards = {"model.embed_tokens.weight": "model-1.safetensors", "lm_head.weight": "model-2.safetensors"}
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": shards}))
    (tmp_path / "config.json").write_text(json.dumps(SOUND))
    assert main(sorted(str(p) for p in tmp_path.iterdir())) == 1
    said = {line.partition(": ")[0] for line in capsys.readouterr().out.splitlines() if not line.startswith("  ")}
    assert said == {str(index)}


def test_what_training_leaves_beside_the_weights_is_nothing_to_it(tmp_path: Path) -> None:
    """A folder of a Trainer failed on its random state, which names NumPy's own constructor."""
    folder = checkpoint(tmp_path / "m", SOUND)
    for name in ("optimizer.pt", "rng_state_0.pth", "scheduler.pt", "scaler.pt"):
        (folder / name).write_bytes(b"\x80\x02cos\nsystem\n.")
    assert main([str(folder)]) == 0


def test_a_path_that_is_not_there_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = checkpoint(tmp_path / "m", SOUND)
    assert main([str(folder), str(tmp_path / "modle")]) == 2
    assert "modle' is not there" in capsys.readouterr().out


def test_a_config_that_is_none_is_an_error_of_ours(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for text in ('{"a":' * 3000, "[]", '{"a": 1, "a": 2}', "\xff"):
        (tmp_path / "config.json").write_text(text, "latin-1")
        (tmp_path / "model.safetensors.index.json").write_text(text, "latin-1")
        assert main([str(tmp_path / "config.json"), str(tmp_path)]) == 2
    assert "has a key twice" in capsys.readouterr().out


def test_what_is_printed_is_one_line_whatever_a_file_calls_its_tensors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_file({"a\n::error::x\x1b[31m.embed.weight": TABLE, "lm_head.weight": TABLE}, tmp_path / "m.safetensors")
    assert main([str(tmp_path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(": ")[0] for line in lines] == [f"{tmp_path / 'm.safetensors'}", "  Hint"]
    assert "\x1b" not in "".join(lines)


def test_other_files_are_nothing_to_it() -> None:
    assert main([str(ROOT / "README.md"), str(ROOT / "tests" / "golden")]) == 0


def test_the_hook_asks_for_every_file_that_it_can_judge() -> None:
    text = (ROOT / ".pre-commit-hooks.yaml").read_text("utf-8")
    pattern = re.search(r"^  files: (.*)$", text, re.MULTILINE)
    assert pattern is not None
    for name in ("a/model.safetensors", "model.safetensors.index.json", "config.json", "x/config.json", "m.weights.h5"):
        assert re.search(pattern[1], name)
    for name in ("generation_config.json", "README.md", "tokenizer.json"):
        assert not re.search(pattern[1], name)
    assert "entry: tiebeam-hook" in text


def test_the_actions_script_runs_as_github_would_run_it(tmp_path: Path) -> None:
    """Its last step, with the inputs in the environment; two paths, one of them hostile."""
    text = (ROOT / "action.yml").read_text("utf-8")
    script = re.sub(r"^ {8}", "", text.partition("      run: |\n")[2], flags=re.MULTILINE)
    checkpoint(tmp_path / "bad", SOUND, **{"lm_head.weight": TABLE + 1})
    command = tmp_path / "bin" / "tiebeam-hook"
    command.parent.mkdir()
    command.write_text(f"#!{sys.executable}\nfrom tiebeam.cli.hook import script\nscript()\n")
    command.chmod(0o755)
    ran = subprocess.run(
        ["bash", "-e", "-c", script], capture_output=True, text=True, check=False, cwd=tmp_path,
        env={**os.environ, "PATHS": "bad\n$(touch hacked)", "FAIL_ON": "error", "PYTHONPATH": str(ROOT / "src"),
             "PATH": f"{command.parent}:{os.environ['PATH']}"},
    )  # fmt: skip
    assert "::" in ran.stdout, ran.stderr
    assert "file=bad/model.safetensors" in ran.stdout
    assert not (tmp_path / "hacked").exists()
