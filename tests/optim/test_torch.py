"""PyTorch groups: every parameter is in one, tables are told by what they do, and what cannot be is refused."""

import time
from itertools import chain
from typing import Any

import pytest
import torch
from tests.optim.gpt import C, exact_report, gpt
from tests.torch.models import kit
from torch import nn

import tiebeam
from tiebeam.torch import param_groups, split_for_muon
from tiebeam.zoo.minigpt import MiniGPTConfig
from tiebeam.zoo.torch.minigpt import MiniGPT

optim = torch.optim


def names_of(model: nn.Module, groups: list[dict[str, Any]]) -> list[list[str]]:
    paths = {id(p): n for n, p in model.named_parameters()}
    return [[paths[id(p)] for p in g["params"]] for g in groups]


def assert_partition(model: nn.Module, *several: list[dict[str, Any]]) -> None:
    held = [id(p) for groups in several for g in groups for p in g["params"]]
    assert sorted(held) == sorted({id(p) for p in model.parameters() if p.requires_grad})


def test_norms_and_biases_are_not_decayed_and_positions_stay_with_the_rest() -> None:
    model = gpt("D", positions="learned")
    groups = param_groups(model, exact_report("D", positions="learned"), lr=1.0, weight_decay=0.5)
    matrices, vectors, table = names_of(model, groups)
    assert_partition(model, groups)
    assert "positions.weight" in " ".join(matrices) or any("position" in n for n in matrices)
    assert table == ["embed.weight"]
    assert all("norm" in n for n in vectors)
    assert [g["weight_decay"] for g in groups] == [0.5, 0.0, 0.5 / C]
    assert [g["lr"] for g in groups] == [1.0, 1.0, C]


class Named(nn.Module):
    """A table that no name gives away, and positions that are named like one."""

    def __init__(self, sparse: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(16, 8)
        self.zebra = nn.Parameter(torch.randn(300, 8) * 0.35)
        self.gain_like = nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)
        self.column = nn.Parameter(torch.ones(1, 1, 8))
        self.frozen = nn.Linear(8, 8).requires_grad_(False)

    def forward(self, ids: torch.Tensor) -> Any:
        x = self.zebra[ids] + self.embedding.weight[: ids.shape[1]]
        return 0.25 * (self.norm(x + self.frozen(self.gain_like(x))) * self.column) @ self.zebra.T


def ids(high: int = 300) -> torch.Tensor:
    return torch.arange(8)[None] * 7 % high


def test_the_table_is_known_by_what_it_does_and_never_by_its_name() -> None:
    model = Named()
    groups = param_groups(model, tiebeam.inspect(model, ids()), lr=1.0)
    matrices, vectors, table = names_of(model, groups)
    assert matrices == ["embedding.weight", "gain_like.weight"]
    assert vectors == ["column", "gain_like.bias", "norm.weight", "norm.bias"]
    assert table == ["zebra"]
    assert groups[2]["lr"] == pytest.approx(4.0, rel=1e-3)


def test_frozen_parameters_are_left_out() -> None:
    model = Named()
    report = tiebeam.inspect(model, ids())
    model.zebra.requires_grad_(False)
    groups = param_groups(model, report, lr=1.0)
    assert_partition(model, groups)
    assert "zebra" not in chain(*names_of(model, groups))
    model.requires_grad_(False)
    with pytest.raises(tiebeam.InputError, match="nothing to train"):
        param_groups(model, report, lr=1.0)


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(300, 8), nn.Linear(8, 300, bias=False)
        self.norm = nn.LayerNorm(8)

    def forward(self, ids: torch.Tensor) -> Any:
        return 0.25 * self.head(self.norm(self.embed(ids)))


def test_two_parameters_on_one_storage_are_refused() -> None:
    model = Pair()
    model.head.weight = nn.Parameter(model.embed.weight.data)
    report = tiebeam.inspect(model, ids())
    with pytest.raises(tiebeam.InputError, match="two parameters on one storage") as refused:
        param_groups(model, report, lr=1.0)
    assert "tie them first" in str(refused.value)


