"""One run on several processes: the same losses as one process gives, written down once."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tiebeam.errors import BackendError, RangeError
from tiebeam.experiments.catalog import experiment
from tiebeam.experiments.ranks import ALONE, Ranks, joined
from tiebeam.experiments.runner import Plan, run_sweep
from tiebeam.experiments.store import Store
from tiebeam.experiments.sweep import ask

ROOT = Path(__file__).resolve().parents[2]
SMALL = {"steps": 4, "vocab": 300, "layers": 1, "validation": 3}


def started(folder, *words):
    """What torchrun would start."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    changes = [word for name, value in SMALL.items() for word in ("--set", f"{name}={value}")]
    words = [*"experiment run late-untie --profile smoke --store two.sqlite".split(), *changes, *words]
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    return [
        subprocess.Popen(
            [sys.executable, "-m", "tiebeam.cli", *words],
            cwd=folder,
            env={**os.environ, **shared, "RANK": str(rank), "PYTHONPATH": paths},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in (0, 1)
    ]


def ended(both, *codes):
    """What both said in the end."""
    try:
        said = [p.communicate(timeout=120)[0] for p in both]
    finally:
        for p in both:
            p.kill()
    assert tuple(p.returncode for p in both) == codes, said
    return said


@pytest.mark.slow
def test_two_processes_train_as_one_does_and_one_of_them_records_and_speaks(tmp_path):
    """Late untying exchanges parameters on the way, which DDP alone would not see."""
    said = ended(started(tmp_path, "--data", "synthetic"), 0, 0)
    assert "Untying on the way" in said[0]
    assert said[1] == ""
    what = experiment("late-untie")
    asked = ask(what, "smoke", SMALL, data=["synthetic"], cache=tmp_path)
    one = tmp_path / "one.sqlite"
    run_sweep(what, asked.configs, Plan(one, asked.tokens, workers=1))
    with Store(one) as store, Store(tmp_path / "two.sqlite") as other:
        alone, together = ({run.hash: run for run in s.runs("late-untie")} for s in (store, other))
    assert set(alone) == set(together)
    for key, run in alone.items():
        assert together[key].status == "finished"
        for name, points in run.series.items():
            assert dict(together[key].series[name]) == pytest.approx(dict(points), rel=1e-5), name


@pytest.mark.slow
def test_where_one_process_cannot_begin_the_other_says_no_more_than_that_it_has_ended(tmp_path):
    """It was called a fault of tiebeam, with a page of traceback over the message that counts."""
    first, other = ended(started(tmp_path, "--data", "absent.txt"), 2, 2)
    assert "no text at 'absent.txt'" in first
    assert "another process of this run has ended" in other
    assert "Traceback" not in first + other
    both = ended(started(tmp_path, "--data", "synthetic", "--set", "batch=3"), 2, 2)
    assert all("3 windows for 2 processes" in said for said in both)
    assert not (tmp_path / "two.sqlite").exists()  # nothing was begun


@pytest.mark.slow
def test_a_process_that_is_killed_ends_the_other_and_its_run_is_given_back(tmp_path):
    both, path = started(tmp_path, "--data", "synthetic", "--set", "steps=100000"), tmp_path / "two.sqlite"
    waited = time.monotonic()
    while not path.is_file() or not any(run.series for run in runs_of(path)):
        assert time.monotonic() - waited < 90
        time.sleep(0.2)
    both[1].send_signal(signal.SIGKILL)
    first, _ = ended(both, 2, -signal.SIGKILL)
    assert "another process of this run has ended" in first
    assert "Traceback" not in first
    assert [run.status for run in runs_of(path)] == ["interrupted"]


def runs_of(path):
    with Store(path) as store:
        return store.runs("late-untie")


def test_a_batch_that_cannot_be_shared_out_evenly_is_refused():
    Ranks(1, 2).check_batch(8)
    with pytest.raises(RangeError, match="8 windows for 3 processes"):
        Ranks(0, 3).check_batch(8)


def test_what_torchrun_does_not_fit_is_said(monkeypatch, tmp_path):
    with joined(("torch",)) as ranks:
        assert ranks == ALONE
    monkeypatch.setenv("WORLD_SIZE", "two")
    with pytest.raises(BackendError, match="WORLD_SIZE=two"), joined(("torch",)):
        pass
    monkeypatch.setenv("WORLD_SIZE", "2")
    for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(BackendError, match=r"(?s)without torchrun.*--workers"), joined(()):
        pass
    with pytest.raises(BackendError, match=r"(?s)without RANK, MASTER_ADDR, MASTER_PORT.*torchrun"), joined(("torch",)):
        pass
    with pytest.raises(BackendError, match="one run after another"):
        run_sweep(experiment("late-untie"), [], Plan(tmp_path / "runs.sqlite", workers=2, ranks=Ranks(0, 2)))
