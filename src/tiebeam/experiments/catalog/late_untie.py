"""Untying half-way: with the optimizer's state, without it, from the start, and never."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tiebeam.experiments.paired import NOTE, beside
from tiebeam.experiments.sizes import LAPTOP, PAPER, SMOKE, TRAINED
from tiebeam.experiments.spec import Experiment, Settings, Work
from tiebeam.experiments.tables import Figure, Spread, Table, grouped, mean_line
from tiebeam.zoo.schemes import check_schemes

if TYPE_CHECKING:
    from tiebeam.experiments.records import Run

VARIANTS = ("tied", "untied half-way", "untied half-way, state lost", "untied from the start")

_COMMON: dict[str, Any] = {"scheme": "C", "seeds": [0, 1]}
PROFILES: dict[str, dict[str, Any]] = {
    "paper": {**PAPER, **_COMMON, "width": 512, "rate": 3e-3},
    "laptop": {**LAPTOP, **_COMMON, "width": 64, "rate": 8e-3, "seeds": [0, 1, 2, 3, 4]},
    "smoke": {**SMOKE, **_COMMON, "width": 32, "rate": 4e-3, "seeds": [0]},
}


def runs(settings: Settings) -> list[dict[str, Any]]:
    """One for each variant and seed."""
    check_schemes([settings["scheme"]])
    fixed = {name: settings[name] for name in (*TRAINED, "scheme", "width", "rate")}
    fixed |= {"clip": 1.0, "precision": "auto"}
    return [{"variant": variant, "seed": seed, **fixed} for variant in VARIANTS for seed in settings["seeds"]]


def work(given: Work) -> Mapping[str, float]:
    """Train one model, and give its readout a table of its own on the way."""
    from tiebeam.experiments.lm import build, train_run
    from tiebeam.experiments.untying import untying_at

    config, variant = given.config, given.config["variant"]
    model = build(given)
    if variant == VARIANTS[0]:
        return train_run(given, model)
    at = 0 if variant == VARIANTS[3] else config["steps"] // 2
    return train_run(given, model, also=untying_at(at, model, keep_state=variant != VARIANTS[2]))


def tables(runs: "Sequence[Run]") -> list[Table]:
    """Validation loss by variant, against the tied model's."""
    by_variant = grouped(runs, _variant)
    tied = by_variant.get(VARIANTS[0], [])
    rows = [(v, Spread.of(r.results["last"] for r in same), beside(same, tied)) for v, same in by_variant.items()]
    notes = (
        "Until it is untied a model is the tied one, step by step: the same draws, and the same batches.",
        NOTE.format("the tied one"),
    )
    return [Table("Untying on the way", ("model", "validation loss", "beside the tied one"), tuple(rows), notes)]


def figures(runs: "Sequence[Run]") -> list[Figure]:
    """Validation loss against step."""
    by_variant = grouped(runs, _variant).items()
    lines = tuple(mean_line(variant, (r.series["validation"] for r in same)) for variant, same in by_variant)
    return [Figure("validation", "Validation loss", "step", "nats", lines)]


def _variant(run: "Run") -> str:
    return str(run.config["variant"])


EXPERIMENT = Experiment(
    name="late-untie",
    claim="A tied model can be untied while it trains, and pays for it only where the optimizer's state is lost.",
    source="AnyInit, Tied embeddings: the third recommendation, taken half-way",
    profiles=PROFILES,
    runs=runs,
    work=work,
    tables=tables,
    figures=figures,
    needs="text",
    packages=("torch",),
)
