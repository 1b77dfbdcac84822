"""A sweep: the runs that are not done yet, shared out among processes, each kept as it goes.

Every process claims a run before it works on it and finishes it in one step, so any number of them, and of sweeps, may
share a store. What stops a sweep (a full disk, Ctrl-C, SIGKILL) leaves every finished run where it is.
"""

import os
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tiebeam.errors import BackendError, RangeError, StoreError, TiebeamError
from tiebeam.experiments.catalog import experiment as called
from tiebeam.experiments.config import fingerprint
from tiebeam.experiments.data import Tokens
from tiebeam.experiments.origin import commit, packages
from tiebeam.experiments.ranks import ALONE, Ranks, lost
from tiebeam.experiments.spec import DivergedError, Experiment, Work
from tiebeam.experiments.store import Recorder, Store

Engine = Literal["local", "ray"]
Outcome = Literal["finished", "diverged", "failed", "skipped"]


@dataclass(frozen=True, slots=True)
class Job:
    """One run for one process: plain data, so that it can be sent anywhere.

    Attributes:
        experiment: Its name.
        config: All that the outcome depends on.
        store: The file.
        tokens: Folder of the text, or None.
        device: "cpu" or "cuda".
        threads: Of the process, on a CPU; None leaves them.
        reclaim: Take the run from a process on another machine.
    """

    experiment: str
    config: Mapping[str, Any]
    store: Path
    tokens: Path | None
    device: str
    threads: int | None
    reclaim: bool = False


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a sweep is.

    Attributes:
        done: Runs that ended, those of earlier sweeps included.
        total: Runs in all.
        going: Of each run that goes on: its config, last step, steps in all, last value of its main series.
    """

    done: int
    total: int
    going: tuple[tuple[Mapping[str, Any], int, int | None, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """How to run a sweep.

    Attributes:
        store: The file.
        tokens: The text, for experiments that need some.
        engine: "local" processes, or a "ray" cluster that sees the same files.
        workers: Processes; None is one for each core, or one where there is a GPU or no joblib.
        device: "cpu", "cuda", or None for a GPU where there is one.
        reclaim: Take over runs that processes on other machines hold.
        ranks: Processes that do every run together; each of them calls this.
    """

    store: Path
    tokens: Tokens | None = None
    engine: Engine = "local"
    workers: int | None = None
    device: str = "cpu"
    reclaim: bool = False
    ranks: Ranks = ALONE


def run_sweep(
    experiment: Experiment,
    configs: Sequence[Mapping[str, Any]],
    plan: Plan,
    on_progress: Callable[[Progress], object] | None = None,
) -> dict[str, int]:
    """Do all runs that are not done.

    Args:
        experiment: What they are of; one of the catalogue, for other processes know it by its name.
        configs: Of all runs.
        plan: How.
        on_progress: Told about twice a second, from a thread of its own.

    Returns:
        How many ended how; "skipped" were done before, or are under way in another sweep.

    Raises:
        StoreError: The store cannot be written; what is in it stays.
        BackendError: joblib or ray is missing, or was asked for under torchrun; or a process was ended from outside.
        KeyboardInterrupt: Broken off; runs that were under way are given back.
    """
    if plan.ranks.count > 1 and (plan.engine != "local" or (plan.workers or 1) > 1):
        raise BackendError("under torchrun all processes do one run after another", got="--workers or --engine ray")
    with _store(plan.store, plan.ranks) as store:
        done = plan.ranks.agree(store.done(experiment.name, configs))
    left = [config for config, there in zip(configs, done, strict=True) if not there]
    asked = 1 if plan.workers is None and plan.engine == "local" and not _has_joblib() else plan.workers
    workers, threads = shared_out(asked, len(left), plan.device)
    if plan.ranks.count > 1:
        workers, threads = 1, None  # torchrun has given each of them its threads
    folder = None if plan.tokens is None else plan.tokens.folder
    jobs = [Job(experiment.name, c, plan.store, folder, plan.device, threads, plan.reclaim) for c in left]
    counts: dict[str, int] = {"finished": 0, "diverged": 0, "failed": 0, "skipped": len(configs) - len(left)}
    with _watched(experiment, configs, plan.store, on_progress):
        for outcome in _outcomes(jobs, plan.engine, workers, plan.ranks):
            counts[outcome] += 1
    return counts


def shared_out(workers: int | None, runs: int, device: str, cores: int | None = None) -> tuple[int, int | None]:
    """Processes, and threads of each, so that together they have no more threads than there are cores.

    Args:
        workers: As asked for; None is one for each core, or one where there is a GPU.
        runs: How many runs there are: no more processes than these.
        device: "cpu" or "cuda".
        cores: That may be used; None asks the system.

    Raises:
        RangeError: Fewer than one worker.

    Example:
        >>> shared_out(None, 100, "cpu", cores=8), shared_out(3, 100, "cpu", cores=8)
        ((8, 1), (3, 2))
    """
    if workers is not None and workers < 1:
        raise RangeError("workers of a sweep", got=str(workers), expected="at least 1")
    cores = len(os.sched_getaffinity(0)) if cores is None and hasattr(os, "sched_getaffinity") else cores
    cores = cores or os.cpu_count() or 1
    if device != "cpu":
        return min(workers or 1, max(runs, 1)), None
    count = max(min(cores if workers is None else workers, runs), 1)
    return count, max(cores // count, 1)


def execute(job: Job, ranks: Ranks = ALONE) -> Outcome:
    """Claim one run, do it, keep it. An error of the run is kept too; one of the store is raised.

    Raises:
        StoreError: The store cannot be written.
        KeyboardInterrupt: Broken off; the run is given back.
        Exception: What the run raised, where other ranks wait for this one.
    """
    what = called(job.experiment)
    with _store(job.store, ranks) as store, _threads(job.threads, what.packages):
        run = store.claim(job.experiment, job.config, versions=packages(what), commit=commit(), reclaim=job.reclaim)
        if not ranks.agree(run is not None) or run is None:
            return "skipped"
        recorder = Recorder(store, run)
        try:
            tokens = None if job.tokens is None else Tokens.open(job.tokens)
            results = what.work(Work(job.config, recorder, tokens, job.device, ranks))
            recorder.flush()
            store.finish(run, results)
        except DivergedError as end:
            recorder.flush()
            store.finish(run, end.results, "diverged")
            return "diverged"
        except StoreError:
            raise
        except Exception as error:  # whatever a run raises ends that run, not the sweep
            if ranks.count > 1 and lost(error):  # the run is not to blame
                store.interrupt([run])
                raise
            store.finish(run, {}, "failed", _said(error))
            if ranks.count > 1:
                raise
            return "failed"
        except BaseException:
            store.interrupt([run])
            raise
    return "finished"


def _store(path: Path, ranks: Ranks) -> Store:
    """The store; for ranks that do not record, one in memory."""
    return Store(path if ranks.first else None)


def _said(error: Exception) -> str:
    return str(error) if isinstance(error, TiebeamError) else "".join(traceback.format_exception(error))


def _outcomes(jobs: Sequence[Job], engine: Engine, workers: int, ranks: Ranks) -> Iterator[Outcome]:
    if engine == "ray":
        from tiebeam.experiments.on_ray import outcomes

        yield from outcomes(execute, jobs, workers)
    elif workers == 1:
        yield from (execute(job, ranks) for job in jobs)
    else:
        yield from _in_processes(jobs, workers)


def _has_joblib() -> bool:
    try:
        import joblib  # noqa: F401
    except ImportError:
        return False
    return True


def _in_processes(jobs: Sequence[Job], workers: int) -> Iterator[Outcome]:
    """Run on local processes; where one fails, or the user breaks off, the others end before this returns."""
    try:
        from joblib import Parallel, delayed, parallel_config
        from joblib.externals.loky import get_reusable_executor
        from joblib.externals.loky.process_executor import TerminatedWorkerError
    except ImportError as error:
        raise BackendError(
            "several processes are run by 'joblib', which is missing",
            hint="pip install 'tiebeam[experiments]', or --workers 1",
        ) from error
    threads = jobs[0].threads
    with parallel_config(backend="loky", inner_max_num_threads=threads):
        # batch_size: runs take seconds to hours, so they are handed out one by one
        parallel = Parallel(n_jobs=workers, return_as="generator_unordered", batch_size=1, pre_dispatch=workers)
        try:
            yield from parallel(delayed(execute)(job) for job in jobs)
        except BaseException as error:
            get_reusable_executor().shutdown(wait=True, kill_workers=True)
            if isinstance(error, TerminatedWorkerError):
                raise BackendError(
                    "a process was ended from outside in the middle of its run",
                    got=str(error).splitlines()[0],
                    hint="if memory ran out, fewer --workers need less; the same command goes on from what is finished",
                ) from error
            raise


@contextmanager
def _threads(count: int | None, needed: Sequence[str]) -> Iterator[None]:
    """Compute on so many threads; an experiment that does without torch has none to set."""
    if count is None or "torch" not in needed:
        yield
        return
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _watched(
    experiment: Experiment,
    configs: Sequence[Mapping[str, Any]],
    path: Path,
    on_progress: Callable[[Progress], object] | None,
) -> Iterator[None]:
    """Read the store twice a second while the sweep goes on, and tell."""
    if on_progress is None:
        yield
        return
    by_hash = {fingerprint(experiment.name, config): config for config in configs}
    stop = threading.Event()

    def look(store: Store) -> None:
        going = store.last_points(experiment.name, experiment.main)
        shown = [(by_hash[key], step, steps, value) for key, (step, value, steps) in going.items() if key in by_hash]
        on_progress(Progress(sum(store.done(experiment.name, configs)), len(configs), tuple(shown)))

    def watch() -> None:
        with suppress(StoreError), Store(path) as store:  # the sweep itself meets the same error, and raises it
            while not stop.wait(0.5):
                look(store)
            look(store)

    thread = threading.Thread(target=watch, name="tiebeam sweep", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
