"""Every scheme trained at its best rate: the source's table, with the roles' gradients, with and without clipping."""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tiebeam.experiments.rates import best_rate
from tiebeam.experiments.sizes import LAPTOP, PAPER, SMOKE, TRAINED
from tiebeam.experiments.spec import Experiment, Settings, Work
from tiebeam.experiments.tables import Figure, Line, Spread, Table, grouped, mean_line
from tiebeam.zoo.schemes import SCHEMES, check_schemes

if TYPE_CHECKING:
    from tiebeam.experiments.records import Run

SOURCE_LOSS = {
    "A": (6.25, 6.85),
    "B": (6.12, 5.86),
    "C": (5.77, 5.71),
    "D": (6.00, 6.15),
    "D'": (5.86, 5.66),
    "F": (5.87, 5.88),
    "E": (5.92, 5.73),
}
"""AnyInit: validation loss at widths 128 and 512, on wikitext-2 with V = 33,527. Unit: nats."""
SOURCE_WIDTHS = (128, 512)
SOURCE_RATIO = "0.6 at 0, 0.01 to 0.5 at 100"

_COMMON: dict[str, Any] = {"schemes": list(SCHEMES), "unclipped": ["C", "D", "D'"], "seeds": [0, 1]}
PROFILES: dict[str, dict[str, Any]] = {
    "paper": {**PAPER, **_COMMON, "widths": [128, 512], "rates": [3e-4, 1e-3, 3e-3, 1e-2], "fast": [3e-2]},
    "laptop": {**LAPTOP, **_COMMON, "widths": [64, 256], "rates": [2e-3, 8e-3], "fast": [3.2e-2]},
    "smoke": {
        **SMOKE,
        "schemes": ["A", "C", "D'"],
        "unclipped": ["C", "D'"],
        "seeds": [0],
        "widths": [64],
        "rates": [4e-3],
        "fast": [8e-3],
    },
}


