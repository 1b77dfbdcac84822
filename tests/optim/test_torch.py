"""PyTorch groups: two parametrisations of one model train identically, and every parameter is in one group."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.optim import reference
from tests.optim.gpt import largest_difference, trained_pair

import tiebeam
from tiebeam.core.optimizers import RULES
from tiebeam.torch import param_groups, split_for_muon
from tiebeam.zoo.torch.minigpt import MiniGPT

optim = torch.optim
Build = Callable[[Any], torch.optim.Optimizer]

#: family -> (how it is built on groups, what param_groups is told)
FAMILIES: dict[str, tuple[Build, dict[str, Any]]] = {
    "sgd": (lambda g: optim.SGD(g, momentum=0.9, nesterov=True), {"lr": 0.05, "weight_decay": 0.25}),
    "adamw": (optim.AdamW, {"lr": 2e-3, "weight_decay": 0.25, "eps": 2.0**-20}),
    "adam": (lambda g: optim.Adam(g, amsgrad=True), {"lr": 2e-3, "weight_decay": 0.25}),
    "nadam": (optim.NAdam, {"lr": 2e-3, "weight_decay": 0.25}),
    "adamax": (optim.Adamax, {"lr": 2e-3, "weight_decay": 0.25}),
    "lion": (reference.Lion, {"lr": 1e-3, "weight_decay": 0.25}),
    "rmsprop": (lambda g: optim.RMSprop(g, momentum=0.9, centered=True), {"lr": 1e-3, "weight_decay": 0.25}),
    "adagrad": (lambda g: optim.Adagrad(g, lr_decay=0.01), {"lr": 1e-2, "weight_decay": 0.25}),
    "adafactor": (lambda g: optim.Adafactor(g), {"lr": 1e-2, "weight_decay": 0.25, "eps": (1e-30, 1e-3)}),
    "lamb": (reference.Lamb, {"lr": 1e-2, "weight_decay": 0.25}),
    "lars": (reference.Lars, {"lr": 1e-2, "weight_decay": 0.25}),
}
SPLIT: dict[str, Build] = {"muon": optim.Muon, "shampoo": reference.Shampoo, "soap": reference.Soap}


def one(family: str) -> Callable[[MiniGPT, tiebeam.Report], list[torch.optim.Optimizer]]:
    build, told = FAMILIES[family]
    return lambda model, report: [build(param_groups(model, report, optimizer=family, **told))]


def two(family: str) -> Callable[[MiniGPT, tiebeam.Report], list[torch.optim.Optimizer]]:
    def make(model: MiniGPT, report: tiebeam.Report) -> list[torch.optim.Optimizer]:
        body, rest = split_for_muon(model, report, lr=2e-3, muon_lr=0.02, weight_decay=0.25)
        return [SPLIT[family](body), optim.AdamW(rest)]

    return make


@pytest.mark.parametrize("family", FAMILIES)
def test_two_parametrisations_train_identically(family: str) -> None:
    first, second, apart = trained_pair(one(family))
    assert apart == 0.0
    assert largest_difference(first, second) == 0.0


@pytest.mark.parametrize("family", SPLIT)
def test_two_parametrisations_train_identically_beside_an_optimizer_of_matrices(family: str) -> None:
    first, second, apart = trained_pair(two(family))
    assert apart == 0.0
    assert largest_difference(first, second) == 0.0


def test_every_family_with_a_rule_is_held_against_training() -> None:
    assert RULES.keys() - FAMILIES.keys() - SPLIT.keys() == {"adafactor-unscaled"}
