"""What an experiment is: a claim, settings by profile, runs, and the tables that come of them."""

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

    def settings(self, profile: str, changes: Settings) -> dict[str, Any]:
        """Settings of a profile, with some changed.

        Raises:
            RangeError: There is no such profile or setting, or a value is of another kind.
        """
        if profile not in self.profiles:
            raise RangeError(f"'{self.name}' has no profile '{profile}'", expected=", ".join(self.profiles))
        found = dict(self.profiles[profile])
        for name, value in changes.items():
            if name not in found:
                raise RangeError(
                    f"'{self.name}' has no setting '{name}'", expected=f"one of {', '.join(sorted(found))}"
                )
            found[name] = _like(found[name], value, f"setting '{name}' of '{self.name}'")
        return found


_KINDS = {int: "an integer", float: "a number", str: "a text", bool: "true or false"}


def _like(old: Any, new: Any, what: str) -> Any:
    """`new`, as long as it is what `old` was; one value stands for a list of one."""
    if isinstance(old, list | tuple):
        given = list(new) if isinstance(new, list | tuple) else [new]
        if not given:
            raise RangeError(f"{what} is empty", expected="at least one value")
        return [_like(old[0], each, what) for each in given]
    if isinstance(old, float) and isinstance(new, int) and not isinstance(new, bool):
        return float(new)
    if old is not None and new is not None and type(old) is not type(new):
        raise RangeError(what, got=repr(new), expected=_KINDS.get(type(old), f"a {type(old).__name__}"))
    return new
