"""The experiments, one small file each; importing this imports no framework."""

from tiebeam.errors import RangeError
from tiebeam.experiments.catalog import (
    alignment,
    dropped_path,
    factorised,
    init_stats,
    late_untie,
    lr_transfer,
    rank,
    repeat_bias,
    role_mixing,
    savings,
    schemes,
    std_grid,
)
from tiebeam.experiments.spec import Experiment

_TRAINED = (init_stats, schemes, lr_transfer, role_mixing, late_untie, factorised)
_MODULES = (*_TRAINED, savings, dropped_path, alignment, repeat_bias, std_grid, rank)
EXPERIMENTS: dict[str, Experiment] = {module.EXPERIMENT.name: module.EXPERIMENT for module in _MODULES}


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
