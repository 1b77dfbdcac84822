"""Which of the learning rates that were tried is the best."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tiebeam.experiments.tables import Spread, grouped

if TYPE_CHECKING:
    from tiebeam.experiments.records import Run


def best_rate(runs: "Sequence[Run]") -> "tuple[float, Spread, list[Run]]":
    """Return the rate of the least mean "last" loss, that loss, and its runs.

    A rate at which a seed diverged comes behind every other.
    """
    by_rate = grouped(runs, lambda r: float(r.config["rate"]))
    losses = {rate: Spread.of(r.results["last"] for r in same) for rate, same in by_rate.items()}
    best = min(losses, key=lambda rate: (math.isnan(losses[rate].mean), losses[rate].mean))
    return best, losses[best], by_rate[best]
