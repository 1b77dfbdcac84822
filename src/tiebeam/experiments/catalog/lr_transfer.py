"""The best rate of a narrow model used at wider ones: with one rate for all, and with tiebeam's groups."""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tiebeam.experiments.sizes import LAPTOP, PAPER, SMOKE, TRAINED
from tiebeam.experiments.spec import Experiment, Settings, Work
from tiebeam.experiments.tables import Figure, Line, Spread, Table, grouped

if TYPE_CHECKING:
    from tiebeam.experiments.records import Run

GROUPS = ("one rate", "tiebeam's groups")
SCHEME = "D"

PROFILES: dict[str, dict[str, Any]] = {
    "paper": {**PAPER, "widths": [64, 128, 256, 512], "rates": [2.0**-k for k in range(12, 4, -1)], "seeds": [0, 1]},
    "laptop": {**LAPTOP, "widths": [32, 64, 128], "rates": [2.0**-k for k in range(9, 3, -1)], "seeds": [0, 1]},
    "smoke": {**SMOKE, "widths": [32, 64], "rates": [2.0**-8, 2.0**-6], "seeds": [0]},
}


def runs(settings: Settings) -> list[dict[str, Any]]:
    """One for each width, kind of groups, rate and seed."""
    fixed = {name: settings[name] for name in TRAINED}
    fixed |= {"scheme": SCHEME, "clip": None, "precision": "auto", "base_width": settings["widths"][0]}
    return [
        {"width": width, "groups": groups, "rate": rate, "seed": seed, **fixed}
        for width, groups, rate, seed in itertools.product(
            settings["widths"], GROUPS, settings["rates"], settings["seeds"]
        )
    ]


def work(given: Work) -> Mapping[str, float]:
    """Train one model, whose readout factor goes as 1/width from the base width on."""
    from tiebeam.experiments.lm import build, matched_groups, train_run

    config = given.config
    width, base = config["width"], config["base_width"]
    factor = base**-0.5  # scheme D's, at the base width
    model = build(given, readout_factor=factor * base / width)
    groups = None
    if config["groups"] != GROUPS[0]:
        groups = matched_groups(model, config["rate"], base_width=base, base_readout_factor=factor)
    return train_run(given, model, groups=groups)


def tables(runs: "Sequence[Run]") -> list[Table]:
    """Best rates by width, and what the narrow model's best rate costs there."""
    base = int(runs[0].config["base_width"])
    found = {key: _losses(same) for key, same in grouped(runs, _key).items()}
    rows = []
    for (groups, width), losses in sorted(found.items(), key=lambda item: (GROUPS.index(item[0][0]), item[0][1])):
        best, moved, cost = _best(losses), None, None
        if (groups, base) in found:  # of a sweep that is under way it may be missing
            start = _best(found[groups, base])
            moved = math.log2(best / start)
            cost = losses[start].mean - losses[best].mean if start in losses else None
        rows.append((groups, str(width), best, losses[best], moved, cost))
    columns = ("groups", "width", "best rate", "validation loss", "moved, octaves", "cost of the narrow rate")
    notes = (f"Scheme {SCHEME} at width {base}, its readout factor as 1/width beyond; no clipping.",)
    return [Table("Best rate against width", columns, tuple(rows), notes)]


def figures(runs: "Sequence[Run]") -> list[Figure]:
    """Loss against rate, a line for each width."""
    found = {key: _losses(same) for key, same in grouped(runs, _key).items()}
    lines = []
    for (groups, width), losses in found.items():
        points = tuple((rate, losses[rate].mean) for rate in sorted(losses))
        lines.append(Line(f"width {width}, {groups}", points, dashed=groups == GROUPS[0]))
    return [Figure("rate", "Last loss by rate", "rate", "loss, nats", tuple(lines), log_x=True)]


def _key(run: "Run") -> tuple[str, int]:
    return str(run.config["groups"]), int(run.config["width"])


def _losses(runs: "Sequence[Run]") -> dict[float, Spread]:
    by_rate = grouped(runs, lambda r: float(r.config["rate"]))
    return {rate: Spread.of(r.results["last"] for r in same) for rate, same in by_rate.items()}


def _best(losses: dict[float, Spread]) -> float:
    return min(losses, key=lambda rate: (math.isnan(losses[rate].mean), losses[rate].mean))


EXPERIMENT = Experiment(
    name="lr-transfer",
    claim="In groups made for the width at which a rate was found, that rate stays the best at other widths.",
    source="AnyInit, Tied embeddings: its reference to Yang et al. 2022 (Tensor Programs V, table 8)",
    profiles=PROFILES,
    runs=runs,
    work=work,
    tables=tables,
    figures=figures,
    needs="text",
    packages=("torch",),
)
