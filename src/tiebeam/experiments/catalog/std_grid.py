"""Is there a std that serves both roles? A coarse grid says no, a finer one finds it."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tiebeam.errors import RangeError
from tiebeam.experiments.spec import Experiment, Settings, Work
from tiebeam.experiments.tables import Spread, Table, grouped

if TYPE_CHECKING:
    from tiebeam.experiments.records import Run

SOURCE_HITS = {"coarse": 0, "fine": 19}
SOURCE_DOUBLING = (2.00, 3.80)
"""The from-scratch page: what doubling the std does to the stream's scale and to the logits'."""

_COMMON: dict[str, Any] = {
    "vocab": 64,
    "width": 24,
    "hidden": 36,
    "tolerance": 0.1,
    "std": [0.01, 1.0],
    "lookup_factor": [1.0, 16.0],
    "doubled": 0.1,
}
PROFILES: dict[str, dict[str, Any]] = {
    "paper": {**_COMMON, "coarse": 4, "fine": 33, "seeds": list(range(5))},
    "laptop": {**_COMMON, "coarse": 4, "fine": 33, "seeds": list(range(5))},
    "smoke": {**_COMMON, "coarse": 3, "fine": 9, "seeds": [0]},
}


def runs(settings: Settings) -> list[dict[str, Any]]:
    """One for each grid and seed.

    Raises:
        RangeError: A range has no two ends.
    """
    for name in ("std", "lookup_factor"):
        if len(settings[name]) != 2:
            raise RangeError(f"setting '{name}' of 'std-grid'", got=f"{settings[name]}", expected="its least and most")
    fixed = {name: value for name, value in settings.items() if name not in ("seeds", "coarse", "fine")}
    return [
        {"grid": grid, "points": settings[grid], "seed": seed, **fixed}
        for seed in settings["seeds"]
        for grid in ("coarse", "fine")
    ]


def work(given: Work) -> Mapping[str, float]:
    """Count the settings at which stream and logits both have about unit scale; double one std."""
    import numpy as np

    from tiebeam.zoo.numpy.tied import TiedModel

    config = given.config
    every = np.arange(config["vocab"])

    def scales(std: float, factor: float) -> tuple[float, float]:
        model = TiedModel.random(
            config["vocab"],
            config["width"],
            hidden=config["hidden"],
            table_std=std,
            lookup_factor=factor,
            seed=config["seed"],
        )
        rows = model.table * factor
        return float(np.sqrt(np.mean(rows**2))), float(np.std(model.logits(every)))

    (low, high), (least, most), points = config["std"], config["lookup_factor"], config["points"]
    stds, factors = np.geomspace(low, high, points), np.geomspace(least, most, points)
    near = config["tolerance"]
    hits = sum(all(abs(v - 1) <= near for v in scales(float(s), float(f))) for s in stds for f in factors)
    once, twice = scales(config["doubled"], 1.0), scales(2 * config["doubled"], 1.0)
    return {"hits": float(hits), "stream": twice[0] / once[0], "logits": twice[1] / once[1]}


def tables(runs: "Sequence[Run]") -> list[Table]:
    """Hits by grid; what doubling does."""
    rows = []
    for grid, same in grouped(runs, lambda r: str(r.config["grid"])).items():
        cells = same[0].config["points"] ** 2
        rows.append((grid, cells, Spread.of(r.results["hits"] for r in same), SOURCE_HITS[grid]))
    config = runs[0].config
    within = f"{100 * config['tolerance']:.0f} % of 1"
    (low, high), (least, most) = config["std"], config["lookup_factor"]
    ranges = f"std {low} to {high}, factor {least} to {most}"
    doubled = [
        (name, Spread.of(r.results[key] for r in runs), theirs)
        for name, key, theirs in zip(("stream", "logits"), ("stream", "logits"), SOURCE_DOUBLING, strict=True)
    ]
    return [
        Table(
            "Settings that serve both roles",
            ("grid", "settings", "both near 1", "source"),
            tuple(rows),
            (f"Near: within {within}; {ranges}, evenly spaced in the logarithm. The source does not say its own.",),
        ),
        Table(f"Doubling a std of {config['doubled']}", ("scale of", "times", "source"), tuple(doubled)),
    ]


EXPERIMENT = Experiment(
    name="std-grid",
    claim="A std and a lookup factor that serve both roles exist, but a coarse grid misses them: logits go with the "
    "square of the std, the stream with its first power.",
    source="Deep learning from zero, day 67: 'What the measurement killed'",
    profiles=PROFILES,
    runs=runs,
    work=work,
    tables=tables,
    main="hits",
)
