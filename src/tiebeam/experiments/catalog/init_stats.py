"""Logits, own token and loss before training, by scheme and width, beside the formula and the source."""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tiebeam.experiments.spec import Experiment, Settings, Work
from tiebeam.experiments.tables import Figure, Line, Spread, Table, grouped, ratio
from tiebeam.zoo.schemes import SCHEMES, check_schemes

if TYPE_CHECKING:
    from tiebeam.experiments.records import Run

SOURCE_VOCAB = 33_527
SOURCE_LOSS = {
    "A": (110.0, 905.0),
    "B": (10.4, 10.7),
    "C": (11.2, 28.3),
    "D": (11.2, 28.3),
    "E": (10.9, 10.9),
    "F": (10.8, 11.0),
}
"""AnyInit's first table: initial loss at widths 128 and 1024, at its vocabulary. Unit: nats."""
SOURCE_WIDTHS = (128, 1024)

_COMMON: dict[str, Any] = {
    "schemes": list("ABCDEF"),
    "layers": 4,
    "block": 128,
    "windows": 16,
    "seeds": [0],
    "data": "stdlib",
    "vocab": None,
}
PROFILES: dict[str, dict[str, Any]] = {
    "paper": {**_COMMON, "widths": [128, 256, 512, 1024], "data": "wikitext-2"},
    "laptop": {**_COMMON, "widths": [128, 256, 512, 1024], "data": "synthetic", "vocab": SOURCE_VOCAB},
    "smoke": {**_COMMON, "widths": [32, 64], "layers": 1, "block": 32, "windows": 4, "vocab": 512},
}


def runs(settings: Settings) -> list[dict[str, Any]]:
    """One for each width, scheme and seed; the narrow ones first."""
    check_schemes(settings["schemes"])
    fixed = {name: settings[name] for name in ("layers", "block", "windows")}
    return [
        {"width": width, "scheme": scheme, "seed": seed, **fixed}
        for width, scheme, seed in itertools.product(settings["widths"], settings["schemes"], settings["seeds"])
    ]


def work(given: Work) -> Mapping[str, float]:
    """Measure one model, and ask `tiebeam.inspect` what it would have been."""
    from tiebeam.experiments.at_init import look

    return look(given)


def tables(runs: "Sequence[Run]") -> list[Table]:
    """Loss, own logit and logit std, each measured, by the formula, and as the source has it."""
    columns = (
        "scheme",
        "width",
        "loss",
        "formula",
        "off",
        "source",
        "off",
        "own logit",
        "formula",
        "logit std",
        "formula",
    )
    rows = []
    for (scheme, width), same in grouped(runs, lambda r: (r.config["scheme"], r.config["width"])).items():
        mean = {name: Spread.of(r.results[name] for r in same) for name in same[0].results}
        theirs = _source_loss(scheme, width, same[0].config["data"]["vocab"])
        rows.append(
            (
                scheme,
                str(width),
                mean["loss"],
                mean["formula loss"].mean,
                _off(mean["loss"].mean, mean["formula loss"].mean),
                theirs,
                _off(mean["loss"].mean, theirs),
                mean["own"],
                mean["formula own"].mean,
                mean["std"],
                mean["formula std"].mean,
            )
        )
    rows.sort(key=lambda row: (row[0], int(str(row[1]))))
    about = sorted(
        {f"text: {r.config['data']['label']}; ln V = {math.log(r.config['data']['vocab']):.3f}" for r in runs}
    )
    schemes = "; ".join(f"{name}: {SCHEMES[name].summary}" for name in sorted({r.config["scheme"] for r in runs}))
    narrow, wide = SOURCE_WIDTHS
    notes = (schemes, *about, f"the source measured at V = {SOURCE_VOCAB:,}, d = {narrow} and {wide} alone")
    return [Table("Before training", columns, tuple(rows), notes)]


def figures(runs: "Sequence[Run]") -> list[Figure]:
    """Initial loss against width, a line for each scheme, the formula dashed."""
    lines = []
    for scheme, same in grouped(runs, lambda r: str(r.config["scheme"])).items():
        for name, label in (("loss", scheme), ("formula loss", f"{scheme}, formula")):
            by_width = grouped(same, lambda r: int(r.config["width"]))
            points = [(float(w), Spread.of(r.results[name] for r in by_width[w]).mean) for w in sorted(by_width)]
            lines.append(Line(label, tuple(points), dashed=name != "loss"))
    return [Figure("initial-loss", "Initial loss", "width", "loss, nats", tuple(lines), log_x=True, log_y=True)]


def _source_loss(scheme: str, width: int, vocab: int) -> float | None:
    known = vocab == SOURCE_VOCAB and scheme in SOURCE_LOSS and width in SOURCE_WIDTHS
    return SOURCE_LOSS[scheme][SOURCE_WIDTHS.index(width)] if known else None


def _off(ours: float, theirs: float | None) -> str | None:
    times = ratio(ours, theirs)
    return None if times is None else f"{100 * (times - 1):+.1f} %"


EXPERIMENT = Experiment(
    name="init-stats",
    claim="The first loss and the own token's logit follow from the table's std and factors: a single std fails a "
    "role as the width grows, a factor does not.",
    source="AnyInit, Tied embeddings: the table of schemes, first column",
    profiles=PROFILES,
    runs=runs,
    work=work,
    tables=tables,
    figures=figures,
    needs="text",
    packages=("torch",),
)
