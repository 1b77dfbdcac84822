"""The file that keeps every run: SQLite in WAL mode, written while runs go on, shared by any number of processes.

A run is known by the hash of its experiment and config. Who works on it has claimed it; of processes that want the
same run one gets it. A finished run is never claimed again. What a killed process had claimed is free to others as
soon as that process is gone; a run that was not finished starts anew, without what it had recorded.

NaN has no place in SQLite: a point or result that is not a number is kept as NULL and read back as NaN.
"""

import json
import math
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from tiebeam.errors import StoreError
from tiebeam.experiments.config import Config, canonical, fingerprint
from tiebeam.experiments.owner import alive, this_process
from tiebeam.experiments.records import DONE, Run, Status, Sweep

SCHEMA = 1
"""Of the tables below; kept as `user_version`. A store of a higher number is refused."""

APPLICATION = 0x74626D31
"""`application_id`: "tbm1", so that another program's database is not taken for a store."""

PATIENCE = 60.0
"""How long a process waits for its turn to write. Unit: seconds."""

_ROOM = "make room, then run the same command: finished runs are kept"
_PLACE = "its folder must be writable, for reading too: copy the file elsewhere, or name another with --store"
# SQLITE_IOERR: what a limit of a file's size, or a full disk under the log, comes to
_HINTS = dict.fromkeys((sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR), _ROOM)
_HINTS |= dict.fromkeys((sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY), _PLACE)

_TABLES = """
CREATE TABLE runs(
  id INTEGER PRIMARY KEY,
  experiment TEXT NOT NULL,
  hash TEXT NOT NULL,
  seed INTEGER,
  config TEXT NOT NULL,
  status TEXT NOT NULL CHECK(status IN ('running', 'finished', 'diverged', 'failed', 'interrupted')),
  owner TEXT NOT NULL,
  started REAL NOT NULL,
  ended REAL,
  steps INTEGER,
  versions TEXT NOT NULL,
  source_commit TEXT,
  error TEXT NOT NULL DEFAULT '',
  UNIQUE(experiment, hash)
);
CREATE TABLE points(
  run INTEGER NOT NULL REFERENCES runs(id) ON DELETE CASCADE,
  name TEXT NOT NULL,
  step INTEGER NOT NULL,
  value REAL,
  PRIMARY KEY(run, name, step)
) WITHOUT ROWID;
CREATE TABLE results(
  run INTEGER NOT NULL REFERENCES runs(id) ON DELETE CASCADE,
  name TEXT NOT NULL,
  value REAL,
  PRIMARY KEY(run, name)
) WITHOUT ROWID;
CREATE TABLE sweeps(
  id INTEGER PRIMARY KEY,
  experiment TEXT NOT NULL,
  profile TEXT NOT NULL,
  command TEXT NOT NULL,
  started REAL NOT NULL,
  hashes TEXT NOT NULL
);
"""


