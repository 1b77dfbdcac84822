"""Looking at an optax transformation: what it would do to the table."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import optax
import pytest
from flax import nnx
from tests.optim.optax_kit import REPORTS, TOKENS, C, Eqx, Nnx, Small, start

import tiebeam
from tiebeam.jax import optimizer


def seen(tx: Any, **more: Any) -> list[str]:
    report = tiebeam.inspect_optimizer(tx, Small("D'"), REPORTS["D'"], params=start("D'"), **more)
    return [f.code for f in report.findings]


PLAIN: dict[str, Any] = {
    "sgd": optax.sgd(0.1, momentum=0.9),
    "adamw": optax.adamw(1e-3),
    "lion": optax.lion(1e-3),
    "rmsprop": optax.rmsprop(1e-3),
    "injected": optax.inject_hyperparams(optax.adam)(1e-3),
    "clipped": optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3)),
    "accumulated": optax.MultiSteps(optax.adamw(1e-3), 4),
}


@pytest.mark.parametrize("name", PLAIN)
def test_one_rate_for_all_is_found(name: str) -> None:
    assert seen(PLAIN[name]) == ["table-rate"]


@pytest.mark.parametrize("name", ["sgd", "adamw", "lion", "lamb"])
def test_a_transformation_that_was_made_from_the_report_leaves_nothing_to_say(name: str) -> None:
    assert seen(optimizer(getattr(optax, name), REPORTS["D'"], start("D'"), lr=0.01)) == []


@pytest.mark.parametrize("name", ["lamb", "adafactor"])
def test_optimizers_that_follow_the_parameter_s_size_need_no_groups(name: str) -> None:
    assert seen(getattr(optax, name)(1e-2)) == []


def test_schedules_that_flatten_the_ratio_are_found() -> None:
    def by_hand(floor: float) -> optax.GradientTransformation:
        rates = [optax.cosine_decay_schedule(r, 10_000, floor / r) for r in (1e-3, C * 1e-3)]
        return optax.multi_transform(
            {"rest": optax.adam(rates[0]), "table": optax.adam(rates[1])},
            lambda tree: {k: "table" if k == "table" else "rest" for k in tree},
        )

    assert seen(by_hand(0.0)) == []
    assert seen(by_hand(5e-4)) == ["schedule-flattens-ratio"]
    warm = optax.warmup_cosine_decay_schedule(0.0, 1e-3, 100, 10_000, 1e-4)
    assert seen(optimizer(optax.adamw, REPORTS["D'"], start("D'"), lr=warm)) == []


def test_a_decay_that_does_not_follow_the_scale_is_found() -> None:
    def make(decay: float) -> optax.GradientTransformation:
        return optax.multi_transform(
            {"rest": optax.adamw(1e-3, weight_decay=0.1), "table": optax.adamw(C * 1e-3, weight_decay=decay)},
            lambda tree: {k: "table" if k == "table" else "rest" for k in tree},
        )

    assert seen(make(0.1)) == ["table-settings"]
    [finding] = tiebeam.inspect_optimizer(make(0.1), Small("D'"), REPORTS["D'"], params=start("D'")).findings
    here, wanted = re.search(r"weight_decay (\S+) where (\S+) follows", finding.message).groups()  # type: ignore[union-attr]
    assert (float(here), float(wanted)) == pytest.approx((0.1, 0.1 / C), rel=1e-4)  # as it was given
    assert seen(make(0.1 / C)) == []


def test_a_table_that_is_not_stepped_is_found() -> None:
    frozen = optax.multi_transform(
        {"rest": optax.adamw(1e-3), "table": optax.set_to_zero()},
        lambda tree: {k: "table" if k == "table" else "rest" for k in tree},
    )
    assert seen(frozen) == ["table-not-stepped"]


def test_a_table_under_muon_is_found() -> None:
    assert seen(optax.contrib.muon(1e-3)) == ["table-under-muon"]
    beside = optimizer(optax.contrib.muon, REPORTS["D'"], start("D'"), lr=1e-3, beside=optax.adamw, beside_lr=1e-3)
    assert seen(beside) == []


@pytest.mark.parametrize("make", [lambda: Nnx(nnx.Rngs(0)), lambda: Eqx(jax.random.key(0))], ids=["nnx", "equinox"])
def test_models_that_hold_their_arrays_need_no_params(make: Callable[[], Any]) -> None:
    model = make()
    report = tiebeam.inspect(model, TOKENS if isinstance(model, nnx.Module) else TOKENS[0])
    looked = tiebeam.inspect_optimizer(optax.adamw(1e-3), model, report)
    assert [f.code for f in looked.findings] == ["table-rate"]
    [note] = looked.notes
    assert note == f"{report.tables[0].name}: stepped as adamw, 1 times as far as the rest in a trial step"


def test_what_is_no_transformation_is_refused() -> None:
    with pytest.raises(tiebeam.InputError, match="a state holds no rates"):
        seen(optax.adamw(1e-3).init(start("D'")))
    with pytest.raises(tiebeam.InputError, match="part of an optax transformation"):
        seen(optax.adamw(1e-3), scheduler=optax.constant_schedule(1.0))
    with pytest.raises(tiebeam.InputError, match="does not take these params"):
        seen(optax.multi_transform({"a": optax.sgd(1.0)}, {"other": "a"}))


def test_a_rule_by_name_that_froze_both_roles_is_found(shared: Path) -> None:
    rows = map(json.loads, (shared / "cases" / "cases.jsonl").read_text().splitlines())
    [row] = [r for r in rows if r["id"] == "fx-optax-label-misses-head"]
    names: dict[str, Any] = {"__name__": row["id"]}
    exec(compile(row["input"], row["id"], "exec"), names)
    report = tiebeam.inspect(names["model"], names["ids"], params=names["params"])
    found = tiebeam.inspect_optimizer(names["tx"], names["model"], report, params=names["params"]).findings
    assert [f.code for f in found] == ["table-not-stepped"]
    tx = optimizer(optax.adamw, report, names["params"], lr=1e-3)
    assert not tiebeam.inspect_optimizer(tx, names["model"], report, params=names["params"]).findings