def test_other_parameters_on_one_storage_are_refused_and_views_side_by_side_are_not() -> None:
    model = Pair()
    both = torch.randn(2, 8)
    model.a, model.b = nn.Parameter(both[0]), nn.Parameter(both[1])
    report = tiebeam.inspect(model, ids())
    assert_partition(model, param_groups(model, report, lr=1.0))
    model.b = nn.Parameter(both)
    with pytest.raises(tiebeam.InputError, match="two parameters on one storage"):
        param_groups(model, report, lr=1.0)


def test_an_untied_model_has_a_group_for_each_table() -> None:
    model = Pair()
    groups = param_groups(model, tiebeam.inspect(model, ids()), lr=1.0, weight_decay=0.5)
    assert names_of(model, groups) == [["norm.weight", "norm.bias"], ["embed.weight"], ["head.weight"]]
    assert [g["lr"] for g in groups] == [1.0, 1.0, pytest.approx(4.0, rel=1e-3)]
    assert [g["weight_decay"] for g in groups] == [0.0, 0.0, pytest.approx(0.125, rel=1e-3)]


def test_a_tie_that_broke_since_the_report_is_refused() -> None:
    model = Pair()
    model.head.weight = model.embed.weight
    report = tiebeam.inspect(model, ids())
    model.head.weight = nn.Parameter(model.embed.weight.detach().clone())
    with pytest.raises(tiebeam.InputError, match=r"(?s)2 parameters now.*or the report is of another model"):
        param_groups(model, report, lr=1.0)


def test_an_unknown_ratio_is_refused_and_can_be_said() -> None:
    class Bare(Pair):
        def forward(self, ids: torch.Tensor) -> Any:
            return self.head(self.embed(ids)) * ids.shape[1]

    model = Bare()
    report = tiebeam.inspect(model, ids())
    assert [t.lr_ratio for t in report.tables] == [1.0, None]
    with pytest.raises(tiebeam.RangeError, match=r"ratio of table 'head.weight' is not known") as refused:
        param_groups(model, report, lr=1.0)
    assert "ratios={'head.weight': 1.0}" in str(refused.value)
    groups = param_groups(model, report, lr=1.0, ratios={"head.weight": 2.0})
    assert groups[-1]["lr"] == 2.0
    with pytest.raises(tiebeam.InputError, match="no trainable table"):
        param_groups(model, report, lr=1.0, ratios={"head.weight": 2.0, "norm.weight": 1.0})
    with pytest.raises(tiebeam.RangeError, match="ratios"):
        param_groups(model, report, lr=1.0, ratios={"head.weight": -2.0})


def test_a_report_of_another_model_is_refused() -> None:
    with pytest.raises(tiebeam.InputError, match="no parameter of this model"):
        param_groups(nn.Linear(3, 3), exact_report("D"), lr=1.0)


