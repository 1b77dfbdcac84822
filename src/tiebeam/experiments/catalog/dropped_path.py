"""A backward pass that loses one role: which rows are wrong, and what training makes of it."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tiebeam.errors import NotFiniteError
from tiebeam.experiments.spec import DivergedError, Experiment, Settings, Work
from tiebeam.experiments.tables import Figure, Spread, Table, grouped, mean_line

if TYPE_CHECKING:
    from tiebeam.experiments.records import Run

READ = 8
"""Different tokens in the batch whose gradient is looked at."""

VARIANTS = {"both paths": ("kept", "kept"), "readout alone": ("dropped", "kept"), "lookup alone": ("kept", "dropped")}
SOURCE_WRONG = {"both paths": 0, "readout alone": 8, "lookup alone": 64}
SOURCE_LOSS = {"both paths": 1.61, "readout alone": 1.84}

_TASK: dict[str, Any] = {"vocab": 64, "places": 16, "sharpness": 2.5}
_COMMON: dict[str, Any] = {**_TASK, "width": 24, "hidden": 36, "batch": 256, "rate": 0.01}
PROFILES: dict[str, dict[str, Any]] = {
    "paper": {**_COMMON, "steps": 600, "seeds": list(range(5))},
    "laptop": {**_COMMON, "steps": 600, "seeds": list(range(3))},
    "smoke": {**_COMMON, "steps": 40, "seeds": [0]},
}


def runs(settings: Settings) -> list[dict[str, Any]]:
    """One for each variant and seed."""
    fixed = {name: value for name, value in settings.items() if name != "seeds"}
    return [{"variant": variant, "seed": seed, **fixed} for seed in settings["seeds"] for variant in VARIANTS]


def work(given: Work) -> Mapping[str, float]:
    """Count wrong rows against central differences; then train with that backward pass."""
    import numpy as np

    from tiebeam.experiments.by_hand import train_by_hand
    from tiebeam.experiments.chain import Chain
    from tiebeam.zoo.numpy.tied import TiedModel, numeric_gradients, wrong_rows

    config = given.config
    chain = Chain.drawn("aligned", seed=config["seed"], **{name: config[name] for name in _TASK})
    model = TiedModel.random(config["vocab"], config["width"], hidden=config["hidden"], seed=config["seed"])
    lookup, readout = VARIANTS[config["variant"]]
    rng = np.random.default_rng(config["seed"])
    ids = rng.permutation(config["vocab"])[:READ]
    targets = np.roll(ids, 1)
    right = numeric_gradients(model, ids, targets)["table"]
    got = model.backward(ids, targets, lookup=lookup, readout=readout).parameters["table"]  # type: ignore[arg-type]
    wrong = wrong_rows(got, right, tolerance=1e-5)
    figures = {"wrong rows": float(wrong), "entropy": chain.entropy}
    if readout == "dropped":
        return figures  # nobody would train it for long: what is read out would stay as drawn
    every = np.arange(config["vocab"])
    given.recorder.steps(config["steps"])

    def on_step(done: int, now: TiedModel) -> None:
        if done % 10 == 0 or done == config["steps"]:
            given.recorder.point("loss", done, chain.loss(now.logits(every)))

    how = {name: config[name] for name in ("steps", "batch", "rate", "seed")}
    try:
        trained = train_by_hand(model, chain, lookup=lookup, on_step=on_step, **how)  # type: ignore[arg-type]
    except NotFiniteError as error:
        raise DivergedError({**figures, "last": math.nan}) from error
    return {**figures, "last": chain.loss(trained.logits(every))}


def tables(runs: "Sequence[Run]") -> list[Table]:
    """Rows that are wrong, and the loss in the end."""
    columns = ("gradient into the table", "wrong rows", "right rows", "source: wrong", "last loss", "source", "entropy")
    rows = []
    for variant, same in grouped(runs, lambda r: str(r.config["variant"])).items():
        wrong = {int(r.results["wrong rows"]) for r in same}
        vocab = same[0].config["vocab"]
        last = Spread.of(r.results["last"] for r in same) if "last" in same[0].results else None
        entropy = Spread.of(r.results["entropy"] for r in same).mean
        of = (" or ".join(map(str, sorted(wrong))), " or ".join(str(vocab - w) for w in sorted(wrong, reverse=True)))
        rows.append((variant, *of, SOURCE_WRONG[variant], last, SOURCE_LOSS.get(variant), entropy))
    notes = (
        f"{READ} different tokens are read; a row is wrong where it is off by more than 1e-5 of the largest entry.",
        "Losses are of our task, whose entropy is beside them, and of the source's, which it does not write down.",
    )
    return [Table("A path dropped on the way back", columns, tuple(rows), notes)]


def figures(runs: "Sequence[Run]") -> list[Figure]:
    """Both trainings, as smooth as one another."""
    lines = []
    for variant, same in grouped(runs, lambda r: str(r.config["variant"])).items():
        if series := [r.series["loss"] for r in same if "loss" in r.series]:
            lines.append(mean_line(variant, series))
    return [Figure("loss", "Training with and without the lookup's path", "step", "loss, nats", tuple(lines))]


EXPERIMENT = Experiment(
    name="dropped-path",
    claim="Without the lookup's path only the rows that were read are wrong: random checks pass, training is smooth.",
    source="Deep learning from zero, day 67: the table of dropped paths",
    profiles=PROFILES,
    runs=runs,
    work=work,
    tables=tables,
    figures=figures,
)
