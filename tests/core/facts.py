"""Tables by hand for rules: a healthy one, and what to change; fixes that can be read."""

import math
from typing import Any

from tiebeam.core.facts import Lookup, Readout, Table
from tiebeam.core.initialising import moments
from tiebeam.core.initialising.predict import predict

VOCAB, WIDTH = 1000, 64
ROOT = math.sqrt(WIDTH)


class Fixes:
    """`core.findings.Fixes` in words."""

    def tie(self, owner: str, other: str) -> str:
        return f"tie {owner} to {other}"

    def initialize(self) -> str:
        return "initialize"

    def scale_lookup(self, where: str, factor: float) -> str:
        return f"scale {where} by {factor:g}"

    def train(self, name: str, on: bool) -> str:
        return f"train {name}: {on}"


def lookup(name: str = "embed.weight", where: str = "embed", **facts: Any) -> Lookup:
    return Lookup(name, where, "gather", **{"factor": ROOT, "rms": 1.0, **facts})


def readout(name: str = "embed.weight", where: str = "embed", **facts: Any) -> Readout:
    return Readout(name, where, **{"factor": 1.0, "hidden_rms": 1.0, "normalized": True, "kappa": 0.1, **facts})


def table(**changes: Any) -> Table:
    """A healthy tied table (lookup factor sqrt(width), std 1/sqrt(width)) but for `changes`.

    What follows from its facts (targets, prediction) follows from the changed ones.
    """
    facts: dict[str, Any] = {
        "names": ("embed.weight",), "vocab": VOCAB, "width": WIDTH, "dtype": "float32", "state": "tied",
        "lookups": (lookup(),), "readouts": (readout(),), "lookup_factor": ROOT, "readout_factor": 1.0,
        "hidden_rms": 1.0, "std": 1 / ROOT, "fresh": True, "spread": 1.0, "finite": True, "constant": False,
        **changes,
    }  # fmt: skip
    if not facts["lookups"]:
        facts["lookup_factor"] = None
    if not facts["readouts"]:
        facts["readout_factor"] = facts["hidden_rms"] = None
    factor, rms = facts["readout_factor"], facts["hidden_rms"]
    if facts["readouts"] and factor and rms and math.isfinite(rms) and facts["width"]:
        facts.setdefault("target_std", moments.target_std_readout(factor, rms, facts["width"]))
        facts.setdefault("lr_ratio", moments.lr_ratio(factor, rms))
    elif not facts["readouts"] and facts["lookup_factor"]:
        facts.setdefault("target_std", moments.target_std_lookup(facts["lookup_factor"]))
        facts.setdefault("lr_ratio", 1.0)
    kappa = next((r.kappa for r in facts["readouts"]), None)
    facts.setdefault(
        "predicted",
        predict(
            vocab=facts["vocab"], width=facts["width"], std=facts["std"], lookup_factor=facts["lookup_factor"],
            readout_factor=factor, hidden_rms=rms, kappa=kappa if facts["lookups"] else 0.0,
        ),
    )  # fmt: skip
    return Table(**facts)


def lookup_table(name: str = "embed.weight", **changes: Any) -> Table:
    home = name.rpartition(".")[0]
    return table(**{"names": (name,), "state": "untied", "readouts": (), "lookups": (lookup(name, home),), **changes})


def readout_table(name: str = "head.weight", **changes: Any) -> Table:
    home = name.rpartition(".")[0]
    return table(**{"names": (name,), "state": "untied", "lookups": (), "readouts": (readout(name, home),), **changes})


def couple(state: str, distance: float | None = 1.4, lookup: Any = None, readout: Any = None) -> tuple[Table, Table]:
    """A lookup table and a readout table that are each other's partner."""
    common = {"state": state, "distance": distance}
    return (
        lookup_table(**{**common, "partner": "head.weight", **(lookup or {})}),
        readout_table(**{**common, "partner": "embed.weight", **(readout or {})}),
    )
