"""What the lookup sends to the table, weighted from 0 to 4 while the model trains."""

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tiebeam.experiments.paired import NOTE, beside
from tiebeam.experiments.sizes import LAPTOP, PAPER, SMOKE, TRAINED
from tiebeam.experiments.spec import Experiment, Settings, Work
from tiebeam.experiments.tables import Figure, Line, Spread, Table, grouped
from tiebeam.zoo.schemes import check_schemes

if TYPE_CHECKING:
    from tiebeam.experiments.records import Run

_COMMON: dict[str, Any] = {"schemes": ["C", "F"], "weights": [0.0, 0.5, 1.0, 2.0, 4.0]}
PROFILES: dict[str, dict[str, Any]] = {
    "paper": {**PAPER, **_COMMON, "width": 512, "rate": 3e-3, "seeds": [0, 1]},
    "laptop": {**LAPTOP, **_COMMON, "width": 64, "rate": 8e-3, "seeds": [0, 1, 2, 3, 4]},
    "smoke": {**SMOKE, **_COMMON, "schemes": ["C"], "weights": [0.0, 1.0], "width": 32, "rate": 4e-3, "seeds": [0]},
}


def runs(settings: Settings) -> list[dict[str, Any]]:
    """One for each scheme, weight and seed."""
    check_schemes(settings["schemes"])
    fixed = {name: settings[name] for name in (*TRAINED, "width", "rate")} | {"clip": 1.0, "precision": "auto"}
    return [
        {"scheme": scheme, "weight": weight, "seed": seed, **fixed}
        for scheme, weight, seed in itertools.product(settings["schemes"], settings["weights"], settings["seeds"])
    ]


def work(given: Work) -> Mapping[str, float]:
    """Train one model with its lookup's gradient weighted."""
    import torch

    import tiebeam
    import tiebeam.torch
    from tiebeam.experiments.lm import build, train_run

    config, model = given.config, build(given)
    report = tiebeam.inspect(model, torch.arange(8, device=given.device)[None])
    with tiebeam.torch.mix_roles(model, report, lookup=config["weight"]):
        return train_run(given, model)


def tables(runs: "Sequence[Run]") -> list[Table]:
    """Validation loss by weight, and against the plain gradient."""
    rows = []
    for scheme, here in grouped(runs, lambda r: str(r.config["scheme"])).items():
        by_weight = grouped(here, lambda r: float(r.config["weight"]))
        plain = by_weight.get(1.0, [])
        rows += [
            (scheme, weight, Spread.of(r.results["last"] for r in same), beside(same, plain))
            for weight, same in sorted(by_weight.items())
        ]
    columns = ("scheme", "weight of the lookup's gradient", "validation loss", "beside weight 1")
    notes = (
        "Weight 0: the table learns from the readout alone, and the lookup reads what that makes of it.",
        NOTE.format("weight 1"),
    )
    return [Table("Mixing the roles", columns, tuple(rows), notes)]


def figures(runs: "Sequence[Run]") -> list[Figure]:
    """Loss against weight."""
    lines = []
    for scheme, here in grouped(runs, lambda r: str(r.config["scheme"])).items():
        by_weight = sorted(grouped(here, lambda r: float(r.config["weight"])).items())
        spreads = [Spread.of(r.results["last"] for r in same) for _, same in by_weight]
        points = tuple((weight, spread.mean) for (weight, _), spread in zip(by_weight, spreads, strict=True))
        lines.append(Line(scheme, points, tuple(spread.half for spread in spreads)))
    return [Figure("weight", "Last loss by weight", "weight of the lookup's gradient", "loss, nats", tuple(lines))]


EXPERIMENT = Experiment(
    name="role-mixing",
    claim="The readout dominates the table's gradient; weighting the lookup's share shows what that share is worth.",
    source="AnyInit, Tied embeddings: its reference to Lopardo et al. 2026, and the last conclusion",
    profiles=PROFILES,
    runs=runs,
    work=work,
    tables=tables,
    figures=figures,
    needs="text",
    packages=("torch",),
)
