"""A sweep: every run once, whatever becomes of processes, losses and the disk."""

import math
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import types
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from tiebeam.errors import BackendError, InputError, RangeError, StoreError
from tiebeam.experiments import catalog, runner
from tiebeam.experiments.catalog import experiment
from tiebeam.experiments.runner import Plan, run_sweep, shared_out
from tiebeam.experiments.spec import DivergedError, Experiment
from tiebeam.experiments.store import Store
from tiebeam.experiments.sweep import ask, last_runs

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = [{"seed": seed} for seed in range(6)]

# The same sweep as a process of its own, of an experiment that takes its time and says when it begins.
SWEEPER = """
import sys, time
from pathlib import Path
from tiebeam.experiments import catalog
from tiebeam.experiments.runner import Plan, run_sweep
from tiebeam.experiments.spec import Experiment

def work(given):
    given.recorder.point("loss", 1, 1.0)
    print("begun", given.config["seed"], flush=True)
    time.sleep(float(sys.argv[2]))
    return {"last": float(given.config["seed"])}

made = Experiment("slow", "c", "s", {}, lambda s: [], work, lambda runs: [])
catalog.EXPERIMENTS["slow"] = made
if __name__ == "__main__":
    print(run_sweep(made, [{"seed": s} for s in range(6)], Plan(Path(sys.argv[1]), workers=1)), flush=True)
"""


def made_of(work, monkeypatch, name="made"):
    found = Experiment(name, "a claim", "a source", {}, lambda settings: [], work, lambda runs: [])
    monkeypatch.setitem(catalog.EXPERIMENTS, name, found)
    return found


@pytest.fixture
def path(tmp_path):
    return tmp_path / "runs.sqlite"


def sweep(experiment, path, **plan):
    return run_sweep(experiment, CONFIGS, Plan(path, workers=1, **plan))


def counted(**some):
    return {"finished": 0, "diverged": 0, "failed": 0, "skipped": 0} | some


def statuses(path, name="made"):
    with Store(path) as store:
        return {run.config["seed"]: run.status for run in store.runs(name)}


def going(path):
    with Store(path) as store:
        return [run.status for run in store.runs("alignment")]


# ---- every run once


def test_a_second_sweep_does_nothing_again(path, monkeypatch):
    seen = []

    def work(given):
        seen.append(given.config["seed"])
        return {"last": 1.0}

    made = made_of(work, monkeypatch)
    assert sweep(made, path) == counted(finished=6)
    assert sweep(made, path) == counted(skipped=6)
    assert seen == list(range(6))


def test_a_run_carries_versions_and_the_commit(path, monkeypatch):
    made = made_of(lambda given: {}, monkeypatch)
    sweep(made, path)
    with Store(path) as store:
        run = store.runs("made")[0]
    assert {"python", "tiebeam", "numpy"} <= set(run.versions)
    assert len(run.commit.rstrip("+")) in (0, 40)


def test_a_loss_that_is_no_number_ends_its_run_and_not_the_sweep(path, monkeypatch):
    def work(given):
        given.recorder.point("loss", 1, math.nan)
        if given.config["seed"] == 2:
            raise DivergedError({"last": math.nan})
        return {"last": 1.0}

    made = made_of(work, monkeypatch)
    assert sweep(made, path) == counted(finished=5, diverged=1)
    assert statuses(path)[2] == "diverged"
    assert sweep(made, path) == counted(skipped=6)  # it is an outcome, and not tried again
    with Store(path) as store:
        run = store.runs("made")[2]
    assert math.isnan(run.results["last"])
    assert math.isnan(run.series["loss"][0][1])


def test_an_error_is_kept_with_its_run_and_tried_again(path, monkeypatch):
    broken = [True]

    def work(given):
        if given.config["seed"] == 1 and broken[0]:
            raise ZeroDivisionError("by nought")
        return {}

    made = made_of(work, monkeypatch)
    assert sweep(made, path) == counted(finished=5, failed=1)
    with Store(path) as store:
        assert "ZeroDivisionError: by nought" in store.runs("made")[1].error
    broken[0] = False
    assert sweep(made, path) == counted(finished=1, skipped=5)


