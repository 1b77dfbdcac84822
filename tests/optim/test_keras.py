"""The grouped Keras optimizer: two parametrisations train identically, by `model.fit`, saved and loaded too."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from keras.optimizers import schedules
from tests.keras.models.kit import numbers
from tests.optim.keras_pair import IDS, LOSS, OWNER, C, apart, fitted, pair, put, small

import tiebeam
from tiebeam.keras import optimizer

ADAMW = keras.optimizers.AdamW
FAMILIES: dict[str, tuple[Any, dict[str, Any]]] = {
    "sgd": (keras.optimizers.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.25}),
    "adam, decayed": (keras.optimizers.Adam, {"lr": 1e-3, "weight_decay": 0.25, "epsilon": 2.0**-20}),
    "adamw": (ADAMW, {"lr": 1e-3, "amsgrad": True}),
    "nadam": (keras.optimizers.Nadam, {"lr": 1e-3, "weight_decay": 0.25}),
    "adamax": (keras.optimizers.Adamax, {"lr": 1e-3, "weight_decay": 0.25}),
    "lion": (keras.optimizers.Lion, {"lr": 1e-4, "weight_decay": 0.25}),
    "rmsprop": (keras.optimizers.RMSprop, {"lr": 1e-3, "momentum": 0.9, "weight_decay": 0.25, "epsilon": 2.0**-20}),
    "adagrad": (keras.optimizers.Adagrad, {"lr": 1e-2, "weight_decay": 0.25}),
    "adafactor": (partial(keras.optimizers.Adafactor, epsilon_2=2.0**-20), {"lr": 1e-2, "weight_decay": 0.01}),
    "lamb": (keras.optimizers.Lamb, {"lr": 1e-2, "weight_decay": 0.25}),
    "muon": (keras.optimizers.Muon, {"lr": 1e-2, "beside": ADAMW, "beside_lr": 1e-3, "weight_decay": 0.25}),
    "clipped one by one": (keras.optimizers.SGD, {"lr": 0.1, "clipnorm": 2.0**-4}),
    "accumulating and averaging": (ADAMW, {"lr": 1e-3, "gradient_accumulation_steps": 2, "use_ema": True}),
    "scheduled": (ADAMW, {"lr": schedules.CosineDecay(1e-3, 6, alpha=0.1)}),
}  # fmt: skip


def made(name: str, **more: Any) -> Callable[..., Any]:
    factory, told = FAMILIES[name]
    return lambda model, report, ratios: optimizer(factory, model, report, ratios=ratios, **{**told, **more})


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n == "sgd" else pytest.mark.slow) for n in FAMILIES])
def test_two_parametrisations_train_identically(name: str) -> None:
    assert apart(made(name)) == 0.0


def test_clipping_by_the_global_norm_is_of_all_gradients_together_and_tells_the_two_apart() -> None:
    assert apart(made("sgd", global_clipnorm=0.25)) > 1e-3


def test_a_group_of_one_rule_is_the_optimizer_that_keras_would_have_used() -> None:
    """Body and table at one rate, with clipping, averaging and accumulation: nothing is lost by sharing out."""
    (model, report, start), _ = pair()
    settings = {"global_clipnorm": 0.25, "use_ema": True, "gradient_accumulation_steps": 2}
    losses, ends = [], []
    for build in (
        lambda: ADAMW(1e-2, weight_decay=0.0, **settings),
        lambda: optimizer(ADAMW, model, report, lr=1e-2, weight_decay=0.0, ratios={OWNER: 1.0}, **settings),
    ):
        put(model, start)
        losses.append(fitted(model, build()))
        ends.append(numbers(model.trainable_variables[0]))
    assert losses[0] == losses[1]
    assert np.array_equal(*ends)


def saved_and_loaded(model: keras.Model, folder: Path) -> keras.Model:
    model.save(folder / "model.keras")
    return keras.models.load_model(folder / "model.keras", safe_mode=True)


@pytest.mark.parametrize("name", ["sgd", "scheduled", "muon"])
def test_a_loaded_model_goes_on_as_the_saved_one(name: str, tmp_path: Path) -> None:
    _, (model, report, start) = pair()
    put(model, start)
    fitted(model, made(name)(model, report, {OWNER: C}), epochs=1)
    loaded = saved_and_loaded(model, tmp_path)
    assert loaded.optimizer.kinds == model.optimizer.kinds
    rates = [[float(one.learning_rate) for one in m.optimizer.groups] for m in (model, loaded)]
    assert rates[0] == rates[1]

    def go_on(m: keras.Model) -> list[float]:
        history = m.fit(IDS[:, :-1], IDS[:, 1:], batch_size=2, epochs=2, shuffle=False, verbose=0)
        return [float(x) for x in history.history["loss"]]

    assert go_on(model) == go_on(loaded)


def test_a_saved_optimizer_holds_each_state_once(tmp_path: Path) -> None:
    import zipfile

    import h5py

    _, (model, report, start) = pair()
    put(model, start)
    fitted(model, made("adamw")(model, report, {OWNER: C}), epochs=1)
    model.save(tmp_path / "model.keras")
    with zipfile.ZipFile(tmp_path / "model.keras") as archive:
        archive.extract("model.weights.h5", tmp_path)
    sizes: list[int] = []
    with h5py.File(tmp_path / "model.weights.h5") as file:
        file["optimizer"].visititems(lambda _, x: sizes.append(x.size) if isinstance(x, h5py.Dataset) else None)
    assert sum(sizes) == sum(int(np.prod(v.shape)) for v in model.optimizer.variables)


def test_a_changed_model_refuses_the_loaded_optimizer(tmp_path: Path) -> None:
    _, (model, report, start) = pair()
    put(model, start)
    model.compile(optimizer(ADAMW, model, report, lr=1e-3), LOSS)
    again = keras.optimizers.deserialize(keras.optimizers.serialize(model.optimizer))
    with pytest.raises(tiebeam.InputError, match="saved with other variables"):
        again.build(model.trainable_variables[:2])


@pytest.mark.filterwarnings("ignore:The model has")
def test_what_was_frozen_when_it_was_made_is_refused() -> None:
    model = small("C")
    report = tiebeam.inspect(model, IDS)
    mixer = model.get_layer("embedding_mixer")
    mixer.trainable = False
    frozen = optimizer(ADAMW, model, report, lr=1e-3)
    mixer.trainable = True
    with pytest.raises(tiebeam.InputError, match="no group for what it is to train") as told:
        frozen.build(model.trainable_variables)
    assert "embedding_mixer/kernel" in str(told.value)


def test_callbacks_set_the_rate_and_every_share_follows() -> None:
    _, (model, report, start) = pair()
    put(model, start)
    lower = keras.callbacks.LearningRateScheduler(lambda epoch: 1e-3 / 2**epoch)
    fitted(model, optimizer(ADAMW, model, report, lr=1e-3, ratios={OWNER: C}), epochs=2, callbacks=[lower])
    rates = dict(zip(model.optimizer.kinds, (float(o.learning_rate) for o in model.optimizer.groups), strict=True))
    assert rates[f"table {OWNER}"] == C * rates["matrices"] == pytest.approx(4e-3)


def test_every_variable_is_in_one_group_and_names_decide_nothing() -> None:
    model = small("D'", positions=True)
    report = tiebeam.inspect(model, IDS)
    made_ = optimizer(keras.optimizers.Muon, model, report, lr=1e-2, beside=ADAMW, beside_lr=1e-3)
    held = {kind: [v.path for v in made_.variables_of(i)] for i, kind in enumerate(made_.kinds)}
    assert held["matrices"] == ["embedding_mixer/kernel"]
    assert held["embeddings"] == ["positions/embeddings"]
    assert held[f"table {OWNER}"] == [OWNER]
    assert sorted(p for paths in held.values() for p in paths) == sorted(v.path for v in model.trainable_variables)
    made_.build(model.trainable_variables)
    [muon] = [one for one in made_.groups if isinstance(one, keras.optimizers.Muon)]
    assert not muon._should_use_adamw(model.get_layer("embedding_mixer").kernel)


@pytest.mark.slow
def test_half_precision_scales_its_loss_around_the_groups() -> None:
    (model, report, start), _ = pair()
    put(model, start)
    inner = optimizer(ADAMW, model, report, lr=1e-3)
    losses = fitted(model, keras.optimizers.LossScaleOptimizer(inner))
    assert losses[-1] < losses[0]


def test_what_is_excluded_from_decay_is_not_decayed_in_its_group() -> None:
    (model, report, start), _ = pair()
    put(model, start)
    made = optimizer(keras.optimizers.SGD, model, report, lr=0.5, weight_decay=0.5)
    made.exclude_from_weight_decay(var_names=["embeddings"])
    still = [keras.ops.zeros(v.shape) for v in model.trainable_variables]
    before = {v.path: numbers(v).copy() for v in model.trainable_variables}
    made.apply(still, model.trainable_variables)
    moved = {v.path for v in model.trainable_variables if not np.array_equal(before[v.path], numbers(v))}
    assert moved
    assert not any(path.endswith("embeddings") for path in moved)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a lambda": ({"lr": lambda: 1e-3}, "learning rates of a Keras optimizer"),
    "adadelta": ({"factory": keras.optimizers.Adadelta, "lr": 1e-3}, "no learning-rate rule holds for adadelta"),
    "muon alone": ({"factory": keras.optimizers.Muon, "lr": 1e-3}, "matrices of the body alone"),
    "no optimizer": ({"factory": lambda learning_rate: keras.layers.Dense(1), "lr": 1e-3}, "makes no optimizer"),
    "an instance": ({"factory": keras.optimizers.Lion(1e-3), "lr": 1e-3}, r"pass the class Lion, not Lion\(...\)"),
    "a name": ({"factory": "adamw", "lr": 1e-3}, r"(?s)'adamw'.*pass keras.optimizers.AdamW"),
    "a strange family": ({"factory": keras.optimizers.Ftrl, "lr": 1e-3}, "family is unknown"),
    "an endless rate": ({"lr": float("inf")}, "learning rates of a Keras optimizer"),
    "a decay that adds": ({"lr": 1e-3, "weight_decay": -0.1}, "weight_decay is no rate"),
    "no table": ({"lr": 1e-3, "ratios": {"mlp": 2.0}}, "ratios= names what is no trainable table"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_done_is_refused(what: str) -> None:
    (model, report, _), _ = pair()
    told, message = REFUSED[what]
    with pytest.raises(tiebeam.TiebeamError, match=message):
        optimizer(told.pop("factory", ADAMW), model, report, **told)


def test_what_is_no_report_is_refused() -> None:
    (model, report, _), _ = pair()
    with pytest.raises(tiebeam.InputError, match=r"(?s)a report on the model is needed.*tiebeam.inspect"):
        optimizer(ADAMW, report, model, lr=1e-3)


def test_a_report_of_another_model_is_refused() -> None:
    (model, report, _), _ = pair()
    other = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    with pytest.raises(tiebeam.InputError, match="no parameter of this model"):
        optimizer(ADAMW, other, report, lr=1e-3)
    assert model.built
