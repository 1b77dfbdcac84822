"""Tied and untied on a task that one space fits, and on one that it does not."""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tiebeam.errors import NotFiniteError
from tiebeam.experiments.spec import DivergedError, Experiment, Settings, Work
from tiebeam.experiments.tables import Figure, Spread, Table, grouped, mean_line

if TYPE_CHECKING:
    from tiebeam.experiments.records import Run

TASKS = ("aligned", "misaligned")
SOURCE = {"aligned": (0.2134, 0.2143, "0.96 to 1.11"), "misaligned": (0.1657, 0.1100, "1.37 to 1.64")}
"""The from-scratch page: excess tied and untied, and the range of their ratio over its five seeds. Unit: nats."""
SOURCE_SAVED = 32.0

_COMMON: dict[str, Any] = {
    "vocab": 64,
    "width": 24,
    "hidden": 36,
    "places": 16,
    "sharpness": 2.5,
    "batch": 256,
    "rate": 0.01,
}
PROFILES: dict[str, dict[str, Any]] = {
    "paper": {**_COMMON, "steps": 600, "seeds": list(range(5))},
    "laptop": {**_COMMON, "steps": 600, "seeds": list(range(5))},
    "smoke": {**_COMMON, "steps": 60, "seeds": [0, 1]},
}


def runs(settings: Settings) -> list[dict[str, Any]]:
    """One for each task, tied and untied, and seed."""
    fixed = {name: value for name, value in settings.items() if name != "seeds"}
    return [
        {"task": task, "tie": tie, "seed": seed, **fixed}
        for seed, task, tie in itertools.product(settings["seeds"], TASKS, (True, False))
    ]


def work(given: Work) -> Mapping[str, float]:
    """Train one model, and take from its loss what no model could do without."""
    import numpy as np

    from tiebeam.experiments.by_hand import train_by_hand
    from tiebeam.experiments.chain import Chain
    from tiebeam.zoo.numpy.tied import TiedModel

    config, recorder = given.config, given.recorder
    shape = {name: config[name] for name in ("vocab", "seed", "places", "sharpness")}
    chain = Chain.drawn(config["task"], **shape)
    model = TiedModel.random(
        config["vocab"], config["width"], hidden=config["hidden"], tie=config["tie"], seed=config["seed"]
    )
    every = np.arange(config["vocab"])
    recorder.steps(config["steps"])

    def on_step(done: int, now: TiedModel) -> None:
        if done % 10 == 0 or done == config["steps"]:
            recorder.point("loss", done, chain.loss(now.logits(every)) - chain.entropy)

    how = {name: config[name] for name in ("steps", "batch", "rate", "seed")}
    known = {"entropy": chain.entropy, "parameters": float(sum(p.size for p in model.parameters.values()))}
    try:
        trained = train_by_hand(model, chain, on_step=on_step, **how)
    except NotFiniteError as error:
        raise DivergedError({**known, "excess": math.nan}) from error
    return {**known, "excess": chain.loss(trained.logits(every)) - chain.entropy}


def tables(runs: "Sequence[Run]") -> list[Table]:
    """Excess by task, and the ratio by seed."""
    columns = ("task", "tied", "source", "untied", "source", "ratio", "source", "ratio by seed", "source", "saved")
    rows, by_seed = [], []
    for task, same in grouped(runs, lambda r: str(r.config["task"])).items():
        found = {(r.config["tie"], r.config["seed"]): r.results for r in same}
        seeds = sorted({s for tie, s in found if (not tie, s) in found})
        if not seeds:
            continue
        tied, untied = ([found[tie, s]["excess"] for s in seeds] for tie in (True, False))
        ratios = [a / b for a, b in zip(tied, untied, strict=True)]
        between = f"{min(ratios):.2f} to {max(ratios):.2f}" if all(map(math.isfinite, ratios)) else "diverged"
        theirs = SOURCE[task]
        saved = 1 - found[True, seeds[0]]["parameters"] / found[False, seeds[0]]["parameters"]
        means = Spread.of(tied), Spread.of(untied)
        rows.append(
            (
                task,
                *(means[0], theirs[0], means[1], theirs[1], means[0].mean / means[1].mean, theirs[0] / theirs[1]),
                *(between, theirs[2], f"{100 * saved:.0f} % ({SOURCE_SAVED:.0f} %)"),
            )
        )
        by_seed += [(task, str(s), a, b, a / b) for s, a, b in zip(seeds, tied, untied, strict=True)]
    notes = (
        "Excess: the loss beyond the task's own entropy, in nats, computed from its probabilities and not sampled.",
    )
    return [
        Table("Excess loss", columns, tuple(rows), notes),
        Table("By seed", ("task", "seed", "tied", "untied", "ratio"), tuple(by_seed)),
    ]


def figures(runs: "Sequence[Run]") -> list[Figure]:
    """Excess while training."""
    lines = []
    for (task, tie), same in grouped(runs, lambda r: (str(r.config["task"]), bool(r.config["tie"]))).items():
        label = f"{task}, {'tied' if tie else 'untied'}"
        lines.append(mean_line(label, (r.series["loss"] for r in same), dashed=not tie))
    return [Figure("excess", "Loss beyond the task's entropy", "step", "nats", tuple(lines), log_y=True)]


EXPERIMENT = Experiment(
    name="alignment",
    claim="Tying is free where a token's meaning as input and as output share a space, and costs where they do not.",
    source="Deep learning from zero, day 67: 'Free when the assumption holds'",
    profiles=PROFILES,
    runs=runs,
    work=work,
    tables=tables,
    figures=figures,
)