def test_a_store_that_cannot_be_written_stops_the_sweep(path, monkeypatch):
    def work(given):
        if given.config["seed"] == 3:
            raise StoreError("the store is full")
        return {}

    with pytest.raises(StoreError, match="full"):
        sweep(made_of(work, monkeypatch), path)
    assert list(statuses(path).values()) == ["finished"] * 3 + ["running"]


def test_an_interrupt_gives_the_run_back_and_the_sweep_goes_on_later(path, monkeypatch):
    stop = [True]

    def work(given):
        if given.config["seed"] == 3 and stop[0]:
            raise KeyboardInterrupt
        return {}

    made = made_of(work, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        sweep(made, path)
    assert list(statuses(path).values()) == ["finished"] * 3 + ["interrupted"]
    stop[0] = False
    assert sweep(made, path) == counted(finished=3, skipped=3)


def started(path, seconds):
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    return subprocess.Popen(
        [sys.executable, "-c", SWEEPER, str(path), str(seconds)], stdout=subprocess.PIPE, text=True, env=env
    )


def test_a_killed_sweep_goes_on_where_it_was(path):
    first = started(path, 0.3)
    begun = [first.stdout.readline() for _ in range(3)]
    first.send_signal(signal.SIGKILL)
    first.wait()
    first.stdout.close()
    assert begun == ["begun 0\n", "begun 1\n", "begun 2\n"]
    before = statuses(path, "slow")
    assert before[0] == before[1] == "finished"
    assert before[2] == "running"  # nobody could say that it was not any more
    second = started(path, 0.0)
    said, _ = second.communicate(timeout=60)
    assert [line for line in said.splitlines() if "begun" in line] == [f"begun {seed}" for seed in range(2, 6)]
    assert set(statuses(path, "slow").values()) == {"finished"}
    assert sqlite3.connect(path).execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_two_sweeps_at_once_share_the_runs(path):
    both = [started(path, 0.05) for _ in range(2)]
    said = [p.communicate(timeout=60)[0] for p in both]
    begun = sorted(line for text in said for line in text.splitlines() if "begun" in line)
    assert begun == [f"begun {seed}" for seed in range(6)]


def test_progress_tells_of_runs_that_go_on(path, monkeypatch):
    told, stop = [], threading.Event()

    def work(given):
        given.recorder.steps(10)
        given.recorder.point("loss", 4, 2.5)
        assert stop.wait(30)
        return {}

    def on_progress(progress):
        told.append(progress)
        if progress.going:
            stop.set()

    run_sweep(made_of(work, monkeypatch), CONFIGS[:1], Plan(path, workers=1), on_progress)
    assert ({"seed": 0}, 4, 10, 2.5) in [going for progress in told for going in progress.going]
    assert (told[-1].done, told[-1].total) == (1, 1)


# ---- processes


def test_cores_are_shared_out_and_never_promised_twice():
    for cores in range(1, 17):
        for workers in (None, 1, 2, 3, 8):
            for runs in (0, 1, 2, 100):
                count, threads = shared_out(workers, runs, "cpu", cores)
                assert 1 <= count <= max(runs, 1)
                assert threads >= 1
                assert count * threads <= max(cores, count)
                assert workers is None or count <= workers
    assert shared_out(None, 8, "cuda") == (1, None)
    with pytest.raises(RangeError, match="at least 1"):
        shared_out(0, 1, "cpu")


def test_a_gpu_is_asked_for_bfloat16_where_a_run_leaves_its_precision_open(tmp_path, monkeypatch):
    small = {"data": ["synthetic"], "cache": tmp_path}
    for there, device, precision in ((False, "cpu", "fp32"), (True, "cuda", "bf16")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=there: there)
        asked = ask(experiment("late-untie"), "smoke", {}, **small)
        assert (asked.device, {config["precision"] for config in asked.configs}) == (device, {precision})
        assert ask(experiment("std-grid"), "smoke", {}, cache=tmp_path).device == "cpu"  # NumPy has no use for it


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_trains_as_a_processor_does(tmp_path):
    what = experiment("late-untie")
    asked = ask(what, "smoke", {"steps": 4}, data=["synthetic"], cache=tmp_path)
    found = []
    for device in ("cuda", "cpu"):
        path = tmp_path / f"{device}.sqlite"
        assert run_sweep(what, asked.configs, Plan(path, asked.tokens, workers=1, device=device))["failed"] == 0
        with Store(path) as store:
            found.append({run.hash: run.results["last"] for run in store.runs("late-untie")})
    assert found[0] == pytest.approx(found[1], rel=0.02)


@pytest.mark.slow
def test_local_processes_do_what_one_does(tmp_path):
    what = experiment("rank")
    found = []
    for workers in (1, 2):
        path = tmp_path / f"{workers}.sqlite"
        asked = ask(what, "smoke", {}, cache=tmp_path)
        assert run_sweep(what, asked.configs, Plan(path, workers=workers)) == counted(finished=len(asked.configs))
        with Store(path) as store:
            found.append({run.hash: dict(run.results) for run in store.runs("rank")})
    assert found[0] == found[1]


@pytest.mark.slow
def test_ctrl_c_ends_local_processes_and_gives_their_runs_back(tmp_path):
    """The runs would take a minute; breaking off must not wait for them."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    words = "experiment run alignment --profile smoke --workers 2 --set steps=50000 --store runs.sqlite"
    command = [sys.executable, "-m", "tiebeam.cli", *words.split()]
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # whoever runs the tests in the background ignores it
    sweep = subprocess.Popen(
        command, cwd=tmp_path, env=env, stderr=subprocess.PIPE, text=True, start_new_session=True, preexec_fn=heard
    )
    path, waited = tmp_path / "runs.sqlite", time.monotonic()
    try:
        while not path.is_file() or going(path).count("running") < 2:
            assert time.monotonic() - waited < 60
            time.sleep(0.2)
        sweep.send_signal(signal.SIGINT)
        _, said = sweep.communicate(timeout=40)
    finally:
        sweep.kill()
    assert sweep.returncode == 130
    assert "0 of 8 runs are kept" in said
    assert going(path) == ["interrupted", "interrupted"]


@pytest.mark.slow
def test_a_process_that_is_killed_ends_the_sweep_with_a_reason_and_its_run_is_done_later(tmp_path):
    what, path = experiment("alignment"), tmp_path / "runs.sqlite"
    asked = ask(what, "smoke", {"steps": 50_000, "seeds": [0]}, cache=tmp_path)
    killed = []

    def kill(progress):
        with Store(path) as store:
            owners = [owner for (owner,) in store._db.execute("SELECT owner FROM runs WHERE status = 'running'")]
        if len(owners) == 2 and not killed:
            killed.append(int(owners[0].split("/")[1]))
            os.kill(killed[0], signal.SIGKILL)

    with pytest.raises(BackendError, match=r"(?s)ended from outside.*Hint:.*the same command goes on"):
        run_sweep(what, asked.configs, Plan(path, workers=2), kill)
    assert killed
    with Store(path) as store:
        assert store.claim("alignment", asked.configs[0]) is not None


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_local_ray_cluster_does_what_one_process_does(tmp_path):
    pytest.importorskip("ray", reason="ray is an extra of its own: 80 MB for one engine")
    what = experiment("rank")
    asked, found = ask(what, "smoke", {}, cache=tmp_path), []
    for engine in ("local", "ray"):
        path = tmp_path / f"{engine}.sqlite"
        plan = Plan(path, workers=1, engine=engine)
        assert run_sweep(what, asked.configs, plan) == counted(finished=len(asked.configs))
        with Store(path) as store:
            found.append({run.hash: dict(run.results) for run in store.runs("rank")})
    assert found[0] == found[1]


def test_without_joblib_one_process_still_works(path, monkeypatch):
    monkeypatch.setitem(sys.modules, "joblib", None)
    made = made_of(lambda given: {}, monkeypatch)
    assert sweep(made, path) == counted(finished=6)
    left = [{"seed": 20}, {"seed": 21}]
    assert run_sweep(made, left, Plan(path)) == counted(finished=2)  # nobody asked for several
    with pytest.raises(BackendError, match="--workers 1"):
        run_sweep(made, [{"seed": 10}, {"seed": 11}], Plan(path, workers=2))


def test_without_ray_its_engine_is_refused_with_what_to_install(path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(BackendError, match=r"tiebeam\[ray\]"):
        sweep(made_of(lambda given: {}, monkeypatch), path, engine="ray")


# ---- what is asked for


def test_what_does_not_fit_is_said_before_any_run(tmp_path):
    what = experiment("init-stats")
    for changes, said in [
        ({"nothing": 1}, r"(?s)no setting 'nothing'.*block, data"),
        ({"block": "long"}, "(?s)setting 'block'.*a whole number"),
        ({"widths": []}, "empty"),
        ({"block": None}, "(?s)'block'.*None.*a whole number"),
    ]:
        with pytest.raises(RangeError, match=said):
            ask(what, "smoke", changes, cache=tmp_path)
    with pytest.raises(RangeError, match=r"(?s)no profile 'huge'.*paper, laptop, smoke"):
        ask(what, "huge", {}, cache=tmp_path)
    with pytest.raises(InputError, match="reads no text"):
        ask(experiment("rank"), "smoke", {}, data=["x.txt"], cache=tmp_path)
    with pytest.raises(InputError, match=r"(?s)no text at 'absent.txt'.*stdlib"):
        ask(what, "smoke", {}, data=["absent.txt"], cache=tmp_path)
    with pytest.raises(RangeError, match=r"(?s)no experiment.*init-stats"):
        experiment("absent")


def test_an_experiment_without_its_framework_says_so(tmp_path):
    with pytest.raises(BackendError, match=r"(?s)cannot run.*no a_missing_one"):
        ask(replace(experiment("rank"), packages=("a_missing_one",)), "smoke", {}, cache=tmp_path)


def test_only_what_was_asked_for_last_is_shown(path, monkeypatch):
    made = made_of(lambda given: {}, monkeypatch)
    with Store(path) as store:
        with pytest.raises(InputError, match="experiment run made"):
            last_runs(store, made)
        store.begin("made", "smoke", "a command", [{"seed": 5}, {"seed": 9}, {"seed": 1}])
    sweep(made, path)
    with Store(path) as store:
        asked, runs, missing = last_runs(store, made)
    assert (asked.command, [run.config["seed"] for run in runs], missing) == ("a command", [5, 1], 1)


def test_the_sources_commit_is_known_where_they_lie_in_a_repository():
    assert runner.commit() == runner.commit()


def test_a_ray_cluster_that_does_not_answer_is_named(path, monkeypatch):
    def refuse(**_):
        raise ConnectionError("Failed to connect to Ray cluster at 192.0.2.1:6379")

    module = types.ModuleType("ray")
    module.is_initialized = lambda: False
    module.init = refuse
    monkeypatch.setitem(sys.modules, "ray", module)
    monkeypatch.setenv("RAY_ADDRESS", "192.0.2.1:6379")
    with pytest.raises(BackendError, match=r"RAY_ADDRESS=192\.0\.2\.1:6379") as refused:
        sweep(made_of(lambda given: {}, monkeypatch), path, engine="ray")
    assert "Hint:" in str(refused.value)
