"""What an optimizer does with a table, seen; what is printed as a fix mends it."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.optim import reference
from tests.optim.gpt import C, gpt, ids
from torch import nn, optim
from torch.optim import lr_scheduler

import tiebeam
from tiebeam.torch import param_groups, split_for_muon


class World:
    """A model whose table wants 8 times the rate under Adam, its report, and an optimizer."""

    def __init__(self, optimizer: Callable[["World"], Any], scheduler: Callable[[Any], Any] | None = None) -> None:
        self.model: nn.Module = gpt("D'", positions="learned")
        self.report = tiebeam.inspect(self.model, ids())
        self.optimizer = optimizer(self)
        self.scheduler = None if scheduler is None else scheduler(self.optimizer)

    @property
    def table(self) -> nn.Parameter:
        return self.model.get_parameter("embed.weight")

    def groups(self, **more: Any) -> list[dict[str, Any]]:
        return param_groups(self.model, self.report, **{"lr": 1e-3, "weight_decay": 0.1, **more})

    def seen(self, **more: Any) -> tiebeam.Report:
        return tiebeam.inspect_optimizer(self.optimizer, self.model, self.report, self.scheduler, **more)

    def codes(self, **more: Any) -> list[str]:
        return [f.code for f in self.seen(**more).findings]

    def mend(self, code: str) -> None:
        [finding] = [f for f in self.seen().findings if f.code == code]
        names = {**vars(self), "tiebeam": tiebeam, "torch": torch}
        exec(finding.fix, names)
        self.optimizer, self.scheduler = names["optimizer"], names["scheduler"]

    def holders(self) -> list[dict[str, Any]]:
        several = self.optimizer if isinstance(self.optimizer, list) else [self.optimizer]
        return [g for o in several for g in o.param_groups for p in g["params"] if p is self.table]


def plain(world: World) -> optim.Optimizer:
    return optim.AdamW(world.model.parameters(), lr=1e-3)


def grouped(world: World) -> optim.Optimizer:
    return optim.AdamW(world.groups())


def test_groups_of_the_report_leave_nothing_to_say() -> None:
    assert World(grouped).codes() == []


def test_the_report_says_how_the_table_is_stepped_though_there_is_nothing_to_mend() -> None:
    seen = World(grouped).seen()
    line = "embed.weight: stepped as adamw, rate 0.008 = 8 times that of the rest, decay 0.0125, eps 1.25e-09"
    assert seen.notes == (line,)
    assert f"note: {line}" in " ".join(str(seen).split())


@pytest.mark.parametrize("family", ["sgd", "adam", "rmsprop", "adagrad", "nadam", "adamax"])
def test_groups_of_every_family_leave_nothing_to_say(family: str) -> None:
    build = {"sgd": optim.SGD, "adam": optim.Adam, "rmsprop": optim.RMSprop, "adagrad": optim.Adagrad}
    build |= {"nadam": optim.NAdam, "adamax": optim.Adamax}
    assert World(lambda w: build[family](w.groups(optimizer=family))).codes() == []


def test_a_table_at_the_rate_of_the_rest_is_found_and_mended() -> None:
    world = World(plain)
    [finding] = world.seen().findings
    assert (finding.code, finding.severity, finding.where) == ("table-rate", "warning", "embed.weight")
    assert "at 1 times the rate of the rest" in finding.message
    world.mend("table-rate")
    assert world.codes() == []
    [group] = world.holders()
    assert group["lr"] == pytest.approx(1e-3 * C, rel=1e-2)
    assert group["weight_decay"] == pytest.approx(0.01 / C, rel=1e-2)
    torch.testing.assert_close(group["eps"], 1e-8 / C, rtol=1e-2, atol=0.0)
    world.optimizer.step()


def test_a_table_in_a_group_of_its_own_at_a_wrong_rate_is_mended_in_that_group() -> None:
    def wrong(world: World) -> optim.Optimizer:
        rest = [p for p in world.model.parameters() if p is not world.table]
        return optim.AdamW([{"params": rest}, {"params": [world.table], "lr": 0.1}], lr=1e-3)

    world = World(wrong)
    assert world.codes() == ["table-rate"]
    world.mend("table-rate")
    assert len(world.optimizer.param_groups) == 2
    assert world.codes() == []


def test_sgd_wants_the_square_of_the_ratio() -> None:
    world = World(lambda w: optim.SGD(w.model.parameters(), lr=0.1))
    [finding] = world.seen().findings
    assert "sgd wants 6" in finding.message  # 8 squared, hidden size measured


def test_a_rate_that_is_right_beside_settings_that_are_not_is_worth_knowing() -> None:
    world = World(lambda w: optim.AdamW([{k: v for k, v in g.items() if k != "eps"} for g in w.groups()]))
    [finding] = world.seen().findings
    assert (finding.code, finding.severity) == ("table-settings", "info")
    assert "eps 1e-08" in finding.message
    world.mend("table-settings")
    assert world.codes() == []


def test_an_optimizer_built_before_the_parameters_changed_is_found_and_mended() -> None:
    world = World(grouped)
    world.model.load_state_dict({k: v.clone() for k, v in world.model.state_dict().items()}, assign=True)
    with pytest.raises(tiebeam.InputError, match="was one parameter when the report was made"):
        world.seen()
    world.model.head.weight = world.model.embed.weight
    [finding] = [f for f in world.seen().findings if f.code == "optimizer-stale"]
    assert finding.severity == "error"
    world.mend("optimizer-stale")
    assert world.codes() == []


def test_an_optimizer_built_before_tying_holds_an_orphan() -> None:
    class LM(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(300, 16), nn.Linear(16, 300, bias=False)
            self.norm = nn.LayerNorm(16)
            nn.init.normal_(self.embed.weight, std=0.25)

        def forward(self, tokens: torch.Tensor) -> Any:
            return self.head(self.norm(self.embed(tokens)))

    model = LM()
    optimizer = optim.AdamW(model.parameters())
    model.head.weight = model.embed.weight
    report = tiebeam.inspect(model, ids())
    [finding] = tiebeam.inspect_optimizer(optimizer, model, report).findings
    assert (finding.code, finding.severity) == ("optimizer-stale", "warning")
    assert "holds 1 tensor" in finding.message


def test_a_table_in_no_group_is_found_and_mended() -> None:
    world = World(lambda w: optim.AdamW([p for p in w.model.parameters() if p is not w.table], lr=1e-3))
    assert world.codes() == ["table-not-stepped"]
    world.mend("table-not-stepped")
    assert world.codes() == []


def test_a_frozen_table_in_no_group_is_no_finding() -> None:
    world = World(plain)
    world.table.requires_grad_(False)
    world.optimizer = optim.AdamW([p for p in world.model.parameters() if p.requires_grad])
    assert world.codes() == []


def test_a_table_in_two_optimizers_is_found_and_mended() -> None:
    world = World(lambda w: [optim.AdamW(w.groups()), optim.SGD([w.table], lr=0.1)])
    assert world.codes() == ["table-in-two-groups"]
    world.mend("table-in-two-groups")
    assert len(world.holders()) == 1
    assert world.codes() == []


def split(world: World) -> list[optim.Optimizer]:
    muon, adam = split_for_muon(world.model, world.report, lr=1e-3, muon_lr=0.02)
    return [optim.Muon(muon), optim.AdamW(adam)]


def test_a_split_for_muon_leaves_nothing_to_say() -> None:
    assert World(split).codes() == []


def test_a_table_under_muon_is_found_and_moved_to_the_adam_beside_it() -> None:
    def wrong(world: World) -> list[optim.Optimizer]:
        matrices = [p for p in world.model.parameters() if p.ndim == 2]
        return [optim.Muon(matrices), optim.AdamW([p for p in world.model.parameters() if p.ndim != 2], lr=1e-3)]

    world = World(wrong)
    assert world.codes() == ["table-under-muon"]
    world.mend("table-under-muon")
    assert world.codes() == []
    assert world.holders()[0]["lr"] == pytest.approx(1e-3 * C, rel=1e-2)


class Untied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(300, 16), nn.Linear(16, 300, bias=False)
        self.norm = nn.LayerNorm(16)

    def forward(self, tokens: torch.Tensor) -> Any:
        return self.head(self.norm(self.embed(tokens)))


def test_decay_of_rows_without_gradient_is_worth_knowing_and_mended() -> None:
    world = World(grouped)
    world.model = Untied()
    world.report = tiebeam.inspect(world.model, ids())
    world.optimizer = optim.AdamW(world.model.parameters(), weight_decay=0.1)
    [finding] = world.seen().findings
    assert (finding.code, finding.severity, finding.where) == ("decay-without-gradient", "info", "embed.weight")
    world.mend("decay-without-gradient")
    assert world.codes() == []
    # What it speaks of: rows that no batch held have shrunk.
    before = world.model.get_parameter("embed.weight")[200:].clone()
    optimizer = optim.AdamW(world.model.parameters(), lr=0.1, weight_decay=0.1)
    world.model(ids()).square().mean().backward()
    optimizer.step()
    assert (world.model.get_parameter("embed.weight")[200:] / before).max() < 0.995


def test_two_parameters_on_one_storage_are_stepped_twice() -> None:
    model = Untied()
    model.head.weight = nn.Parameter(model.embed.weight.data)
    report = tiebeam.inspect(model, ids())
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    seen = tiebeam.inspect_optimizer(optimizer, model, report)
    assert "stepped-twice" in [f.code for f in seen.findings]
    with pytest.raises(tiebeam.UnhealthyTie, match="two parameters on one storage"):
        seen.assert_healthy()


SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "cosine to an absolute rate": lambda o: lr_scheduler.CosineAnnealingLR(o, 50, eta_min=5e-4),
    "cosine with restarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 30, eta_min=5e-4),
    "one largest rate": lambda o: lr_scheduler.OneCycleLR(o, max_lr=1e-3, total_steps=60),
    "a plateau with a floor": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=2, min_lr=1e-3),
    "cosine after a warmup": lambda o: lr_scheduler.SequentialLR(
        o,
        [lr_scheduler.LinearLR(o, 0.1, total_iters=10), lr_scheduler.CosineAnnealingLR(o, 40, eta_min=5e-4)],
        [10],
    ),
}
KEEP: dict[str, Callable[[Any], Any]] = {
    "cosine to nothing": lambda o: lr_scheduler.CosineAnnealingLR(o, 50),
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda step: min(1.0, step / 10)),
    "steps": lambda o: lr_scheduler.MultiStepLR(o, [10, 20]),
    "exponential": lambda o: lr_scheduler.ExponentialLR(o, 0.99),
    "one cycle with a list": lambda o: lr_scheduler.OneCycleLR(
        o, max_lr=[g["lr"] for g in o.param_groups], total_steps=60
    ),
    "plateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=2),
    "warmup, then cosine": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, total_iters=10), lr_scheduler.CosineAnnealingLR(o, 40)], [10]
    ),
}


@pytest.mark.filterwarnings("ignore:The epoch parameter")
@pytest.mark.parametrize("name", KEEP)
def test_a_schedule_that_multiplies_keeps_the_ratio(name: str) -> None:
    assert World(grouped, KEEP[name]).codes() == []


@pytest.mark.filterwarnings("ignore:The epoch parameter")
@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_that_flattens_the_ratio_is_found_and_mended(name: str) -> None:
    world = World(grouped, SCHEDULES[name])
    [finding] = world.seen().findings
    assert (finding.code, finding.severity) == ("schedule-flattens-ratio", "warning")
    assert "it is 1" in finding.message
    world.mend("schedule-flattens-ratio")
    assert world.codes() == []


def test_following_a_schedule_touches_neither_it_nor_the_optimizer() -> None:
    world = World(grouped, SCHEDULES["cosine after a warmup"])
    params = [g["params"] for g in world.optimizer.param_groups]

    def state() -> Any:
        groups = [{k: v for k, v in g.items() if k != "params"} for g in world.optimizer.param_groups]
        return copy.deepcopy((groups, world.scheduler.last_epoch, world.scheduler.get_last_lr()))

    before = state()
    weights = copy.deepcopy(world.model.state_dict())
    world.seen()
    assert state() == before
    assert all(a is b["params"] for a, b in zip(params, world.optimizer.param_groups, strict=True))
    assert all(torch.equal(v, weights[k]) for k, v in world.model.state_dict().items())


def test_a_schedule_is_followed_from_where_it_stands() -> None:
    world = World(grouped, KEEP["cosine to nothing"])
    for _ in range(30):
        world.optimizer.step()
        world.scheduler.step()
    assert world.codes() == []


@pytest.mark.filterwarnings("ignore:Detected call")
def test_a_rate_that_is_a_tensor_is_read_and_left_alone() -> None:
    world = World(lambda w: optim.AdamW(w.groups(lr=torch.tensor(1e-3)), lr=torch.tensor(1e-3)))
    world.scheduler = SCHEDULES["cosine to an absolute rate"](world.optimizer)
    before = [g["lr"].item() for g in world.optimizer.param_groups]
    assert world.codes() == ["schedule-flattens-ratio"]
    assert [g["lr"].item() for g in world.optimizer.param_groups] == before


def test_a_schedule_of_another_optimizer_is_refused() -> None:
    world = World(grouped)
    world.scheduler = lr_scheduler.ExponentialLR(plain(world), 0.9)
    with pytest.raises(tiebeam.InputError, match="is of another optimizer"):
        world.seen()


def test_what_is_no_optimizer_is_refused() -> None:
    world = World(grouped)
    world.optimizer = object()
    with pytest.raises(tiebeam.InputError, match="is no optimizer"):
        world.seen()


def test_an_optimizer_of_an_unknown_family_is_said_to_be_one_and_can_be_named() -> None:
    class Mine(reference.Reference):
        pass

    world = World(lambda w: Mine(w.model.parameters()))
    assert world.codes() == ["optimizer-unknown"]
    assert world.codes(family="adamw") == ["table-rate"]


def test_an_optimizer_for_which_no_rule_holds_says_why() -> None:
    world = World(lambda w: optim.Adadelta(w.model.parameters()))
    [finding] = world.seen().findings
    assert finding.code == "optimizer-unknown"
    assert "no value of it" in finding.message


@pytest.mark.parametrize(
    ("name", "family"),
    [("AdamW8bit", "adamw"), ("PagedAdamW", "adamw"), ("PagedLion8bit", "lion"), ("DeepSpeedCPUAdam", "adam")],
)
def test_variants_of_a_class_count_as_the_plain_one(name: str, family: str) -> None:
    made = type(name, (reference.Reference,), {})
    world = World(lambda w: made(w.groups(optimizer=family)))
    assert world.codes() == []


def test_an_optimizer_in_a_wrapper_is_opened() -> None:
    class Wrapper:
        def __init__(self, optimizer: Any) -> None:
            self.optimizer = optimizer

    assert World(lambda w: Wrapper(plain(w))).codes() == ["table-rate"]


def test_a_report_of_another_model_is_refused() -> None:
    world = World(grouped)
    world.model = Untied()
    world.optimizer = optim.SGD(world.model.parameters())
    world.report = tiebeam.inspect(gpt("D"), ids())
    with pytest.raises(tiebeam.InputError, match=r"no parameter of this model|Hint"):
        tiebeam.inspect_optimizer(optim.SGD(nn.Linear(3, 3).parameters()), nn.Linear(3, 3), world.report)


def test_swapped_arguments_are_called_swapped() -> None:
    model = torch.nn.Linear(2, 2)
    optimizer, report = torch.optim.SGD(model.parameters(), lr=1.0), tiebeam.Report(model="Linear", framework="torch")
    for wrong in ((model, optimizer, report), (optimizer, report, model), (report, model, optimizer)):
        with pytest.raises(tiebeam.InputError, match=r"(?s)swapped.*inspect_optimizer\(optimizer, model, report\)"):
            tiebeam.inspect_optimizer(*wrong)
    with pytest.raises(tiebeam.InputError, match=r"(?s)a report on the model is needed.*got: SGD, Linear, NoneType"):
        tiebeam.inspect_optimizer(optimizer, model, None)  # type: ignore[arg-type]
