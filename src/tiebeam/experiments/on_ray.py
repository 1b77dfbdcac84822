"""The same sweep on a Ray cluster whose machines see the same files."""

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

from tiebeam.errors import BackendError


class Needing(Protocol):
    """What of a job decides which machine can take it."""

    @property
    def device(self) -> str: ...
    @property
    def threads(self) -> int | None: ...


Job = TypeVar("Job", bound=Needing)
Outcome = TypeVar("Outcome")


def outcomes(execute: Callable[[Job], Outcome], jobs: Sequence[Job], workers: int) -> Iterator[Outcome]:
    """Run every job on the cluster that `RAY_ADDRESS` names, else on one of this machine, and yield how each ended.

    Args:
        execute: Does one job, in a process of the cluster.
        jobs: All that is to be done; each takes as many of Ray's cores as it has threads, and a GPU if it runs on one.
        workers: How many are handed out at once.

    Raises:
        BackendError: Ray is missing, or its cluster does not let us in.
    """
    try:
        import ray
    except ImportError as error:
        raise BackendError("--engine ray needs 'ray', which is missing", hint="pip install 'tiebeam[ray]'") from error
    if not jobs:
        return
    own = not ray.is_initialized()
    if own:
        try:
            ray.init(log_to_driver=False, include_dashboard=False, logging_level="error")
        except ConnectionError as error:
            raise BackendError(
                "the Ray cluster cannot be reached",
                got=f"RAY_ADDRESS={os.environ.get('RAY_ADDRESS', '')}; {str(error).splitlines()[0]}",
                expected="the address of a cluster that runs, and its token where it asks for one",
                hint="ray status; or unset RAY_ADDRESS to start a cluster on this machine",
            ) from error
    job = jobs[0]
    needs = {"num_cpus": 1, "num_gpus": 1} if job.device == "cuda" else {"num_cpus": job.threads or 1}
    remote = ray.remote(**needs, max_retries=0)(execute)
    waiting = list(reversed(jobs))
    going: list[Any] = []
    try:
        while waiting or going:
            while waiting and len(going) < workers:
                going.append(remote.remote(waiting.pop()))
            ready, going = ray.wait(going)
            yield from ray.get(ready)
    except BaseException:
        _stop(ray, going)
        raise
    finally:
        if own:
            ray.shutdown()


def _stop(ray: Any, going: Sequence[Any]) -> None:
    for task in going:
        ray.cancel(task, force=False)  # as Ctrl-C: the run is given back
    if going:
        ray.wait(list(going), num_returns=len(going), timeout=10.0)
