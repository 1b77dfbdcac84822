"""The rank of the token just read, before and after training: what the tie and the residual stream put there."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tiebeam.errors import NotFiniteError
from tiebeam.experiments.spec import DivergedError, Experiment, Settings, Work
from tiebeam.experiments.tables import Figure, Spread, Table, grouped, mean_line

if TYPE_CHECKING:
    from tiebeam.experiments.records import Run

VARIANTS = {"tied, res = 1": (True, 1.0), "untied": (False, 1.0), "tied, res = 0": (True, 0.0)}
SOURCE_FIRST = {"tied, res = 1": 1.7, "untied": 31.4, "tied, res = 0": 35.0}
SOURCE_LAST = {"tied, res = 1": 20.3, "untied": 31.9}
"""The from-scratch page: mean rank of 64, at the start and after 600 steps; chance is 32.5."""

_TASK: dict[str, Any] = {"vocab": 64, "places": 16, "sharpness": 2.5}
_COMMON: dict[str, Any] = {**_TASK, "width": 24, "hidden": 36, "batch": 256, "rate": 0.01}
PROFILES: dict[str, dict[str, Any]] = {
    "paper": {**_COMMON, "steps": 600, "seeds": list(range(5))},
    "laptop": {**_COMMON, "steps": 600, "seeds": list(range(5))},
    "smoke": {**_COMMON, "steps": 40, "seeds": [0, 1]},
}


def runs(settings: Settings) -> list[dict[str, Any]]:
    """One for each variant and seed."""
    fixed = {name: value for name, value in settings.items() if name != "seeds"}
    return [{"variant": variant, "seed": seed, **fixed} for seed in settings["seeds"] for variant in VARIANTS]


def work(given: Work) -> Mapping[str, float]:
    """Follow the rank of the token just read through one training."""
    import numpy as np

    from tiebeam.experiments.by_hand import train_by_hand
    from tiebeam.experiments.chain import Chain
    from tiebeam.zoo.numpy.tied import TiedModel, own_rank

    config, recorder = given.config, given.recorder
    tie, res = VARIANTS[config["variant"]]
    chain = Chain.drawn("aligned", seed=config["seed"], **{name: config[name] for name in _TASK})
    model = TiedModel.random(
        config["vocab"], config["width"], hidden=config["hidden"], tie=tie, res=res, seed=config["seed"]
    )
    every = np.arange(config["vocab"])
    recorder.steps(config["steps"])

    def on_step(done: int, now: TiedModel) -> None:
        if done % 10 == 0 or done == config["steps"]:
            logits = now.logits(every)
            recorder.point("loss", done, chain.loss(logits))
            recorder.point("own rank", done, own_rank(logits, every))

    how = {name: config[name] for name in ("steps", "batch", "rate", "seed")}
    best = own_rank(np.log(np.maximum(chain.follows, 1e-300)), every)
    known = {"first rank": own_rank(model.logits(every), every), "best rank": best}
    try:
        logits = train_by_hand(model, chain, on_step=on_step, **how).logits(every)
    except NotFiniteError as error:
        raise DivergedError({**known, "last rank": math.nan, "last": math.nan}) from error
    return {**known, "last rank": own_rank(logits, every), "last": chain.loss(logits) - chain.entropy}


def tables(runs: "Sequence[Run]") -> list[Table]:
    """Ranks at both ends."""
    columns = ("model", "first rank", "source", "last rank", "source", "chance", "excess loss")
    rows = []
    for variant, same in grouped(runs, lambda r: str(r.config["variant"])).items():
        first, last, excess = (Spread.of(r.results[n] for r in same) for n in ("first rank", "last rank", "last"))
        chance = (same[0].config["vocab"] + 1) / 2
        rows.append((variant, first, SOURCE_FIRST[variant], last, SOURCE_LAST.get(variant), chance, excess))
    notes = (
        "No token follows itself in this task: the right rank is the last, and what is above it the model put there.",
    )
    return [Table("Mean rank of the token just read", columns, tuple(rows), notes)]


def figures(runs: "Sequence[Run]") -> list[Figure]:
    """Rank against step."""
    by_variant = grouped(runs, lambda r: str(r.config["variant"])).items()
    lines = tuple(mean_line(variant, (r.series["own rank"] for r in same)) for variant, same in by_variant)
    return [Figure("own-rank", "Rank of the token just read", "step", "mean rank, 1 is first", lines)]


EXPERIMENT = Experiment(
    name="repeat-bias",
    claim="A fresh tied model with a residual stream predicts the token it just read; without either it does not.",
    source="Deep learning from zero, day 67: 'A repeat bias nobody put there'",
    profiles=PROFILES,
    runs=runs,
    work=work,
    tables=tables,
    figures=figures,
)