class Wider(Pair):
    """The names of `Pair`, with another table."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(400, 8), nn.Linear(8, 400, bias=False)


def test_a_report_of_another_model_with_the_same_names_is_refused() -> None:
    report = tiebeam.inspect(Pair(), ids())
    with pytest.raises(tiebeam.InputError, match=r"(?s)report is of another model.*vocab 300 and width 8, as Pair had"):
        param_groups(Wider(), report, lr=1.0)
    with pytest.raises(tiebeam.InputError, match="another model"):
        split_for_muon(Wider(), report, lr=1.0, muon_lr=1.0)
    assert_partition(other := Pair(), param_groups(other, report, lr=1.0))  # another instance of it


@pytest.mark.parametrize("report", [None, "report", {}])
def test_what_is_no_report_is_refused(report: Any) -> None:
    model = Pair()
    for call in (
        lambda: param_groups(model, report, lr=1.0),
        lambda: split_for_muon(model, report, lr=1.0, muon_lr=1.0),
        lambda: tiebeam.inspect_optimizer(optim.SGD(model.parameters(), lr=1.0), model, report),
        lambda: tiebeam.torch.mix_roles(model, report, lookup=2.0),
    ):
        with pytest.raises(tiebeam.InputError, match=r"(?s)a report on the model is needed.*tiebeam.inspect"):
            call()


def test_parameters_in_the_place_of_the_model_are_refused() -> None:
    model, report = Pair(), exact_report("D")
    for call in (
        lambda: param_groups(model.parameters(), report, lr=1.0),
        lambda: split_for_muon(model.parameters(), report, lr=1.0, muon_lr=1.0),
        lambda: tiebeam.torch.mix_roles(model.parameters(), report, lookup=2.0),
        lambda: tiebeam.torch.use_readout_loss(model.parameters(), report),
    ):
        with pytest.raises(tiebeam.InputError, match=r"(?s)no model.*generator.*pass the model itself"):
            call()


def test_wrappers_around_the_model_of_the_report_are_seen_through() -> None:
    model = gpt("D")
    wrapped = nn.Sequential(nn.Sequential(model))
    groups = param_groups(wrapped, exact_report("D"), lr=1.0)
    assert_partition(model, groups)
    assert groups[-1]["params"][0] is model.embed.weight


@pytest.mark.parametrize(
    ("told", "complaint"),
    [
        ({"optimizer": "muon"}, "takes the matrices of the body alone"),
        ({"optimizer": "mine"}, "family is unknown"),
        ({"optimizer": "lion", "eps": 1e-8}, "lion has no eps"),
        ({"optimizer": "adafactor", "eps": 1e-8}, "eps of adafactor"),
        ({"optimizer": "adafactor-unscaled", "lr": None}, "a multiple of lr"),
        ({"optimizer": "sgd", "base_width": 16}, "base_width does not apply to sgd"),
        ({"base_width": 0}, "base_width"),
        ({"optimizer": None}, "family is unknown"),
        ({"lr": -1.0}, "lr is no rate"),
        ({"lr": float("nan")}, "lr is no rate"),
        ({"lr": "1e-3"}, r"(?s)lr is no rate.*Hint: lr=float\(lr\)"),
        ({"weight_decay": -0.1}, "weight_decay is no rate"),
    ],
)
def test_what_cannot_be_is_refused(told: dict[str, Any], complaint: str) -> None:
    with pytest.raises(tiebeam.RangeError, match=complaint):
        param_groups(gpt("D"), exact_report("D"), **{"lr": 1.0, **told})


@pytest.mark.parametrize(
    ("family", "kind"), [("adamw", torch.optim.AdamW), ("adam", torch.optim.Adam), ("sgd", torch.optim.SGD)]
)
def test_an_optimizer_s_class_or_one_that_is_made_says_its_family(family: str, kind: Any) -> None:
    model, report, settings = gpt("D"), exact_report("D"), {"lr": 1e-3, "weight_decay": 0.5}
    expected = param_groups(model, report, optimizer=family, **settings)
    made = kind(model.parameters(), lr=1e-3)
    for said in (kind, made):
        found = param_groups(model, report, optimizer=said, **settings)
        assert [(g["lr"], g["weight_decay"]) for g in found] == [(g["lr"], g["weight_decay"]) for g in expected]


def test_an_adam_that_decays_beside_the_step_counts_as_adamw() -> None:
    model, report = gpt("D"), exact_report("D")
    made = torch.optim.Adam(model.parameters(), lr=1e-3, decoupled_weight_decay=True)
    found, expected = (
        param_groups(model, report, optimizer=said, lr=1e-3, weight_decay=0.5)[-1]["weight_decay"]
        for said in (made, "adamw")
    )
    assert (
        found
        == expected
        != param_groups(model, report, optimizer="adam", lr=1e-3, weight_decay=0.5)[-1]["weight_decay"]
    )


def test_a_relative_step_needs_no_rate() -> None:
    groups = param_groups(gpt("D"), exact_report("D"), lr=None, optimizer="adafactor")
    assert all("lr" not in g for g in groups)


# Widths


def test_base_width_scales_the_body_and_leaves_the_table() -> None:
    model = gpt("A", positions="learned")
    report = exact_report("A", positions="learned")
    with pytest.raises(tiebeam.RangeError, match="does not go as 1/width") as refused:
        param_groups(model, report, lr=1.0, base_width=16)
    assert "a factor of 0.25 is missing" in str(refused.value)
    with torch.device("meta"):
        config = MiniGPTConfig(
            vocab=61, width=64, layers=1, heads=2, block_size=16, readout_factor=0.25, positions="learned"
        )
        model = MiniGPT(config)
        report = tiebeam.inspect(model, torch.zeros(1, 8, dtype=torch.long))
    groups = param_groups(model, report, lr=1.0, base_width=16)
    assert [g["lr"] for g in groups] == [0.25, 1.0, 1.0, 1.0]
    assert names_of(model, groups)[1] == [n for n, _ in model.named_parameters() if "position" in n]
    assert [g["lr"] for g in param_groups(model, report, lr=1.0)] == [1.0, 1.0, 4.0]


def test_at_the_base_width_nothing_changes() -> None:
    model = gpt("D")
    told = {"lr": 1.0, "weight_decay": 0.5}
    plain = param_groups(model, exact_report("D"), **told)
    based = param_groups(model, exact_report("D"), base_width=64, base_readout_factor=0.125, **told)
    assert [g["lr"] for g in plain] == [g["lr"] for g in based]
    assert [g["weight_decay"] for g in plain] == [g["weight_decay"] for g in based]


# Muon


def test_a_split_for_muon_gives_it_matrices_of_the_body_alone() -> None:
    model = gpt("D", positions="learned")
    muon, adam = split_for_muon(model, exact_report("D", positions="learned"), lr=1.0, muon_lr=0.02)
    assert_partition(model, muon, adam)
    assert all(p.ndim == 2 for g in muon for p in g["params"])
    said = list(chain(*names_of(model, muon)))
    assert said
    assert not any("embed" in n or "position" in n for n in said)
    assert adam[-1]["lr"] == C
    assert [optim.Muon(muon), optim.AdamW(adam)]


def test_further_parameters_can_be_kept_from_muon() -> None:
    model = Named()
    report = tiebeam.inspect(model, ids())
    muon, _ = split_for_muon(model, report, lr=1.0, muon_lr=1.0)
    assert names_of(model, muon) == [["gain_like.weight"]]
    with pytest.raises(tiebeam.InputError, match="no matrix for Muon"):
        split_for_muon(model, report, lr=1.0, muon_lr=1.0, adam=["gain_like.weight"])
    with pytest.raises(tiebeam.InputError, match="no parameter"):
        split_for_muon(model, report, lr=1.0, muon_lr=1.0, adam=["gain.like"])


# Size


def test_a_model_of_a_billion_parameters_takes_no_time() -> None:
    with torch.device("meta"):
        model = MiniGPT(MiniGPTConfig.from_scheme("D", vocab=50257, width=2048, layers=18, heads=16))
        report = tiebeam.inspect(model, torch.zeros(1, 8, dtype=torch.long))
    assert sum(p.numel() for p in model.parameters()) > 1e9
    start = time.perf_counter()
    param_groups(model, report, lr=1.0)
    assert time.perf_counter() - start < 0.2


# The models of the other tests

THEMES = kit.load()


@pytest.mark.parametrize("theme", THEMES)
def test_groups_partition_the_small_models_of_the_zoo(theme: str) -> None:
    for build in list(THEMES[theme].values())[::2]:
        case = build()
        report = tiebeam.inspect(case.model, case.inputs)
        trained = {n for n, p in case.model.named_parameters(remove_duplicate=False) if p.requires_grad}
        said = {t.name: 1.0 for t in report.tables if t.lr_ratio is None and trained.intersection(t.names)}
        if "aliased-storage" in {f.code for f in report.findings}:
            with pytest.raises(tiebeam.InputError, match="storage"):
                param_groups(case.model, report, lr=1.0, ratios=said)
            continue
        assert_partition(case.model, param_groups(case.model, report, lr=1.0, ratios=said))
