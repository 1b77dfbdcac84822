"""The softmax bottleneck: log-probabilities of one readout have rank width + 1 at most, those of a mixture do not."""

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tiebeam.experiments.spec import Experiment, Settings, Work
from tiebeam.experiments.tables import Spread, Table, grouped

if TYPE_CHECKING:
    from tiebeam.experiments.records import Run

READOUTS = ("tied", "untied", "mixture")
_COMMON: dict[str, Any] = {"vocab": 256, "hidden": 64, "parts": 3}
PROFILES: dict[str, dict[str, Any]] = {
    "paper": {**_COMMON, "widths": [4, 8, 16, 32, 64], "seeds": list(range(3))},
    "laptop": {**_COMMON, "widths": [4, 8, 16, 32, 64], "seeds": list(range(3))},
    "smoke": {**_COMMON, "vocab": 64, "widths": [4, 8], "seeds": [0]},
}


def runs(settings: Settings) -> list[dict[str, Any]]:
    """One for each width, readout and seed."""
    fixed = {name: settings[name] for name in ("vocab", "hidden", "parts")}
    return [
        {"width": width, "readout": readout, "seed": seed, **fixed}
        for width, readout, seed in itertools.product(settings["widths"], READOUTS, settings["seeds"])
    ]


def work(given: Work) -> Mapping[str, float]:
    """Rank of the log-probabilities after every token."""
    import numpy as np

    from tiebeam.zoo.numpy.tied import TiedModel

    config = given.config
    every = np.arange(config["vocab"])
    shape = {"vocab": config["vocab"], "width": config["width"], "hidden": config["hidden"]}
    first = TiedModel.random(**shape, tie=config["readout"] != "untied", seed=config["seed"])
    count = config["parts"] if config["readout"] == "mixture" else 1
    others = [TiedModel.random(**shape, seed=1000 * i + config["seed"]) for i in range(1, count)]
    # A mixture of softmaxes reads one table out of several hidden states.
    parts = [first, *(other.with_parameters(table=first.table) for other in others)]
    total = np.zeros((config["vocab"], config["vocab"]))
    weights = np.exp(np.random.default_rng(config["seed"]).normal(size=(config["vocab"], count)))
    weights /= weights.sum(axis=1, keepdims=True)
    for part, weight in zip(parts, weights.T, strict=True):
        logits = part.logits(every)
        odds = np.exp(logits - logits.max(axis=1, keepdims=True))
        total += weight[:, None] * odds / odds.sum(axis=1, keepdims=True)
    values = np.linalg.svd(np.log(total), compute_uv=False)
    return {"rank": float(np.count_nonzero(values > 1e-9 * values[0]))}


def tables(runs: "Sequence[Run]") -> list[Table]:
    """Ranks beside the bound."""
    by_width = grouped(runs, lambda r: int(r.config["width"]))
    rows = []
    for width, same in sorted(by_width.items()):
        ranks = {key: Spread.of(r.results["rank"] for r in part) for key, part in _by_readout(same).items()}
        rows.append((str(width), width + 1, *(ranks.get(name) for name in READOUTS)))
    vocab = runs[0].config["vocab"]
    notes = (
        f"Rank of the ({vocab}, {vocab}) matrix of log-probabilities; singular values above 1e-9 of the largest count.",
        "Untied tables have the same bound: it comes from the product over the width, not from the tie.",
    )
    return [Table("Rank of the log-probabilities", ("width", "bound, width + 1", *READOUTS), tuple(rows), notes)]


def _by_readout(runs: "Sequence[Run]") -> "dict[str, list[Run]]":
    return grouped(runs, lambda r: str(r.config["readout"]))


EXPERIMENT = Experiment(
    name="rank",
    claim="One softmax over a readout cannot express log-probabilities of a rank above width + 1, tied or not.",
    source="Inside a Transformer Block: 'The softmax bottleneck' (Yang et al. 2018, arXiv 1711.03953)",
    profiles=PROFILES,
    runs=runs,
    work=work,
    tables=tables,
    main="rank",
)