class Store:
    """One open store. Not to be shared by threads: each opens its own.

    Args:
        path: The file; it is made where there is none. None keeps everything in memory, for as long as this is open.
        create: Whether it may be made.

    Raises:
        StoreError: It is no store, is of a newer schema, or cannot be opened.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder, Store(Path(folder) / "runs.sqlite") as store:
        ...     run = store.claim("demo", {"seed": 0})
        ...     store.add_points(run, [("loss", 0, 2.5)])
        ...     store.finish(run, {"last": 2.5})
        ...     again = store.claim("demo", {"seed": 0})
        ...     [(r.status, dict(r.results), again) for r in store.runs("demo")]
        [('finished', {'last': 2.5}, None)]
    """

    def __init__(self, path: Path | None, *, create: bool = True) -> None:
        self.path = path
        if path is not None and not create and not path.is_file():
            raise StoreError(
                f"no store at '{path}'", hint="tiebeam experiment run NAME makes one; --store names another"
            )
        with self._told("opened"):
            # absolute: no name of a file means anything else to SQLite then
            self._db = sqlite3.connect(path.absolute() if path else ":memory:", timeout=PATIENCE, isolation_level=None)
        try:
            with self._told("opened"):
                self._open_in_turn()
        except BaseException:
            self._db.close()
            raise

    def _open_in_turn(self) -> None:
        """Open, and again where others make the file: of two changes to WAL SQLite refuses one without waiting."""
        end = time.monotonic() + PATIENCE
        while True:
            try:
                return self._open()
            except sqlite3.OperationalError as error:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > end:
                    raise
            time.sleep(0.01)

    def _open(self) -> None:
        self._check()  # before anything is written to what may be someone else's
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = NORMAL")
        self._db.execute("PRAGMA foreign_keys = ON")
        with self._change():
            if self._number("user_version") == 0:
                for statement in filter(str.strip, _TABLES.split(";")):
                    self._db.execute(statement)
                self._db.execute(f"PRAGMA application_id = {APPLICATION}")
                self._db.execute(f"PRAGMA user_version = {SCHEMA}")

    def _check(self) -> None:
        self._db.execute("BEGIN")  # one view: another process may be making the tables just now
        found, application = self._number("user_version"), self._number("application_id")
        empty = self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0
        self._db.execute("COMMIT")
        if found > SCHEMA and application == APPLICATION:
            raise StoreError(
                f"the store '{self.path}' was written by a newer tiebeam",
                got=f"schema {found}",
                expected=f"at most {SCHEMA}",
                hint="upgrade tiebeam, or name another file with --store",
            )
        if application != APPLICATION and not (empty and application == found == 0):
            raise StoreError(f"'{self.path}' is another program's database", hint="name another file with --store")

    def _number(self, pragma: str) -> int:
        return int(self._db.execute(f"PRAGMA {pragma}").fetchone()[0])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; what was written stays."""
        self._db.close()

    @contextmanager
    def _told(self, doing: str) -> Iterator[None]:
        """Turn SQLite's errors into one that says what to do."""
        try:
            yield
        except sqlite3.Error as error:
            hint = _HINTS.get((getattr(error, "sqlite_errorcode", None) or 0) & 0xFF, "")
            raise StoreError(f"the store '{self.path}' cannot be {doing}", got=str(error), hint=hint) from error

    @contextmanager
    def _change(self) -> Iterator[None]:
        """Everything inside, or nothing; one process at a time."""
        with self._told("written"):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:  # where the disk is full SQLite may have rolled back itself
                    self._db.execute("ROLLBACK")
                raise

    def begin(self, experiment: str, profile: str, command: str, configs: Sequence[Config]) -> None:
        """Keep what is asked for, so that its runs can be shown together later."""
        hashes = json.dumps([fingerprint(experiment, config) for config in configs])
        with self._change():
            self._db.execute(
                "INSERT INTO sweeps(experiment, profile, command, started, hashes) VALUES (?, ?, ?, ?, ?)",
                (experiment, profile, command, time.time(), hashes),
            )

    def last_sweep(self, experiment: str) -> Sweep | None:
        """What was last asked for of an experiment."""
        with self._told("read"):
            row = self._db.execute(
                "SELECT experiment, profile, command, started, hashes FROM sweeps WHERE experiment = ?"
                " ORDER BY id DESC LIMIT 1",
                (experiment,),
            ).fetchone()
        if row is None:
            return None
        name, profile, command, started, hashes = row
        return Sweep(name, profile, command, started, tuple(json.loads(hashes)))

    def claim(
        self,
        experiment: str,
        config: Config,
        *,
        versions: Mapping[str, str] | None = None,
        commit: str = "",
        owner: str | None = None,
        reclaim: bool = False,
    ) -> int | None:
        """Take one run for this process.

        Args:
            experiment: Name of the experiment.
            config: All that the outcome depends on.
            versions, commit: What makes it.
            owner: Who takes it; by default this process.
            reclaim: Take it from a process on another machine too, which cannot be seen from here.

        Returns:
            The run's number; None where it is done, or a living process is at it.
        """
        key, mine = fingerprint(experiment, config), this_process() if owner is None else owner
        with self._change():
            row = self._db.execute(
                "SELECT id, status, owner FROM runs WHERE experiment = ? AND hash = ?", (experiment, key)
            ).fetchone()
            if row is not None:
                run, status, held = row
                if status in DONE or (status == "running" and held != mine and alive(held, elsewhere=not reclaim)):
                    return None
                self._db.execute("DELETE FROM runs WHERE id = ?", (run,))  # and, by cascade, what it had recorded
            made = self._db.execute(
                "INSERT INTO runs(experiment, hash, seed, config, status, owner, started, versions, source_commit)"
                " VALUES (?, ?, ?, ?, 'running', ?, ?, ?, ?)",
                (
                    experiment,
                    key,
                    config.get("seed"),
                    canonical(config),
                    mine,
                    time.time(),
                    json.dumps(dict(versions or {}), sort_keys=True),
                    commit,
                ),
            )
        return made.lastrowid

    def announce(self, run: int, steps: int) -> None:
        """Say how many steps a run will have, for those who watch."""
        with self._change():
            self._db.execute("UPDATE runs SET steps = ? WHERE id = ?", (steps, run))

    def add_points(self, run: int, points: Sequence[tuple[str, int, float]]) -> None:
        """Record points (name, step, value) of a run that goes on."""
        with self._change():
            self._db.executemany(
                "INSERT OR REPLACE INTO points(run, name, step, value) VALUES (?, ?, ?, ?)",
                [(run, name, step, _kept(value)) for name, step, value in points],
            )

    def finish(self, run: int, results: Mapping[str, float], status: Status = "finished", error: str = "") -> None:
        """End a run: its results and its status appear together or not at all."""
        with self._change():
            self._db.executemany(
                "INSERT OR REPLACE INTO results(run, name, value) VALUES (?, ?, ?)",
                [(run, name, _kept(value)) for name, value in results.items()],
            )
            self._db.execute(
                "UPDATE runs SET status = ?, error = ?, ended = ? WHERE id = ?", (status, error, time.time(), run)
            )

    def give_back(self, experiment: str) -> int:
        """Mark runs whose processes are gone as interrupted; return how many there were."""
        with self._told("read"):
            rows = self._db.execute(
                "SELECT id, owner FROM runs WHERE experiment = ? AND status = 'running'", (experiment,)
            ).fetchall()
        gone = [run for run, owner in rows if not alive(owner)]
        if gone:
            self.interrupt(gone)
        return len(gone)

    def interrupt(self, runs: Sequence[int]) -> None:
        """Give back runs that were broken off; those that ended meanwhile stay as they are."""
        with self._change():
            self._db.executemany(
                "UPDATE runs SET status = 'interrupted', ended = ? WHERE id = ? AND status = 'running'",
                [(time.time(), run) for run in runs],
            )

    def done(self, experiment: str, configs: Sequence[Config]) -> list[bool]:
        """Which of these runs are finished or diverged."""
        with self._told("read"):
            rows = self._db.execute(
                "SELECT hash FROM runs WHERE experiment = ? AND status IN ('finished', 'diverged')", (experiment,)
            ).fetchall()
        there = {key for (key,) in rows}
        return [fingerprint(experiment, config) in there for config in configs]

    def last_points(self, experiment: str, name: str) -> dict[str, tuple[int, float, int | None]]:
        """Of every run that goes on: by its hash the last (step, value) of a series, and its number of steps."""
        with self._told("read"):
            rows = self._db.execute(
                "SELECT hash, max(step), value, steps FROM runs JOIN points ON run = id"
                " WHERE experiment = ? AND status = 'running' AND name = ? GROUP BY id",
                (experiment, name),
            ).fetchall()
        return {key: (step, _read(value), steps) for key, step, value, steps in rows}

    def runs(self, experiment: str | None = None) -> list[Run]:
        """Every run, of one experiment or of all, in the order in which they were begun."""
        with self._told("read"):
            self._db.execute("BEGIN")  # one view of all three tables
            try:
                where, args = ("", ()) if experiment is None else (" WHERE experiment = ?", (experiment,))
                rows = self._db.execute(
                    "SELECT id, experiment, hash, config, status, started, ended, steps, versions, source_commit, error"
                    f" FROM runs{where} ORDER BY id",
                    args,
                ).fetchall()
                return [self._run(row) for row in rows]
            finally:
                self._db.execute("COMMIT")

    def _run(self, row: Sequence[Any]) -> Run:
        run, experiment, key, config, status, started, ended, steps, versions, commit, error = row
        results = self._db.execute("SELECT name, value FROM results WHERE run = ? ORDER BY name", (run,))
        points = self._db.execute("SELECT name, step, value FROM points WHERE run = ? ORDER BY name, step", (run,))
        series: dict[str, list[tuple[int, float]]] = {}
        for name, step, value in points:
            series.setdefault(name, []).append((step, _read(value)))
        return Run(
            id=run,
            experiment=experiment,
            hash=key,
            config=json.loads(config),
            status=status,
            started=started,
            ended=ended,
            steps=steps,
            versions=json.loads(versions),
            commit=commit or "",
            error=error,
            results={name: _read(value) for name, value in results},
            series={name: tuple(points) for name, points in series.items()},
        )


class Recorder:
    """Takes down one run, and writes at most once a second, so that recording costs a run nothing.

    Args:
        store: Where to.
        run: The claimed run.
        clock: Seconds that never run backwards.
    """

    def __init__(self, store: Store, run: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.run = run
        self._store, self._clock, self._written = store, clock, -math.inf
        self._waiting: list[tuple[str, int, float]] = []

    def steps(self, count: int) -> None:
        """Say how many steps there will be."""
        self._store.announce(self.run, count)

    def point(self, name: str, step: int, value: float) -> None:
        """Take down one point of a series."""
        self._waiting.append((name, step, float(value)))
        if self._clock() - self._written >= 1.0:
            self.flush()

    def flush(self) -> None:
        """Write what waits."""
        self._store.add_points(self.run, self._waiting)
        self._waiting, self._written = [], self._clock()


def _kept(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


def _read(value: float | None) -> float:
    return math.nan if value is None else value
