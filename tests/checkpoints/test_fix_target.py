"""Where `fix` writes: a target is whole or not there, whatever stops it."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.checkpoints.mended import OTHER, TIED, E, made
from tests.checkpoints.writing import READOUT, TABLE

from tiebeam.checkpoints import fix, inspect
from tiebeam.errors import CheckpointError


def test_a_target_that_is_taken_or_cannot_be_made_is_refused(tmp_path: Path) -> None:
    path = made(tmp_path, {TABLE: E}, TIED)
    for target, message in ((path, "something is there"), (tmp_path / "no" / "out", "cannot be made")):
        with pytest.raises(CheckpointError, match=message):
            fix(path, target)
    with pytest.raises(CheckpointError, match="cannot be written"):
        fix(path, Path("/proc/self/out"))  # read-only, for root too
    (tmp_path / "empty").mkdir()
    fix(path, tmp_path / "empty")
    assert inspect(tmp_path / "empty").state == "omitted"


def test_a_target_whose_name_is_too_long_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot be written"):
        fix(made(tmp_path, {TABLE: E}, TIED), tmp_path / ("x" * 300), dry_run=True)


def test_of_many_that_write_one_target_one_does(tmp_path: Path) -> None:
    path = made(tmp_path, {TABLE: E, READOUT: OTHER}, TIED)

    def one(choice: Any) -> bool:
        try:
            return fix(path, tmp_path / "out", on_conflict=choice).written
        except CheckpointError:
            return False

    with ThreadPoolExecutor(8) as threads:
        written = list(threads.map(one, ["embedding", "readout", "mean", "untie"] * 2))
    assert sum(written) == 1
    assert inspect(tmp_path / "out").state in ("omitted", "different")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m", "out"]


def test_a_copy_that_fails_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tiebeam.checkpoints.fixing import writing

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(writing.os, "fsync", full)
    path = made(tmp_path, {TABLE: E, READOUT: E.copy()}, TIED)
    with pytest.raises(CheckpointError, match="No space left"):
        fix(path, tmp_path / "out")
    assert list(tmp_path.iterdir()) == [path]


KILLED = """
import os, sys
from tiebeam.checkpoints import fix
from tiebeam.checkpoints.fixing import writing

slow = writing.write
def write(path, tensors, metadata):
    slow(path, tensors, metadata)
    print("half", flush=True)
    sys.stdin.readline()

import tiebeam.checkpoints.fixing.fix as module
module.write = write
fix(sys.argv[1], sys.argv[2])
"""


@pytest.mark.slow
def test_killed_half_way_nothing_half_written_is_there(tmp_path: Path) -> None:
    path = made(tmp_path, {TABLE: E, READOUT: E.copy()}, TIED)
    before = {p.name: p.read_bytes() for p in path.iterdir()}
    command = [sys.executable, "-c", KILLED, str(path), str(tmp_path / "out")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "half\n"
        assert not (tmp_path / "out").exists()
        os.kill(process.pid, signal.SIGKILL)
        process.wait(timeout=30)
    time.sleep(0.1)
    assert not (tmp_path / "out").exists()
    assert {p.name: p.read_bytes() for p in path.iterdir()} == before
    assert fix(path, tmp_path / "out").written
