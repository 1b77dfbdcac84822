"""What a store gives back: runs and sweeps, plain frozen data."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tiebeam.experiments.config import Config

Status = Literal["running", "finished", "diverged", "failed", "interrupted"]
DONE: tuple[Status, ...] = ("finished", "diverged")


@dataclass(frozen=True, slots=True)
class Run:
    """What the store knows of one run.

    Attributes:
        id: Its number in the store.
        experiment: Its experiment's name.
        hash: Of experiment and config.
        config: All that its outcome depends on, the seed included.
        status: "finished" and "diverged" are final.
        started, ended: Unit: seconds since 1970.
        steps: How many points of its main series it will have; None until it said so.
        versions: Of the packages that made it.
        commit: Of tiebeam's sources, "" where they lie in no repository.
        error: What went wrong, where it failed.
        results: Figures by name.
        series: Points (step, value) by name.
    """

    id: int
    experiment: str
    hash: str
    config: Config
    status: Status
    started: float
    ended: float | None
    steps: int | None
    versions: Mapping[str, str]
    commit: str
    error: str
    results: Mapping[str, float]
    series: Mapping[str, tuple[tuple[int, float], ...]]

    def to_dict(self) -> dict[str, Any]:
        """Plain data; NaN and infinities stay floats."""
        plain = {name: getattr(self, name) for name in self.__slots__}
        plain["series"] = {name: [list(point) for point in points] for name, points in self.series.items()}
        return plain


@dataclass(frozen=True, slots=True)
class Sweep:
    """What was asked for at once.

    Attributes:
        experiment, profile: Of what.
        command: That asked for it.
        started: Unit: seconds since 1970.
        hashes: Of all its runs, in their order, done or not.
    """

    experiment: str
    profile: str
    command: str
    started: float
    hashes: tuple[str, ...]