def runs(settings: Settings) -> list[dict[str, Any]]:
    """The sweep of rates with clipping, A and D at faster ones too; then the middle rate without clipping."""
    fixed = {**{name: settings[name] for name in TRAINED}, "precision": "auto"}
    check_schemes([*settings["schemes"], *settings["unclipped"]])
    rates = settings["rates"]
    made: list[tuple[int, str, float, float | None]] = []
    for width, scheme in itertools.product(settings["widths"], settings["schemes"]):
        swept = [*rates, *(settings["fast"] if scheme in ("A", "D") else [])]
        made += [(width, scheme, rate, 1.0) for rate in swept]
    middle = rates[len(rates) // 2]
    made += [(w, s, middle, None) for w in settings["widths"] for s in settings["unclipped"]]
    return [
        {"width": width, "scheme": scheme, "rate": rate, "clip": clip, "seed": seed, **fixed}
        for (width, scheme, rate, clip), seed in itertools.product(made, settings["seeds"])
    ]


def work(given: Work) -> Mapping[str, float]:
    """Train one model; D' is D in the groups that `tiebeam.torch.param_groups` makes."""
    from tiebeam.experiments.lm import build, matched_groups, train_run

    config = given.config
    model = build(given)
    ratio = SCHEMES[config["scheme"]].table_rate(config["width"])
    groups = None if ratio == 1.0 else matched_groups(model, config["rate"], ratio=ratio)
    last = config["steps"] - 1
    figures = train_run(given, model, groups=groups, ratio_steps=sorted({0, min(100, last), last}))
    return {("ratio at last" if name == f"ratio at {last}" else name): value for name, value in figures.items()}


def tables(runs: "Sequence[Run]") -> list[Table]:
    """The best rate of each scheme; C, D and D' on the same batches; every rate."""
    clipped = [r for r in runs if r.config["clip"] is not None]
    return [_best(clipped), *_same(runs), _every(clipped)]


def _best(runs: "Sequence[Run]") -> Table:
    columns = ("scheme", "width", "first loss", "validation loss", "behind the best", "rate", "source")
    roles = ("lookup / readout at 0", "at 100", "at the end")
    found = {key: best_rate(same) for key, same in grouped(runs, _cell).items()}
    least: dict[int, float] = {}
    for (_, width), (_, loss, _) in found.items():
        if not math.isnan(loss.mean):
            least[width] = min(loss.mean, least.get(width, math.inf))
    rows = []
    for (scheme, width), (rate, loss, same) in sorted(found.items(), key=lambda item: (item[0][1], item[0][0])):
        theirs = SOURCE_LOSS[scheme][SOURCE_WIDTHS.index(width)] if width in SOURCE_WIDTHS else None
        behind = loss.mean - least.get(width, math.nan)
        first = Spread.of(r.results.get("first", math.nan) for r in same).mean
        ratios = [_mean(same, f"ratio at {at}") for at in ("0", "100", "last")]
        swept = {r.config["rate"] for r in runs if _cell(r) == (scheme, width)}
        edge = "" if min(swept) < rate < max(swept) else " (edge)"
        rows.append((scheme, str(width), first, loss, behind, f"{rate:g}{edge}", theirs, *ratios))
    labels = sorted({r.config["data"]["label"] for r in runs})
    said = "; ".join(f"{name}: {SCHEMES[name].summary}" for name in sorted({name for name, _ in found}))
    notes = (said, *(f"text: {label}" for label in labels))
    notes += ("(edge): no faster, or no slower, rate was tried",)
    notes += (f"source: widths {SOURCE_WIDTHS[0]} and {SOURCE_WIDTHS[1]} on wikitext-2; its gradients: {SOURCE_RATIO}",)
    return Table("Best rate of each scheme", (*columns, *roles), tuple(rows), notes)


def _same(runs: "Sequence[Run]") -> list[Table]:
    """How far trainings of one function lie apart, step by step, at one rate."""
    rows = []
    alike = grouped(runs, lambda r: (r.config["width"], r.config["clip"], r.config["rate"]))
    for (width, clip, rate), same in sorted(alike.items(), key=lambda item: str(item[0])):
        series = {(r.config["scheme"], r.config["seed"]): r.series.get("loss", ()) for r in same}
        for other in ("D'", "D"):
            pairs = [
                (series["C", s], series[other, s]) for _, s in series if ("C", s) in series and (other, s) in series
            ]
            gaps = [abs(a - b) for one, two in pairs for (_, a), (_, b) in zip(one, two, strict=False)]
            if gaps:
                largest = math.nan if any(map(math.isnan, gaps)) else max(gaps)
                rows.append((f"C and {other}", str(width), "no" if clip is None else f"at {clip:g}", rate, largest))
    columns = ("trainings", "width", "clipping", "rate", "largest difference of a loss")
    notes = (
        "0 is equal in every bit: D' is C written otherwise, and only clipping, which sees both scales, parts them.",
    )
    return [Table("C, D and D' on the same batches", columns, tuple(dict.fromkeys(rows)), notes)] if rows else []


def _every(runs: "Sequence[Run]") -> Table:
    rows = []
    for (scheme, width, rate), same in grouped(runs, lambda r: (*_cell(r), r.config["rate"])).items():
        diverged = sum(r.status == "diverged" for r in same)
        rows.append((scheme, str(width), rate, Spread.of(r.results["last"] for r in same), diverged))
    return Table("Every rate", ("scheme", "width", "rate", "validation loss", "diverged"), tuple(rows))


def figures(runs: "Sequence[Run]") -> list[Figure]:
    """Validation against step at the best rate, for each width; loss against rate."""
    clipped = [r for r in runs if r.config["clip"] is not None]
    made = []
    for width, here in grouped(clipped, lambda r: int(r.config["width"])).items():
        curves, sweeps = [], []
        for scheme, same in grouped(here, lambda r: str(r.config["scheme"])).items():
            _, _, best = best_rate(same)
            curves.append(mean_line(scheme, (r.series.get("validation", ()) for r in best)))
            by_rate = sorted(grouped(same, lambda r: float(r.config["rate"])).items())
            sweeps.append(
                Line(scheme, tuple((rate, Spread.of(r.results["last"] for r in part).mean) for rate, part in by_rate))
            )
        made.append(
            Figure(f"loss-{width}", f"Validation loss, width {width}", "step", "nats", tuple(curves), log_y=True)
        )
        made.append(
            Figure(f"rate-{width}", f"Last loss by rate, width {width}", "rate", "nats", tuple(sweeps), log_x=True)
        )
    return made


def _cell(run: "Run") -> tuple[str, int]:
    return str(run.config["scheme"]), int(run.config["width"])


def _mean(runs: "Sequence[Run]", name: str) -> float | None:
    found = [r.results[name] for r in runs if name in r.results]
    return Spread.of(found).mean if found else None


EXPERIMENT = Experiment(
    name="schemes",
    claim="A single std fails a role and costs in training; a factor mends it, if the table's rate follows its scale: "
    "D' is C, D is not.",
    source="AnyInit, Tied embeddings: the table of schemes",
    profiles=PROFILES,
    runs=runs,
    work=work,
    tables=tables,
    figures=figures,
    needs="text",
    packages=("torch",),
    optional=("fast", "unclipped"),
)
