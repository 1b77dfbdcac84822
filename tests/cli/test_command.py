"""The command from outside: exit codes, what goes where, and what it may load."""

import json
import os
import random
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.checkpoints.tiny import GPT2
from tests.cli.conftest import Run
from typer.testing import CliRunner

import tiebeam
from tiebeam.cli.app import app
from tiebeam.cli.building import PASS, seeded
from tiebeam.cli.output import FailOn, Format, exit_code, format_for, write_text
from tiebeam.cli.targets import resolve
from tiebeam.core.finding import Finding
from tiebeam.core.report import Report

pytestmark = pytest.mark.slow

DOCS = Path(__file__).resolve().parents[2] / "docs"
COMMANDS = ("inspect", "measure", "sensitivity", "advise", "init", "checkpoint", "demo")


def process(*args: str, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a fresh interpreter."""
    path = os.pathsep.join(p for p in sys.path if p)
    return subprocess.run(
        [sys.executable, "-m", "tiebeam.cli", *args],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": path, "COLUMNS": "100", **env},
    )


# --- help ---


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_and_stands_in_the_documentation(command: str) -> None:
    shown = CliRunner().invoke(app, [command, "--help"])
    assert shown.exit_code == 0
    assert len(shown.output) > 200
    assert f"tiebeam {command}" in (DOCS / "cli.md").read_text("utf-8")


def test_the_documentation_names_every_exit_code() -> None:
    page = (DOCS / "cli.md").read_text("utf-8")
    assert all(f"\n| {code} | " in page for code in (0, 1, 2, 130))


def test_help_and_version_load_no_framework() -> None:
    asked = [[c, "--help"] for c in COMMANDS]
    asked += [[], ["-h"], ["experiment", "list"], ["experiment", "run", "-h"], ["--version"]]
    code = (
        "import json, sys\nfrom tiebeam.cli import main\n"
        "heavy = {'torch', 'jax', 'keras', 'transformers', 'tokenizers', 'huggingface_hub'}\n"
        "for args in json.loads(sys.argv[1]):\n"
        "    try:\n        main(args)\n"
        "    except SystemExit:\n"
        "        print(json.dumps([args, sorted(heavy & set(sys.modules))]), file=sys.stderr)\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    command = [sys.executable, "-c", code, json.dumps(asked)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    assert [json.loads(line) for line in done.stderr.splitlines() if line.startswith("[[")] == [[a, []] for a in asked]


def test_the_version_is_the_packages(run: Run) -> None:
    assert run("--version").out == f"tiebeam {tiebeam.__version__}\n"


# --- inspect ---


def test_a_healthy_model_ends_with_0(models: Path, run: Run) -> None:
    ran = run("inspect", "lm:build_with_inputs")
    assert (ran.code, ran.err) == (0, "")
    assert "table.weight" in ran.out


def test_a_finding_ends_with_1_and_fail_on_decides_which(models: Path, run: Run) -> None:
    assert run("inspect", "lm:mistake").code == 1
    assert run("inspect", "lm:mistake", "--fail-on", "error").code == 1
    assert run("inspect", "lm:mistake", "--fail-on", "never").code == 0


@pytest.mark.parametrize(("severity", "codes"), [("info", (0, 0, 0)), ("warning", (1, 0, 0)), ("error", (1, 1, 0))])
def test_each_severity_fails_at_its_own_level(severity: str, codes: tuple[int, ...]) -> None:
    report = Report(model="m", framework="torch", findings=(Finding("c", severity, "", "m"),))
    found = tuple(exit_code(report, level) for level in (FailOn.warning, FailOn.error, FailOn.never))
    assert found == codes


def test_json_on_standard_output_is_json_alone(models: Path, run: Run) -> None:
    ran = run("inspect", "lm:loud", "--format", "json")
    report = json.loads(ran.out)
    assert report["tables"][0]["tied"] is True
    assert "building ..." in ran.err


def test_the_suffix_of_the_output_chooses_the_format(models: Path, run: Run) -> None:
    formats = [format_for(Path(name)) for name in ("a.html", "a.MD", "a.json", "a.txt")]
    assert formats == [Format.html, Format.markdown, Format.json, Format.text]
    ran = run("inspect", "lm:build", "-o", "report.html")
    assert (ran.out, ran.err) == ("", "wrote report.html\n")
    assert (models / "report.html").read_text("utf-8").startswith("<!DOCTYPE html>")
    run("inspect", "lm:build", "-o", "report.html", "--format", "markdown")
    assert (models / "report.html").read_text("utf-8").startswith("#")


def test_a_report_replaces_the_old_one_whole_and_leaves_nothing_beside(models: Path, run: Run) -> None:
    (models / "r.json").write_text("old")
    run("inspect", "lm:build", "-o", "r.json")
    assert json.loads((models / "r.json").read_text())["schema"] >= 1
    assert not [p.name for p in models.iterdir() if p.name.startswith(".r.json")]


def test_a_report_that_cannot_be_written_is_refused_before_the_model_is_built(models: Path, run: Run) -> None:
    ran = run("inspect", "lm:broken", "-o", "nowhere/r.json")
    assert ran.code == 2
    assert "the file 'nowhere/r.json' cannot be written" in ran.err


@pytest.mark.parametrize("target", ["lm:drops", "lm:ready"])
def test_one_seed_fixes_random_weights_and_dropout(models: Path, run: Run, target: str) -> None:
    """Repeated in one process, whose own generator moves on between the runs."""
    reports = []
    for seed in (0, 0, 1):
        torch.rand(3)
        sys.modules.pop("lm", None)
        reports.append(run("inspect", target, "--seed", seed, "--format", "json").out)
    assert reports[0] == reports[1] != reports[2]


def test_dropout_does_not_repeat_the_numbers_that_the_weights_came_from() -> None:
    drawn = []
    for part in (0, PASS, PASS):
        before = torch.get_rng_state()
        with seeded(3, part=part):
            drawn.append((random.random(), float(np.random.rand()), torch.rand(1).item()))  # noqa: NPY002
        assert torch.equal(torch.get_rng_state(), before)
    assert drawn[1] == drawn[2]
    assert all(a != b for a, b in zip(drawn[0], drawn[1], strict=True))


def test_a_seed_that_no_generator_takes_is_a_wrong_command_line(run: Run) -> None:
    assert run("inspect", "gpt2", "--seed", 2**32).code == 2


def test_a_suffix_of_no_format_is_refused_before_the_model_is_built(models: Path, run: Run) -> None:
    ran = run("inspect", "lm:broken", "-o", "rep.xyz")
    assert ran.code == 2
    assert "'rep.xyz' does not tell its format\n  got: the suffix .xyz" in ran.err
    assert run("inspect", "lm:build", "-o", "rep.xyz", "--format", "json").code == 0
    assert json.loads((models / "rep.xyz").read_text())["tables"]


# --- where a report goes ---


def test_a_link_stays_and_its_target_is_replaced(tmp_path: Path) -> None:
    target, link = tmp_path / "deep" / "target.md", tmp_path / "link.md"
    target.parent.mkdir()
    target.write_text("old")
    target.chmod(0o640)
    link.symlink_to(target)
    write_text(link, "new")
    assert (link.is_symlink(), target.read_text()) == (True, "new")
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    assert [p.name for p in target.parent.iterdir()] == ["target.md"]


def test_a_link_to_nothing_makes_its_target(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")
    write_text(tmp_path / "link", "new")
    assert ((tmp_path / "link").is_symlink(), (tmp_path / "target").read_text()) == (True, "new")


def test_a_pipe_is_written_to_and_stays(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_text(pipe, "new")
        assert os.read(reader, 16) == b"new"
    finally:
        os.close(reader)
    assert pipe.is_fifo()


def test_a_device_is_written_to_and_stays() -> None:
    write_text(Path(os.devnull), "new")
    assert Path(os.devnull).is_char_device()


def test_a_report_to_standard_output_goes_there_also_where_that_is_appended_to_a_file(tmp_path: Path) -> None:
    save_file({"wte.weight": torch.ones(8, 2)}, tmp_path / "m.safetensors")
    args = ["checkpoint", "m.safetensors", "-o", "/dev/stdout", "--format", "markdown", "--fail-on", "never"]
    assert process(*args, cwd=tmp_path).stdout.startswith("#")
    path = os.pathsep.join(p for p in sys.path if p)
    (tmp_path / "log").write_text("before\n")
    with (tmp_path / "log").open("a") as log:
        subprocess.run(
            [sys.executable, "-m", "tiebeam.cli", *args],
            stdout=log, stderr=subprocess.PIPE, check=True, cwd=tmp_path, env={**os.environ, "PYTHONPATH": path},
        )  # fmt: skip
    assert (tmp_path / "log").read_text().startswith("before\n# ")


def test_inputs_are_made_where_a_function_gives_none(models: Path, run: Run) -> None:
    assert "table.weight" in run("inspect", "lm:build").out


def test_a_model_without_a_table_is_healthy(models: Path, run: Run) -> None:
    assert run("inspect", "lm:no_table").code == 0


def test_meta_sees_the_tie_of_a_model_type(run: Run) -> None:
    ran = run("inspect", "gpt2", "--meta", "--format", "json")
    report = json.loads(ran.out)
    assert ran.code == 0
    assert report["meta"] is True
    assert [t["tied"] for t in report["tables"]] == [True]
    assert report["tables"][0]["names"] == ["transformer.wte.weight", "lm_head.weight"]


def test_notes_about_how_a_model_was_built_go_to_standard_error(tmp_path: Path, run: Run) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2", **GPT2}))
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    ran = run("inspect", tmp_path, "--format", "json")
    assert ran.err == "note: the weights are random: pytorch_model.bin was not loaded\n"
    assert json.loads(ran.out)["tables"]


# --- what goes wrong ---


@pytest.mark.parametrize("target", ["lm:broken", "lm:refuses", "lm:leaves", "nowhere.json", "gtp2", ""])
def test_what_cannot_be_looked_at_ends_with_2_and_a_message_without_a_traceback(
    models: Path, run: Run, target: str
) -> None:
    ran = run("inspect", target)
    assert (ran.code, ran.out) == (2, "")
    assert "Error: " in ran.err
    assert "Traceback" not in ran.err


def test_debug_shows_the_whole_chain(models: Path, run: Run) -> None:
    ran = run("inspect", "lm:broken", "--debug")
    assert ran.code == 2
    assert "RuntimeError: no disk of weights here" in ran.err
    assert "Traceback" in ran.err


def test_a_fault_of_tiebeam_ends_with_2_and_asks_for_a_report(
    models: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiebeam, "inspect", lambda *_, **__: 1 // 0, raising=False)
    ran = run("inspect", "lm:build")
    assert ran.code == 2
    assert "ZeroDivisionError" in ran.err
    assert "please report it" in ran.err


@pytest.mark.parametrize(
    "args",
    [
        ("inspect",),
        ("inspect", "gpt2", "--nonsense"),
        ("inspect", "gpt2", "--fail-on", "info"),
        ("look", "x"),
    ],
)
def test_a_wrong_command_line_ends_with_2(run: Run, args: tuple[str, ...]) -> None:
    assert run(*args).code == 2


def test_exit_codes_reach_the_shell(tmp_path: Path) -> None:
    """Of commands and targets that load no framework: a process with one costs seconds."""
    save_file({"wte.weight": torch.ones(8, 2)}, tmp_path / "m.safetensors")
    (tmp_path / "light.py").write_text("def interrupted():\n    raise KeyboardInterrupt\n")
    codes = {
        ("checkpoint", "m.safetensors", "--fail-on", "error"): 0,
        ("checkpoint", "m.safetensors"): 1,
        ("inspect", "nowhere.json"): 2,
        ("inspect", "light:interrupted"): 130,
    }
    done = {args: process(*args, cwd=tmp_path) for args in codes}
    assert {args: d.returncode for args, d in done.items()} == codes
    assert "Traceback" not in "".join(d.stderr for d in done.values())


# --- init ---


def test_init_writes_a_mended_model_that_reloads(models: Path, run: Run) -> None:
    ran = run("init", "lm:mistake", "--out", "ready", "--mode", "analytic")
    assert ran.code == 0
    assert "wrote config.json, model.safetensors to ready" in ran.err
    table = load_file(models / "ready" / "model.safetensors")["table.weight"]
    assert table.std().item() == pytest.approx(32**-0.5, rel=0.05)
    assert json.loads((models / "ready" / "config.json").read_text())["tiebeam"]["init"][0]["mode"] == "analytic"


def test_one_seed_writes_equal_files_and_another_seed_others(models: Path, run: Run) -> None:
    for out, seed in (("a", 0), ("b", 0), ("c", 1)):
        assert run("init", "lm:mistake", "--out", out, "--seed", seed).code == 0
    files = [(models / out / "model.safetensors").read_bytes() for out in "abc"]
    assert files[0] == files[1] != files[2]


def test_a_transformers_model_is_initialised_saved_and_healthy_when_read_again(tmp_path: Path, run: Run) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2", **GPT2}))
    assert run("init", tmp_path, "--out", tmp_path / "ready").code == 0
    ran = run("inspect", tmp_path / "ready", "--format", "json")
    table = json.loads(ran.out)["tables"][0]
    assert ran.code == 0
    assert table["std"] == pytest.approx(32**-0.5, rel=0.05)
    assert table["predicted"]["logit_std"] == pytest.approx(1.0, abs=0.1)
    assert "are replaced by new draws" in run("init", tmp_path / "ready", "--out", tmp_path / "again").err


def test_a_folder_that_is_not_empty_is_refused_before_the_model_is_built(models: Path, run: Run) -> None:
    (models / "full").mkdir()
    (models / "full" / "mine").write_text("")
    ran = run("init", "lm:broken", "--out", "full")
    assert ran.code == 2
    assert "is not empty" in ran.err
    assert run("init", "lm:mistake", "--out", "full", "--force").code == 0
    assert (models / "full" / "mine").exists()


def test_a_model_without_a_table_writes_nothing(models: Path, run: Run) -> None:
    ran = run("init", "lm:no_table", "--out", "ready")
    assert ran.code == 2
    assert "no vocabulary table" in ran.err
    assert not (models / "ready").exists()


def test_inspecting_changes_nothing(models: Path, run: Run) -> None:
    model = resolve("lm:ready").model
    before = {name: p.clone() for name, p in model.named_parameters()}
    assert run("inspect", "lm:ready").code == 0
    assert resolve("lm:ready").model is model
    assert all(torch.equal(before[name], p) for name, p in model.named_parameters())


@pytest.mark.parametrize("target", ["lm:alarmed", "lm:Alarms"])
def test_what_a_target_raises_past_every_handler_is_no_finding(models: Path, run: Run, target: str) -> None:
    ran = run("inspect", target)
    assert ran.code == 2
    assert "Alarm: on fire" in ran.err
