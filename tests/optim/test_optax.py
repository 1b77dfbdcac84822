"""The optax transformation: two parametrisations of one function train identically."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest
from tests.optim.optax_kit import IDS, REPORTS, VOCAB, C, Small, start

import tiebeam
from tiebeam.jax import optimizer


def train(scheme: str, tx: optax.GradientTransformation, steps: int = 5, **more: bool) -> tuple[list[float], Any]:
    model, params = Small(scheme, **more), start(scheme, **more)
    state = tx.init(params)

    def loss(params: Any, ids: jax.Array) -> jax.Array:
        logits = model(params, ids)[:, :-1]
        return optax.softmax_cross_entropy_with_integer_labels(logits, ids[:, 1:]).mean()

    @partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})  # compiling is what takes time
    def step(params: Any, state: Any, ids: jax.Array) -> Any:
        value, grads = jax.value_and_grad(loss)(params, ids)
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    losses = []
    for n in range(steps):
        params, state, value = step(params, state, (IDS + n) % VOCAB)
        losses.append(float(value))
    return losses, params


def apart(make: Callable[[tiebeam.Report, Any], optax.GradientTransformation], steps: int = 5, **more: bool) -> float:
    """Largest difference of losses and of parameters, tables compared as U."""
    a, first = train("C", make(REPORTS["C"], start("C", **more)), steps, **more)
    b, second = train("D'", make(REPORTS["D'"], start("D'", **more)), steps, **more)
    assert len(set(a)) == len(a), "a training that does not move shows nothing"
    second["table"] = second["table"] / C
    leaves = jax.tree.map(lambda x, y: float(jnp.abs(x - y).max()), first, second)
    return max(*(abs(x - y) for x, y in zip(a, b, strict=True)), *jax.tree.leaves(leaves))


def with_decay(factory: Any) -> Any:
    """What optax has without weight decay, with it added to the gradient."""

    def built(learning_rate: Any, weight_decay: Any, **settings: Any) -> optax.GradientTransformation:
        return optax.chain(optax.add_decayed_weights(weight_decay), factory(learning_rate, **settings))

    return built


FAMILIES: dict[str, tuple[Any, dict[str, Any]]] = {
    "sgd": (optax.sgd, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "sgd, decayed": (with_decay(optax.sgd), {"lr": 0.1, "weight_decay": 0.25, "optimizer": "sgd"}),
    "adamw": (optax.adamw, {"lr": 1e-3, "weight_decay": 0.25, "eps": 2.0**-20, "eps_root": 2.0**-30}),
    "adamw, its own decay": (optax.adamw, {"lr": 1e-3}),
    "nadamw": (optax.nadamw, {"lr": 1e-3, "weight_decay": 0.25}),
    "adam": (optax.adam, {"lr": 1e-3}),
    "adam, decayed": (with_decay(optax.adam), {"lr": 1e-3, "weight_decay": 0.25, "eps": 1e-8, "optimizer": "adam"}),
    "adamax": (optax.adamax, {"lr": 1e-3}),
    "lion": (optax.lion, {"lr": 1e-4, "weight_decay": 0.25}),
    "rmsprop": (optax.rmsprop, {"lr": 1e-3, "momentum": 0.9, "eps": 2.0**-20, "initial_scale": 0.25}),
    "rmsprop, eps beside": (optax.rmsprop, {"lr": 1e-3, "eps": 2.0**-20, "eps_in_sqrt": False}),
    "adagrad": (optax.adagrad, {"lr": 1e-2}),
    "adafactor": (
        partial(optax.adafactor, min_dim_size_to_factor=16), {"lr": 1e-2, "weight_decay": 0.01, "eps": 2.0**-60},
    ),
    "adafactor-unscaled": (
        partial(optax.adafactor, min_dim_size_to_factor=16, multiply_by_parameter_scale=False),
        {"lr": 1e-3, "weight_decay": 0.01},
    ),
    "adafactor-unscaled, as a setting of the call": (
        partial(optax.adafactor, min_dim_size_to_factor=16),
        {"lr": 1e-3, "weight_decay": 0.01, "multiply_by_parameter_scale": False},
    ),
    "lamb": (optax.lamb, {"lr": 1e-2, "weight_decay": 0.25}),
    "lars": (optax.lars, {"lr": 1.0, "weight_decay": 0.25, "eps": 2.0**-10}),
}  # fmt: skip


@pytest.mark.parametrize("name", FAMILIES)
def test_two_parametrisations_train_identically(name: str) -> None:
    factory, told = FAMILIES[name]
    assert apart(lambda report, params: optimizer(factory, report, params, **told)) == 0.0


@pytest.mark.slow
def test_a_gpt_trains_identically_too() -> None:
    assert apart(lambda r, p: optimizer(optax.adamw, r, p, lr=1e-3, weight_decay=0.25), gpt=True) == 0.0


def test_muon_trains_the_matrices_and_adam_the_table() -> None:
    def make(report: tiebeam.Report, params: Any) -> optax.GradientTransformation:
        return optimizer(
            optax.contrib.muon, report, params, lr=0.02, weight_decay=0.25, beside=optax.adamw, beside_lr=1e-3
        )

    assert apart(make) == 0.0
    states = make(REPORTS["D'"], start("D'")).init(start("D'")).inner_states
    assert set(states) == {"matrices", "vectors", "table table"}


def test_schedules_are_scaled() -> None:
    schedule = optax.warmup_cosine_decay_schedule(0.0, 2e-3, 2, 6, 1e-4)
    decay = optax.linear_schedule(0.25, 0.125, 4)

    def make(report: tiebeam.Report, params: Any) -> optax.GradientTransformation:
        return optimizer(optax.adamw, report, params, lr=schedule, weight_decay=decay)

    assert apart(make, steps=7) == 0.0


@pytest.mark.parametrize("wrong", ["lr", "eps"])
def test_a_setting_that_is_not_scaled_makes_them_differ(wrong: str) -> None:
    def make(report: tiebeam.Report, params: Any) -> optax.GradientTransformation:
        if wrong == "lr":
            return optax.adamw(1e-3)
        return optimizer(lambda lr: optax.adam(lr, eps=1e-3), report, params, lr=1e-3, optimizer="adam")

    assert apart(make) > 1e-5


@pytest.mark.parametrize("lr", [1e-3, optax.linear_schedule(1e-3, 0.0, 10)], ids=["number", "schedule"])
def test_hyperparameters_can_be_injected(lr: Any) -> None:
    tx = optimizer(optax.inject_hyperparams(optax.adamw), REPORTS["D'"], start("D'"), lr=lr, weight_decay=0.5)
    assert apart(lambda r, p: optimizer(optax.inject_hyperparams(optax.adamw), r, p, lr=lr, weight_decay=0.5)) == 0.0
    states = tx.init(start("D'")).inner_states
    rates = {k: float(s.inner_state.hyperparams["learning_rate"]) for k, s in states.items()}
    assert rates == pytest.approx({"matrices": 1e-3, "vectors": 1e-3, "table table": C * 1e-3})
    decays = {k: float(s.inner_state.hyperparams["weight_decay"]) for k, s in states.items()}
    assert decays == {"matrices": 0.5, "vectors": 0.0, "table table": 0.5 / C}


def test_gradients_can_be_accumulated() -> None:
    def make(report: tiebeam.Report, params: Any) -> Any:
        return optax.MultiSteps(optimizer(optax.adamw, report, params, lr=1e-3), 2)

    assert apart(make) == 0.0


def test_what_a_partial_fixes_is_scaled_too() -> None:
    factory = partial(optax.adamw, weight_decay=0.5, eps=2.0**-12)
    assert apart(lambda r, p: optimizer(factory, r, p, lr=1e-3)) == 0.0


def test_clipping_by_the_global_norm_is_not_covariant() -> None:
    def make(report: tiebeam.Report, params: Any) -> optax.GradientTransformation:
        return optax.chain(optax.clip_by_global_norm(0.5), optimizer(optax.sgd, report, params, lr=0.1))

    assert apart(make) > 1e-3


@pytest.mark.parametrize(
    ("factory", "told", "complaint"),
    [
        (optax.adadelta, {}, "no learning-rate rule holds for adadelta"),
        (optax.radam, {}, "no learning-rate rule holds for radam"),
        (lambda lr: optax.sgd(lr), {}, "the family of '<lambda>' is not known"),
        (optax.sgd, {"weight_decay": 0.1}, "takes no weight decay"),
        (optax.contrib.muon, {}, "takes the matrices of the body alone"),
        (optax.adamw, {"beside": optax.sgd, "beside_lr": 1.0}, "adamw trains all parameters"),
        (optax.sgd, {"base_width": 16}, "base_width does not apply"),
    ],
)
def test_what_cannot_be_is_refused(factory: Any, told: dict[str, Any], complaint: str) -> None:
    with pytest.raises(tiebeam.RangeError, match=complaint):
        optimizer(factory, REPORTS["D'"], start("D'"), **{"lr": 1.0, **told})


@pytest.mark.parametrize("told", [{}, {"optimizer": "adamw"}], ids=["alone", "with its family"])
def test_what_a_factory_returned_is_refused(told: dict[str, Any]) -> None:
    with pytest.raises(tiebeam.InputError, match=r"pass optax.adamw, not optax.adamw\(1e-3\)"):
        optimizer(optax.adamw(1e-3), REPORTS["D'"], start("D'"), lr=1.0, **told)  # type: ignore[arg-type]


@pytest.mark.parametrize("told", [{}, {"optimizer": "adamw"}])
def test_a_name_in_the_place_of_the_factory_is_refused(told: dict[str, Any]) -> None:
    with pytest.raises(tiebeam.InputError, match=r"(?s)'adamw'.*pass optax.adamw"):
        optimizer("adamw", REPORTS["C"], start("C"), lr=1e-3, **told)  # type: ignore[arg-type]


def test_arguments_that_are_swapped_are_refused() -> None:
    with pytest.raises(tiebeam.InputError, match=r"(?s)a report on the model is needed.*tiebeam.inspect"):
        optimizer(optax.adamw, start("C"), REPORTS["C"], lr=1e-3)


def test_params_of_another_model_are_refused() -> None:
    with pytest.raises(tiebeam.InputError, match="no parameter of this model"):
        optimizer(optax.adamw, REPORTS["D'"], {"other": jnp.ones((3, 3))}, lr=1.0)
    tx = optimizer(optax.adamw, REPORTS["D'"], start("D'"), lr=1.0)
    with pytest.raises(tiebeam.InputError, match="it knows no 'other'"):
        tx.init({"other": jnp.ones((3, 3))})


def test_base_width_scales_the_body_and_leaves_the_table() -> None:
    params = start("D'")
    tx = optimizer(optax.lion, REPORTS["D'"], params, lr=1.0, weight_decay=0.0, base_width=16, base_readout_factor=0.5)
    updates, _ = tx.update(jax.tree.map(jnp.ones_like, params), tx.init(params), params)
    assert float(jnp.abs(updates["mix"]).max()) == 0.25
    assert float(jnp.abs(updates["table"]).max()) == 2.0
