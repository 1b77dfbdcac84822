"""PyTorch groups: two parametrisations of one model train identically under every family."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.optim import reference
from tests.optim.gpt import exact_report, gpt, largest_difference, trained_pair
from transformers.optimization import Adafactor

import tiebeam
from tiebeam.core.training.optimizers import RULES
from tiebeam.torch import param_groups, split_for_muon
from tiebeam.zoo.torch.minigpt import MiniGPT

pytestmark = pytest.mark.slow

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
    "adafactor-unscaled": (
        lambda g: Adafactor(g, scale_parameter=False, relative_step=False, warmup_init=False),
        {"lr": 1e-3, "weight_decay": 0.25, "eps": (1e-30, 1e-3)},
    ),
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
    assert RULES.keys() == FAMILIES.keys() | SPLIT.keys()


@pytest.mark.parametrize("fast", [{"foreach": True}, {"fused": True}], ids=str)
def test_fast_variants_train_identically_too(fast: dict[str, bool]) -> None:
    def make(model: MiniGPT, report: tiebeam.Report) -> list[torch.optim.Optimizer]:
        return [optim.AdamW(param_groups(model, report, lr=2e-3, weight_decay=0.25), **fast)]

    first, second, apart = trained_pair(make)
    assert apart == 0.0
    assert largest_difference(first, second) == 0.0


def test_a_schedule_that_multiplies_keeps_the_two_identical() -> None:
    class Scheduled(optim.AdamW):
        def __init__(self, groups: Any) -> None:
            super().__init__(groups)
            self.schedule = optim.lr_scheduler.CosineAnnealingLR(self, 8)

        def step(self, closure: Any = None) -> Any:
            done = super().step(closure)
            self.schedule.step()
            return done

    first, second, apart = trained_pair(lambda m, r: [Scheduled(param_groups(m, r, lr=2e-3))])
    assert apart == 0.0
    assert largest_difference(first, second) == 0.0


@pytest.mark.parametrize("wrong", ["lr", "weight_decay", "eps"])
def test_a_setting_that_is_not_scaled_makes_them_differ(wrong: str) -> None:
    told = {"lr": 2e-3, "weight_decay": 0.25, "eps": 2.0**-10}

    def make(model: MiniGPT, report: tiebeam.Report) -> list[torch.optim.Optimizer]:
        groups = param_groups(model, report, **told)
        groups[-1][wrong] = told[wrong]
        return [optim.AdamW(groups)]

    assert trained_pair(make)[2] > 1e-4


def test_adadelta_is_refused_for_no_power_of_c_serves_it() -> None:
    for power in (0, 1, 2):  # what the refusal says, shown

        def make(model: MiniGPT, report: tiebeam.Report, power: int = power) -> list[torch.optim.Optimizer]:
            groups = param_groups(model, report, lr=1.0)
            groups[-1]["lr"] **= power
            return [reference.Adadelta([{"params": g["params"], "lr": g["lr"]} for g in groups], eps=1e-6)]

        assert trained_pair(make, steps=3)[2] > 1e-4
    with pytest.raises(tiebeam.RangeError, match="no learning-rate rule holds for adadelta"):
        param_groups(gpt("C"), exact_report("C"), lr=1.0, optimizer="Adadelta")


def test_clipping_by_the_global_norm_is_not_covariant() -> None:
    """The norm adds the table's gradient, which is c times smaller in D', to the others'."""
    _, _, apart = trained_pair(one("sgd"), clip=0.5, steps=30)
    assert 0.05 < apart < 0.5
