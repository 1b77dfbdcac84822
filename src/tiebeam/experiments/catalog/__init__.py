"""The experiments, one small file each; importing this imports no framework."""

from tiebeam.errors import RangeError
from tiebeam.experiments.catalog import init_stats
from tiebeam.experiments.spec import Experiment

EXPERIMENTS: dict[str, Experiment] = {e.name: e for e in (init_stats.EXPERIMENT,)}


def experiment(name: str) -> Experiment:
    """Return the experiment called `name`.

    Raises:
        RangeError: There is none.

    Example:
        >>> experiment("init-stats").needs
        'text'
    """
    if name not in EXPERIMENTS:
        raise RangeError(f"no experiment is called '{name}'", expected=f"one of {', '.join(EXPERIMENTS)}")
    return EXPERIMENTS[name]
