"""The file that keeps every run: nothing finished is lost or done twice, whatever happens to a process or the disk."""

import math
import os
import resource
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tiebeam.errors import StoreError
from tiebeam.experiments import owner
from tiebeam.experiments.config import canonical, fingerprint
from tiebeam.experiments.export import COLUMNS, to_csv
from tiebeam.experiments.store import SCHEMA, Recorder, Store

ROOT = Path(__file__).resolve().parents[2]

CLAIMER = """
import sys, time
from pathlib import Path
from tiebeam.experiments.store import Store
with Store(Path(sys.argv[1])) as store:
    for number in range(40):
        run = store.claim("shared", {"number": number})
        if run is not None:
            store.add_points(run, [("loss", step, step / 7) for step in range(20)])
            store.finish(run, {"who": float(sys.argv[2])})
            print(number)
"""
HOLDER = """
import sys, time
from pathlib import Path
from tiebeam.experiments.store import Store
store = Store(Path(sys.argv[1]))
run = store.claim("held", {"seed": 0})
store.add_points(run, [("loss", 1, 9.0), ("loss", 2, 8.0)])
print("claimed", flush=True)
time.sleep(60)
"""


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path / "runs.sqlite") as opened:
        yield opened


def child(code, *args):
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    return subprocess.Popen([sys.executable, "-c", code, *map(str, args)], stdout=subprocess.PIPE, text=True, env=env)


def only(store, experiment="x"):
    (run,) = store.runs(experiment)
    return run


# ---- a run


def test_what_was_recorded_is_read_back_with_where_it_came_from(store):
    run = store.claim("x", {"seed": 3, "rate": 0.1}, versions={"torch": "2"}, commit="abc")
    store.announce(run, 2)
    store.add_points(run, [("loss", 1, 2.5), ("loss", 2, math.nan), ("grad", 1, math.inf)])
    store.finish(run, {"last": 2.0, "worst": math.nan})
    found = only(store)
    assert (found.config, found.status, found.steps, found.commit) == ({"seed": 3, "rate": 0.1}, "finished", 2, "abc")
    assert found.versions == {"torch": "2"}
    assert found.hash == fingerprint("x", {"rate": 0.1, "seed": 3})
    assert found.series["loss"][0] == (1, 2.5)
    assert math.isnan(found.series["loss"][1][1])
    assert found.series["grad"] == ((1, math.inf),)
    assert found.results["last"] == 2.0
    assert math.isnan(found.results["worst"])
    assert found.ended >= found.started


@pytest.mark.parametrize("status", ["finished", "diverged"])
def test_a_run_that_is_done_is_never_claimed_again(store, status):
    run = store.claim("x", {"seed": 0})
    store.finish(run, {}, status)
    assert store.claim("x", {"seed": 0}) is None
    assert store.done("x", [{"seed": 0}, {"seed": 1}]) == [True, False]
    assert store.claim("y", {"seed": 0}) is not None  # another experiment's


@pytest.mark.parametrize("status", ["failed", "interrupted"])
def test_a_run_that_did_not_finish_starts_anew_without_its_old_points(store, status):
    run = store.claim("x", {"seed": 0})
    store.add_points(run, [("loss", 1, 1.0)])
    store.finish(run, {"half": 1.0}, status, "why")
    assert store.claim("x", {"seed": 0}) is not None
    again = only(store)
    assert (again.status, dict(again.series), dict(again.results), again.error) == ("running", {}, {}, "")


def test_a_living_process_keeps_its_run_and_a_dead_one_does_not(store):
    other = child(HOLDER, store.path)
    assert other.stdout.readline() == "claimed\n"
    assert store.claim("held", {"seed": 0}) is None
    assert store.give_back("held") == 0
    assert store.last_points("held", "loss") == {fingerprint("held", {"seed": 0}): (2, 8.0, None)}
    other.send_signal(signal.SIGKILL)
    other.wait()
    other.stdout.close()
    assert store.give_back("held") == 1
    assert only(store, "held").status == "interrupted"
    assert store.claim("held", {"seed": 0}) is not None


def test_a_process_of_another_machine_keeps_its_run_until_it_is_taken_over(store):
    assert store.claim("x", {"seed": 0}, owner="elsewhere/1/0") is not None
    assert store.claim("x", {"seed": 0}) is None
    assert store.claim("x", {"seed": 0}, reclaim=True) is not None


def test_a_number_that_was_given_to_another_process_is_not_its_first_owner():
    machine, number, start = owner.this_process().split("/")
    assert owner.alive(f"{machine}/{number}/{start}")
    assert not owner.alive(f"{machine}/{number}/{start}0")


def test_what_is_taken_down_is_written_once_a_second_and_whole_at_the_end(store):
    now = [0.0]
    run = store.claim("x", {})
    recorder = Recorder(store, run, clock=lambda: now[0])
    seen = []
    for step in range(5):
        recorder.point("loss", step, step)
        seen.append(len(only(store).series.get("loss", ())))
        now[0] += 0.4
    assert seen == [1, 1, 1, 4, 4]
    recorder.flush()
    assert len(only(store).series["loss"]) == 5


# ---- several processes


def test_processes_that_share_a_store_do_every_run_once(tmp_path):
    path = tmp_path / "runs.sqlite"
    both = [child(CLAIMER, path, who) for who in range(2)]
    done = [sorted(map(int, p.communicate(timeout=60)[0].split())) for p in both]
    assert [p.returncode for p in both] == [0, 0]
    assert sorted(done[0] + done[1]) == list(range(40))
    with Store(path) as store:
        runs = store.runs("shared")
        assert len(runs) == 40
        assert all(len(run.series["loss"]) == 20 for run in runs)
    assert sqlite3.connect(path).execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_threads_with_stores_of_their_own_can_open_a_new_file_at_once(tmp_path):
    def claim(number):
        with Store(tmp_path / "runs.sqlite") as store:
            return store.claim("x", {"number": number % 4}, owner=f"elsewhere/{number}/0") is not None

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(claim, range(16))) == 4


