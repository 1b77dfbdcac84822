"""Tables narrower than the stream: in the lookup alone, in the readout alone, and in both."""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tiebeam.errors import RangeError
from tiebeam.experiments.paired import NOTE, beside
from tiebeam.experiments.rates import best_rate
from tiebeam.experiments.sizes import LAPTOP, PAPER, SMOKE, TRAINED
from tiebeam.experiments.spec import Experiment, Settings, Work
from tiebeam.experiments.tables import Figure, Table, grouped, mean_line

if TYPE_CHECKING:
    from tiebeam.experiments.records import Run

VARIANTS: dict[str, tuple[bool, bool, bool]] = {
    "tied": (True, False, False),
    "untied": (False, False, False),
    "untied, narrow lookup": (False, True, False),
    "untied, narrow readout": (False, False, True),
    "tied, both narrow": (True, True, True),
}
"""Whether the tables are tied, and whether lookup and readout are narrow.

The third is that of Chung et al. 2021, arXiv 2010.12821, the last that of Lan et al. 2020 (ALBERT), arXiv 1909.11942.
"""

_COMMON: dict[str, Any] = {"variants": list(VARIANTS), "seeds": [0, 1]}
PROFILES: dict[str, dict[str, Any]] = {
    "paper": {**PAPER, **_COMMON, "width": 512, "narrow": 128, "rates": [1e-3, 3e-3, 1e-2]},
    "laptop": {**LAPTOP, **_COMMON, "width": 64, "narrow": 16, "rates": [8e-3, 1.6e-2, 3.2e-2], "seeds": [0, 1, 2]},
    "smoke": {**SMOKE, **_COMMON, "width": 32, "narrow": 8, "rates": [4e-3], "seeds": [0]},
}


def runs(settings: Settings) -> list[dict[str, Any]]:
    """One for each variant, rate and seed.

    Raises:
        RangeError: There is no such variant, or the narrow tables are wider than the stream.
    """
    if unknown := [name for name in settings["variants"] if name not in VARIANTS]:
        raise RangeError(f"'factorised' has no variant '{unknown[0]}'", expected=" | ".join(VARIANTS))
    if settings["narrow"] > settings["width"]:
        raise RangeError(
            "narrow tables of 'factorised'", got=f"{settings['narrow']}", expected=f"at most width, {settings['width']}"
        )
    fixed = {name: settings[name] for name in (*TRAINED, "width", "narrow")}
    fixed |= {"clip": 1.0, "precision": "auto"}
    swept = itertools.product(settings["variants"], settings["rates"], settings["seeds"])
    return [{"variant": variant, "rate": rate, "seed": seed, **fixed} for variant, rate, seed in swept]


def work(given: Work) -> Mapping[str, float]:
    """Train one model whose tables start at the stds that their own widths ask for."""
    import torch

    from tiebeam.experiments.lm import text_of, train_run
    from tiebeam.zoo.minigpt import MiniGPTConfig
    from tiebeam.zoo.torch.factorised import FactorisedGPT

    config = given.config
    tie, *narrow = VARIANTS[config["variant"]]
    lookup, readout = (config["narrow"] if each else config["width"] for each in narrow)
    sizes = {name: config[name] for name in ("width", "layers")}
    # Tied: std 1/sqrt(width) and a lookup multiplied by sqrt(width), as scheme C; untied: 1 and 1/sqrt(width), as E.
    made = MiniGPTConfig(
        vocab=text_of(given).vocab,
        heads=max(config["width"] // 64, 2),
        block_size=config["block"],
        positions="none",
        tie=tie,
        lookup_factor=math.sqrt(lookup) if tie else 1.0,
        table_std=lookup**-0.5 if tie else 1.0,
        readout_std=None if tie else readout**-0.5,
        **sizes,
    )
    generator = torch.Generator().manual_seed(config["seed"])
    model = FactorisedGPT(made, lookup_width=lookup, readout_width=readout, generator=generator).to(given.device)
    figures = train_run(given, model)
    counts = {name: p.numel() for name, p in model.named_parameters()}
    outside = sum(count for name, count in counts.items() if name.startswith(("embed", "head", "widen", "narrow")))
    return {**figures, "table parameters": float(outside), "parameters": float(sum(counts.values()))}


def tables(runs: "Sequence[Run]") -> list[Table]:
    """Each model at its best rate, with what its tables cost."""
    found = {variant: best_rate(same) for variant, same in grouped(runs, _variant).items()}
    tied = found["tied"][2] if "tied" in found else []
    rows = []
    for variant, (rate, loss, same) in found.items():
        config, results = same[0].config, same[0].results
        rank = config["narrow"] if VARIANTS[variant][2] else config["width"]
        # of a run that diverged nothing was counted
        counts = [int(results[n]) if n in results else None for n in ("table parameters", "parameters")]
        rows.append((variant, *counts, rank, f"{rate:g}", loss, beside(same, tied)))
    columns = (
        "model",
        "parameters of tables",
        "of all",
        "rank of logits",
        "rate",
        "validation loss",
        "beside tied",
    )
    config = runs[0].config
    notes = (
        f"Width {config['width']}, narrow {config['narrow']}; a product of its own leads from each narrow table.",
        NOTE.format("tied"),
        "Chung et al. and ALBERT measured encoders on tasks after training; this is the loss of a small causal model.",
        *sorted({f"text: {r.config['data']['label']}" for r in runs}),
    )
    return [Table("Narrow tables", columns, tuple(rows), notes)]


def figures(runs: "Sequence[Run]") -> list[Figure]:
    """Validation loss against step, each at its best rate."""
    best = {variant: best_rate(same)[2] for variant, same in grouped(runs, _variant).items()}
    lines = tuple(mean_line(variant, (r.series["validation"] for r in same)) for variant, same in best.items())
    return [Figure("validation", "Validation loss", "step", "nats", lines)]


def _variant(run: "Run") -> str:
    return str(run.config["variant"])


EXPERIMENT = Experiment(
    name="factorised",
    claim="An untied lookup can be much narrower than the stream at little cost; a narrow readout costs, tied or not.",
    source="Inside a Transformer Block: 'The constraint it imposes' (Chung et al. 2021, arXiv 2010.12821)",
    profiles=PROFILES,
    runs=runs,
    work=work,
    tables=tables,
    figures=figures,
    needs="text",
    packages=("torch",),
)
