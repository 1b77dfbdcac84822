"""For each finding on an optimizer what makes it speak, and what is close to that and must not."""

from dataclasses import replace
from typing import Any

import numpy as np

from tiebeam.core.facts import Lookup, Readout, Table
from tiebeam.core.findings.optimizers import HeldGroup, OptimizerFacts, Schedule

C = 8.0
TABLE = Table(
    ("wte",), 500, 64, "float32", "tied", (Lookup("wte", "", "gather", 1.0),), (Readout("wte", "", 0.125),), lr_ratio=C
)
CUT = replace(TABLE, readouts=(Readout("wte", "", 0.125, gradient=False),))
LOOKUP = Table(("wte",), 500, 64, "float32", "untied", (Lookup("wte", "", "gather", 1.0),), lr_ratio=1.0)


class Fixes:
    def rebuild(self) -> str:
        return "rebuild"

    def regroup(self, owner: str, home: int, **settings: float) -> str:
        return f"regroup {owner} {home} {settings}"

    def keep_ratio(self, owner: str, ratio: float) -> str:
        return f"keep {owner} {ratio}"


def group(
    *names: str, lr: float | None = 1.0, optimizer: int = 0, family: str | None = "adamw", **more: Any
) -> HeldGroup:
    settings = {"weight_decay": None, "eps": None, **more}
    return HeldGroup(f"group of {names}", optimizer, family, lr, elements=dict.fromkeys(names, 100), **settings)


def facts(*groups: HeldGroup, table: Table = TABLE, **more: Any) -> OptimizerFacts:
    return OptimizerFacts((table,), {"wte": ("wte",)}, groups, Fixes(), **more)


def schedule(*rates: tuple[float, float], proportional: bool = True) -> Schedule:
    return Schedule("Curve", np.array(rates), 0, (proportional, proportional), True)


BODY, OWN = group("mlp"), group("wte", lr=C)
BOTH = (BODY, OWN)

FIRES: dict[str, list[OptimizerFacts]] = {
    "decay-without-gradient": [
        facts(BODY, group("wte", weight_decay=0.1), table=LOOKUP),
        facts(BODY, replace(OWN, weight_decay=0.1), table=CUT),
    ],
    "optimizer-stale": [facts(*BOTH, stale=1), facts(BODY, stale=1, missing=["wte"])],
    "optimizer-unknown": [
        facts(group("mlp", family=None), group("wte", family=None)),
        facts(group("wte", family="adadelta")),
    ],
    "schedule-flattens-ratio": [
        facts(*BOTH, schedules=[schedule((1, 8), (0.1, 0.1))]),
        facts(BODY, group("wte"), schedules=[schedule((1, 1), (2, 2), proportional=False)]),
    ],
    "stepped-twice": [facts(*BOTH, twice=[("wte", "head")])],
    "table-in-two-groups": [facts(BODY, OWN, replace(OWN, optimizer=1))],
    "table-not-stepped": [facts(BODY, missing=["wte"])],
    "table-rate": [
        facts(BODY, group("wte")),
        facts(group("mlp", "wte")),
        facts(BODY, group("wte", lr=C**2)),
        facts(group("mlp", family="sgd"), group("wte", family="sgd", lr=C)),
    ],
    "table-settings": [
        facts(replace(BODY, eps=1e-8), replace(OWN, eps=1e-8)),
        facts(replace(BODY, weight_decay=0.1), replace(OWN, weight_decay=0.1)),
    ],
    "table-under-muon": [
        facts(group("mlp", "wte", family="muon")),
        facts(group("wte", family="shampoo"), group("norm", optimizer=1)),
    ],
}  # fmt: skip

SILENT: dict[str, list[OptimizerFacts]] = {
    "decay-without-gradient": [facts(BODY, group("wte"), table=LOOKUP), facts(BODY, replace(OWN, weight_decay=0.1))],
    "optimizer-stale": [facts(*BOTH), facts(OWN, missing=["mlp"])],
    "optimizer-unknown": [facts(group("wte", family=None), table=replace(TABLE, lr_ratio=1.1))],
    "schedule-flattens-ratio": [
        facts(*BOTH, schedules=[schedule((1, 8), (0.1, 0.8), (0, 0), (1e-5, 1e-5))]),
        facts(BODY, group("wte"), schedules=[schedule((1, 1), (2, 2))]),
        facts(*BOTH, schedules=[replace(schedule((1, 1)), first=7)]),
    ],
    "stepped-twice": [facts(*BOTH)],
    "table-in-two-groups": [facts(*BOTH)],
    "table-not-stepped": [facts(*BOTH), facts(BODY, stale=1, missing=["wte"])],
    "table-rate": [
        facts(*BOTH),
        facts(BODY, group("wte", lr=6.0)),
        facts(OWN),
        facts(BODY, group("wte", lr=None)),
        facts(BODY, group("wte"), table=replace(TABLE, lr_ratio=None)),
        facts(group("mlp", family="lamb"), group("wte", family="lamb")),
        facts(group("mlp", family="sgd"), group("wte", family="sgd", lr=C**2)),
    ],
    "table-settings": [
        facts(replace(BODY, eps=1e-8), replace(OWN, eps=1e-8 / C)),
        facts(replace(BODY, weight_decay=0.1), replace(OWN, weight_decay=0.0)),
    ],
    "table-under-muon": [facts(group("mlp", family="muon"), group("norm", optimizer=1), replace(OWN, optimizer=1))],
}