def test_threads_that_make_one_file_after_another_never_meet_half_of_one(tmp_path):
    def claim(number):
        for path in paths:
            together.wait(5)
            with Store(path) as store:
                store.claim("x", {"number": number})

    paths, together = [tmp_path / f"{number}.sqlite" for number in range(25)], threading.Barrier(4)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(claim, range(4)))
    for path in paths:
        with Store(path) as store:
            assert len(store.runs("x")) == 4


# ---- what goes wrong


def test_a_full_disk_is_said_and_what_was_finished_stays(tmp_path):
    path = tmp_path / "runs.sqlite"
    with Store(path) as store:
        store.finish(store.claim("x", {"seed": 0}), {"last": 1.0})
        run = store.claim("x", {"seed": 1})
        pages = store._db.execute("PRAGMA page_count").fetchone()[0]
        store._db.execute(f"PRAGMA max_page_count = {pages}")  # SQLite answers as on a full disk
        with pytest.raises(StoreError, match=r"(?s)cannot be written.*full.*make room"):
            store.add_points(run, [("loss" * 50, i, 0.5) for i in range(10_000)])
    with Store(path) as store:
        assert [r.status for r in store.runs("x")] == ["finished", "running"]
        assert store.claim("x", {"seed": 1}) is not None  # by the same process: it goes on


def test_a_store_of_a_newer_schema_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "runs.sqlite"
    Store(path).close()
    with sqlite3.connect(path) as db:
        db.execute(f"PRAGMA user_version = {SCHEMA + 1}")
    db.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match=r"(?s)newer tiebeam.*schema 2.*at most 1"):
        Store(path)
    assert path.read_bytes() == before


def test_another_programs_database_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "theirs.sqlite"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE runs(theirs)")
    db.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match="another program's"):
        Store(path)
    assert path.read_bytes() == before


def test_what_is_no_database_or_not_there_is_refused(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("no database at all, but long enough to look at" * 50)
    with pytest.raises(StoreError, match="cannot be opened"):
        Store(path)
    with pytest.raises(StoreError, match="cannot be opened"):
        Store(tmp_path / "missing" / "runs.sqlite")
    with pytest.raises(StoreError, match="no store at"):
        Store(tmp_path / "absent.sqlite", create=False)


# ---- hashes and export


def test_a_file_may_have_any_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in (":memory:", "file:runs?mode=memory"):
        with Store(Path(name)) as store:
            store.claim("demo", {"seed": 0})
        with Store(Path(name), create=False) as store:
            assert len(store.runs("demo")) == 1


def test_the_hash_depends_on_what_is_said_and_not_on_how():
    assert fingerprint("x", {"a": 1, "b": [1.0, 2.0]}) == fingerprint("x", {"b": (1.0, 2.0), "a": 1})
    assert fingerprint("x", {"a": 0.0}) == fingerprint("x", {"a": -0.0})
    others = [("y", {"a": 1}), ("x", {"a": 2}), ("x", {"a": 1.5}), ("x", {"b": 1}), ("x", {"a": "1"})]
    assert len({fingerprint(*other) for other in [("x", {"a": 1}), *others]}) == 6
    with pytest.raises(ValueError, match="JSON compliant"):
        canonical({"a": math.nan})


def test_csv_holds_every_result_and_every_point(store):
    import csv

    run = store.claim("x", {"seed": 3, "name": 'a "b", c'}, commit="abc")
    store.add_points(run, [("loss", 1, 2.5), ("loss", 2, math.nan)])
    store.finish(run, {"last": 0.1})
    rows = list(csv.DictReader(to_csv(store.runs("x")).splitlines()))
    assert tuple(rows[0]) == COLUMNS
    assert [(r["kind"], r["name"], r["step"], float(r["value"])) for r in rows[:2]] == [
        ("result", "last", "", 0.1),
        ("point", "loss", "1", 2.5),
    ]
    assert math.isnan(float(rows[2]["value"]))
    assert {r["seed"] for r in rows} == {"3"}
    assert 'a \\"b\\", c' in rows[0]["config"]


def test_what_was_asked_for_last_is_known(store):
    assert store.last_sweep("x") is None
    store.begin("x", "smoke", "first", [{"seed": 0}])
    store.begin("x", "laptop", "second", [{"seed": 0}, {"seed": 1}])
    found = store.last_sweep("x")
    assert (found.profile, found.command) == ("laptop", "second")
    assert found.hashes == (fingerprint("x", {"seed": 0}), fingerprint("x", {"seed": 1}))
    assert found.started <= time.time()


def test_a_file_that_may_grow_no_more_is_said_with_what_to_do(tmp_path):
    """A limit of a file's size is no full disk to SQLite, but a fault of it; the hint is the same."""
    path, before = tmp_path / "runs.sqlite", resource.getrlimit(resource.RLIMIT_FSIZE)
    with Store(path) as store:
        run = store.claim("x", {"seed": 0})
        resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, before[1]))
        try:
            with pytest.raises(StoreError, match=r"(?s)cannot be written.*Hint: make room"):
                store.add_points(run, [("loss", step, 1.0) for step in range(20_000)])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        store.finish(run, {"last": 1.0})
        assert [r.status for r in store.runs("x")] == ["finished"]
