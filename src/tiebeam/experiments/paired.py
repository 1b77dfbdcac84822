"""How far trainings of the same seeds lie apart."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tiebeam.experiments.tables import Spread

if TYPE_CHECKING:
    from tiebeam.experiments.records import Run

NOTE = "Beside {}: the mean of differences between runs of one seed, which are of the same batches."


def beside(runs: "Sequence[Run]", others: "Sequence[Run]") -> Spread | None:
    """Return by how much the "last" loss of `runs` lies above that of `others`; None where they share no seed.

    Runs of one seed read the same batches. What those do to both is not in the difference, which is therefore known
    better than either loss.
    """
    theirs = {r.config["seed"]: r.results["last"] for r in others}
    found = [r.results["last"] - theirs[r.config["seed"]] for r in runs if r.config["seed"] in theirs]
    return Spread.of(found) if found else None
