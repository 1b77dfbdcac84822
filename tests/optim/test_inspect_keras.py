"""What Keras optimizers do with a table, seen; what is printed as a fix mends it."""

from collections.abc import Callable
from typing import Any

import keras
import pytest
from keras.optimizers import schedules
from tests.optim.keras_pair import IDS, LOSS, OWNER, C, pair, put, small

import tiebeam
from tiebeam.keras import optimizer

ADAMW = keras.optimizers.AdamW


def world() -> tuple[keras.Model, tiebeam.Report]:
    _, (model, report, start) = pair()
    put(model, start)
    return model, report


def codes(made: Any, **more: Any) -> list[str]:
    model, report = world()
    return [f.code for f in tiebeam.inspect_optimizer(made, model, report, **more).findings]


def multi(*rates: Any) -> Any:
    """Keras' own way to have several: the body's optimizer, the table's."""
    body, table = (ADAMW(rate) for rate in rates)
    made = keras.optimizers.MultiOptimizer(keras.optimizers.OptimizerMap(body, {OWNER: table}))
    made.build(world()[0].trainable_variables)
    return made


QUIET: dict[str, Callable[[], Any]] = {
    "groups of adamw": lambda: optimizer(ADAMW, *world(), lr=1e-3, weight_decay=0.1),
    "groups of sgd": lambda: optimizer(keras.optimizers.SGD, *world(), lr=1e-3, weight_decay=0.1),
    "groups of rmsprop": lambda: optimizer(keras.optimizers.RMSprop, *world(), lr=1e-3, weight_decay=0.1),
    "groups of adagrad": lambda: optimizer(keras.optimizers.Adagrad, *world(), lr=1e-3, weight_decay=0.1),
    "groups on a schedule": lambda: optimizer(ADAMW, *world(), lr=schedules.CosineDecay(1e-3, 100)),
    "groups of muon": lambda: optimizer(keras.optimizers.Muon, *world(), lr=1e-2, beside=ADAMW, beside_lr=1e-3),
    "scaling the loss": lambda: keras.optimizers.LossScaleOptimizer(optimizer(ADAMW, *world(), lr=1e-3)),
    "several of Keras": lambda: multi(1e-3, C * 1e-3),
    "schedules alike": lambda: multi(schedules.CosineDecay(1e-3, 100), schedules.CosineDecay(C * 1e-3, 100)),
}


@pytest.mark.parametrize("what", QUIET)
def test_what_keeps_the_ratio_is_quiet(what: str) -> None:
    assert [c for c in codes(QUIET[what]()) if c != "table-settings"] == []


@pytest.mark.parametrize("what", [w for w in QUIET if w.startswith("groups")])
def test_groups_of_the_report_have_every_setting_right(what: str) -> None:
    assert codes(QUIET[what]()) == []


FOUND: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "one rate for all": (lambda: ADAMW(1e-3), ["table-rate"]),
    "one rate for all, on a schedule": (lambda: ADAMW(schedules.CosineDecay(1e-3, 100)), ["table-rate"]),
    "the wrong power": (lambda: multi(1e-3, C**2 * 1e-3), ["table-rate"]),
    "one least rate for both": (
        lambda: multi(
            schedules.PolynomialDecay(1e-3, 100, end_learning_rate=1e-4),
            schedules.PolynomialDecay(C * 1e-3, 100, end_learning_rate=1e-4),
        ),
        ["schedule-flattens-ratio"],
    ),
    "under muon": (lambda: keras.optimizers.Muon(1e-3, exclude_embeddings=False), ["table-under-muon"]),
    "in muon's adam": (lambda: keras.optimizers.Muon(1e-3, exclude_layers=["mixer"]), ["table-rate"]),
    "unknown": (lambda: keras.optimizers.Ftrl(1e-3), ["optimizer-unknown"]),
}  # fmt: skip


@pytest.mark.parametrize("what", FOUND)
def test_what_does_not_is_found(what: str) -> None:
    made, expected = FOUND[what]
    assert [c for c in codes(made()) if c != "table-settings"] == expected


@pytest.mark.parametrize("rate", [1e-3, schedules.CosineDecay(1e-3, 100)])
def test_the_fix_makes_it_anew(rate: Any) -> None:
    model, report = world()
    before = ADAMW(rate, weight_decay=0.02, beta_1=0.8, global_clipnorm=1.0)
    [finding] = tiebeam.inspect_optimizer(before, model, report).findings
    names = {"optimizer": before, "model": model, "report": report, "tiebeam": tiebeam}
    exec(finding.fix, names)
    after = names["optimizer"]
    assert tiebeam.inspect_optimizer(after, model, report).findings == ()
    assert (after.global_clipnorm, after.groups[0].beta_1, after.groups[0].weight_decay) == (1.0, 0.8, 0.02)
    assert type(after._learning_rate) is type(before._learning_rate)


def test_an_optimizer_of_another_model_is_stale() -> None:
    model, report = world()
    other = small("C")
    made = ADAMW(1e-3)
    made.build(other.trainable_variables)
    [finding] = tiebeam.inspect_optimizer(made, model, report).findings
    assert (finding.code, finding.severity) == ("optimizer-stale", "error")


def test_a_table_that_was_frozen_when_it_was_built_is_not_stepped() -> None:
    model = small("D'")
    model.get_layer("embedding_of_tokens").trainable = False
    made = ADAMW(1e-3)
    made.build(model.trainable_variables)
    model.get_layer("embedding_of_tokens").trainable = True
    report = tiebeam.inspect(model, IDS)
    [finding] = tiebeam.inspect_optimizer(made, model, report).findings
    assert (finding.code, finding.where) == ("table-not-stepped", OWNER)


def test_looking_builds_nothing_and_says_so() -> None:
    model, report = world()
    made = ADAMW(1e-3)
    seen = tiebeam.inspect_optimizer(made, model, report)
    assert not made.built
    assert "not built" in " ".join(seen.notes)
    assert seen.notes[0].startswith(f"{OWNER}: stepped as adamw, rate 0.001 = 1 times that of the rest, decay ")


def test_what_is_no_optimizer_of_keras_is_refused() -> None:
    model, report = world()
    with pytest.raises(tiebeam.InputError, match="no optimizer of Keras"):
        tiebeam.inspect_optimizer(object(), model, report)
    with pytest.raises(tiebeam.InputError, match="part of a Keras optimizer"):
        tiebeam.inspect_optimizer(ADAMW(1e-3), model, report, keras.callbacks.ReduceLROnPlateau())


def test_a_map_that_nobody_has_asked_yet_is_refused() -> None:
    model, report = world()
    made = keras.optimizers.MultiOptimizer(lambda variable: ADAMW(1e-3))
    with pytest.raises(tiebeam.InputError, match="does not say yet"):
        tiebeam.inspect_optimizer(made, model, report)


def test_the_model_that_fit_trained_is_read_as_it_is() -> None:
    model, report = world()
    model.compile(optimizer(ADAMW, model, report, lr=1e-3), LOSS)
    assert [f.code for f in tiebeam.inspect_optimizer(model.optimizer, model, report).findings] == []
