"""What an experiment is: a claim, settings by profile, runs, and the tables that come of them."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from tiebeam.errors import RangeError
from tiebeam.experiments.config import Config
from tiebeam.experiments.ranks import ALONE, Ranks
from tiebeam.experiments.tables import Figure, Table

if TYPE_CHECKING:
    from tiebeam.experiments.data import Tokens
    from tiebeam.experiments.records import Run
    from tiebeam.experiments.store import Recorder

Settings = Mapping[str, Any]
PROFILES = ("paper", "laptop", "smoke")
Needs = Literal["nothing", "text"]

_LEAST: Mapping[str, float] = {"layers": 0, "seeds": 0, "vocab": 2, "weights": -math.inf}
"""Of settings; every other whole number is at least 1, and every other number more than 0."""

_MOST = 2**63 - 1
"""Larger whole numbers have no place in SQLite, nor as seeds of torch."""

_KINDS = {int: "a whole number", float: "a number", str: "a word"}


@dataclass(frozen=True, slots=True)
class Work:
    """What a run is given.

    Attributes:
        config: All that its outcome depends on.
        recorder: Takes down its series.
        tokens: The text, for experiments that need some.
        device: "cpu" or "cuda".
        ranks: Processes that do the same run at once.
    """

    config: Config
    recorder: "Recorder"
    tokens: "Tokens | None"
    device: str
    ranks: Ranks = ALONE


class DivergedError(Exception):
    """A loss is no longer a number; the run ends here and is kept.

    Args:
        results: What was known by then.
    """

    def __init__(self, results: Mapping[str, float]) -> None:
        super().__init__("the loss is not finite")
        self.results = dict(results)


@dataclass(frozen=True)
class Experiment:
    """One experiment.

    Attributes:
        name: On the command line.
        claim: What it tests, in a sentence.
        source: Where the claim comes from.
        profiles: Settings by profile: "paper" as the source did it, "laptop" on two cores in minutes, "smoke" in
            seconds, too short to show anything but that it runs.
        runs: Settings to the configs of all runs.
        work: Does one run: its figures by name.
        tables: Runs that ended, and the settings, to tables.
        figures: Likewise, to pictures.
        needs: "text" where it trains on or reads tokens.
        main: Series that progress shows.
        packages: What has to be installed.
        optional: Settings that are lists and may be empty.
    """

    name: str
    claim: str
    source: str
    profiles: Mapping[str, Settings]
    runs: Callable[[Settings], list[dict[str, Any]]]
    work: Callable[[Work], Mapping[str, float]]
    tables: Callable[[Sequence["Run"]], list[Table]]
    figures: Callable[[Sequence["Run"]], list[Figure]] = lambda runs: []
    needs: Needs = "nothing"
    main: str = "loss"
    packages: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()

    def settings(self, profile: str, changes: Settings) -> dict[str, Any]:
        """Settings of a profile, with some changed.

        Raises:
            RangeError: There is no such profile or setting, or a value is of another kind or makes no sense.
        """
        if profile not in self.profiles:
            raise RangeError(f"'{self.name}' has no profile '{profile}'", expected=", ".join(self.profiles))
        found = dict(self.profiles[profile])
        for name, value in changes.items():
            if name not in found:
                raise RangeError(
                    f"'{self.name}' has no setting '{name}'", expected=f"one of {', '.join(sorted(found))}"
                )
            found[name] = self._like(name, value)
        return found

    def _like(self, name: str, new: Any) -> Any:
        """`new`, as long as it is what some profile has there; one value stands for a list of one."""
        held = [profile[name] for profile in self.profiles.values()]
        if new is None and None in held:
            return None
        old, what = next(value for value in held if value is not None), f"setting '{name}' of '{self.name}'"
        if not isinstance(old, list):
            return _checked(name, _of_kind(old, new, what), what)
        given = new if isinstance(new, list | tuple) else [new]
        if not given and name not in self.optional:
            raise RangeError(f"{what} is empty", expected="at least one value")
        return [_checked(name, _of_kind(old[0], each, what), what) for each in given]


def _of_kind(old: Any, new: Any, what: str) -> Any:
    if isinstance(old, float) and type(new) is int and abs(new) <= _MOST:
        return float(new)
    if type(old) is not type(new):
        raise RangeError(what, got=repr(new), expected=_KINDS[type(old)])
    return new


def _checked(name: str, value: Any, what: str) -> Any:
    """`value`, as long as it lies where such a setting makes sense."""
    if isinstance(value, int):
        least = _LEAST.get(name, 1)
        if not least <= value <= _MOST:
            raise RangeError(what, got=repr(value), expected=f"{least} to 2**63 - 1")
    elif isinstance(value, float) and not (math.isfinite(value) and value > _LEAST.get(name, 0.0)):
        raise RangeError(what, got=repr(value), expected="a finite number" + ("" if name in _LEAST else " above 0"))
    return value
