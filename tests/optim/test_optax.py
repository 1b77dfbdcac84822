"""The optax transformation: two parametrisations of one function train identically, and leaves are told by path."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
import pytest
from flax import linen, nnx

import tiebeam
from tiebeam.jax import optimizer
from tiebeam.zoo.jax.functional import FunctionalGpt, rms_norm
from tiebeam.zoo.schemes import SCHEMES

VOCAB, WIDTH, C = 61, 64, 8.0
IDS = jnp.arange(24).reshape(2, 12) * 7 % VOCAB


class Small:
    """A residual model with one layer: quick to compile, and the zoo's GPT where that is wanted."""

    def __init__(self, scheme: str, *, gpt: bool = False) -> None:
        self.scheme = SCHEMES[scheme]
        self.gpt = FunctionalGpt.of(scheme, vocab=VOCAB, width=WIDTH, layers=1) if gpt else None

    def init(self, key: jax.Array) -> Any:
        if self.gpt is not None:
            return self.gpt.init(key)
        a, b = jax.random.split(key)
        return {
            "table": jax.random.normal(a, (VOCAB, WIDTH)) * self.scheme.table_std(WIDTH),
            "mix": jax.random.normal(b, (WIDTH, WIDTH)) / 8,
            "gain": jnp.ones(WIDTH),
        }

    def __call__(self, params: Any, ids: jax.Array) -> jax.Array:
        if self.gpt is not None:
            return self.gpt(params, ids)
        x = params["table"][ids] * self.scheme.lookup_factor(WIDTH)
        x = rms_norm(x + jnp.tanh(x @ params["mix"]), params["gain"])
        return x @ params["table"].T * self.scheme.readout_factor(WIDTH)


def report_of(scheme: str, **more: bool) -> tiebeam.Report:
    """On shapes alone, where a hidden state behind a norm has size 1 and c is exact."""
    model = Small(scheme, **more)
    return tiebeam.inspect(model, IDS, params=jax.eval_shape(model.init, jax.random.key(0)))


REPORTS = {scheme: report_of(scheme) for scheme in ("C", "D'")}


def start(scheme: str, **more: bool) -> Any:
    params = Small("C", **more).init(jax.random.key(0))
    return params if scheme == "C" else {**params, "table": params["table"] * C}


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
        {"lr": 1e-3, "weight_decay": 0.01, "optimizer": "adafactor-unscaled"},
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


# Kinds of models


class Linen(linen.Module):
    """A table called `words`, and positions called `embedding`."""

    @linen.compact
    def __call__(self, ids: jax.Array) -> jax.Array:
        words = linen.Embed(300, 16, name="words")
        x = words(ids) + self.param("embedding", linen.initializers.normal(0.02), (12, 16))[: ids.shape[1]]
        x = x + linen.Dense(16)(x)
        return words.attend(linen.LayerNorm()(x)) * 0.25


class Nnx(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.words = nnx.Embed(300, 16, rngs=rngs)
        self.embedding = nnx.Param(jnp.zeros((12, 16)))
        self.mid, self.norm = nnx.Linear(16, 16, rngs=rngs), nnx.LayerNorm(16, rngs=rngs)

    def __call__(self, ids: jax.Array) -> jax.Array:
        x = self.words(ids) + self.embedding[: ids.shape[1]]
        return self.words.attend(self.norm(x + self.mid(x))) * 0.25


class Eqx(eqx.Module):
    words: eqx.nn.Embedding
    embedding: jax.Array
    mid: eqx.nn.Linear
    norm: eqx.nn.LayerNorm

    def __init__(self, key: jax.Array) -> None:
        self.words = eqx.nn.Embedding(300, 16, key=key)
        self.embedding = jnp.zeros((12, 16))
        self.mid, self.norm = eqx.nn.Linear(16, 16, key=key), eqx.nn.LayerNorm(16)

    def __call__(self, ids: jax.Array) -> jax.Array:
        x = jax.vmap(self.words)(ids) + self.embedding[: ids.shape[0]]
        return 0.25 * jax.vmap(self.norm)(x + jax.vmap(self.mid)(x)) @ self.words.weight.T


TOKENS = jnp.arange(8)[None] * 7
SIGNS = {"lr": 1.0, "weight_decay": 0.0}  # Lion moves every entry by its rate


def steps_of(updates: Any) -> dict[str, float]:
    """How far a step moved each leaf."""
    return {
        jax.tree_util.keystr(path): float(jnp.abs(leaf).max())
        for path, leaf in jax.tree_util.tree_leaves_with_path(updates)
    }


def assert_table_alone(moved: dict[str, float]) -> None:
    assert {k: v for k, v in moved.items() if "words" not in k} == dict.fromkeys(
        (k for k in moved if "words" not in k), pytest.approx(1.0)
    )
    [table] = [v for k, v in moved.items() if "words" in k]
    assert table == pytest.approx(4.0, rel=1e-3)


@pytest.mark.parametrize("bare", [False, True], ids=["variables", "params"])
def test_linen_trees_with_or_without_their_collection(bare: bool) -> None:
    model = Linen()
    variables = model.init(jax.random.key(0), TOKENS)
    report = tiebeam.inspect(model, TOKENS, params=variables)
    tree = variables["params"] if bare else variables
    tx = optimizer(optax.lion, report, tree, **SIGNS)
    updates, _ = tx.update(jax.tree.map(jnp.ones_like, tree), tx.init(tree), tree)
    assert_table_alone(steps_of(updates))


def test_an_nnx_optimizer_takes_it() -> None:
    model = Nnx(nnx.Rngs(0))
    report = tiebeam.inspect(model, TOKENS)
    tx = optimizer(optax.lion, report, nnx.state(model, nnx.Param), **SIGNS)
    trained = nnx.Optimizer(model, tx, wrt=nnx.Param)
    before = jax.tree.map(jnp.copy, nnx.to_pure_dict(nnx.state(model, nnx.Param)))
    loss, grads = nnx.value_and_grad(lambda m: (m(TOKENS) ** 2).mean())(model)
    trained.update(model, jax.tree.map(jnp.ones_like, grads))
    assert float(loss) > 0
    after = nnx.to_pure_dict(nnx.state(model, nnx.Param))
    assert_table_alone(steps_of(jax.tree.map(lambda a, b: a - b, after, before)))


class Dropping(Nnx):
    def __init__(self, rngs: nnx.Rngs) -> None:
        super().__init__(rngs)
        self.drop = nnx.Dropout(0.1, rngs=rngs)  # holds a random key beside the parameters


def test_a_random_key_in_the_tree_is_no_parameter() -> None:
    model = Dropping(nnx.Rngs(0))
    report = tiebeam.inspect(model, jnp.arange(8)[None])
    tx = optimizer(optax.lion, report, nnx.state(model), **SIGNS)
    assert tx.init(nnx.state(model, nnx.Param)) is not None


def test_an_equinox_module_s_arrays_take_it() -> None:
    model = Eqx(jax.random.key(0))
    report = tiebeam.inspect(model, TOKENS[0])
    arrays = eqx.filter(model, eqx.is_inexact_array)
    tx = optimizer(optax.lion, report, arrays, **SIGNS)
    state = tx.init(arrays)

    @eqx.filter_jit
    def step(model: Any, state: Any) -> Any:
        grads = eqx.filter_grad(lambda m: (m(TOKENS[0]) ** 2).mean())(model)
        return tx.update(jax.tree.map(jnp.ones_like, grads), state, arrays)

    updates, _ = step(model, state)
    assert_table_alone(steps_of(updates))


def test_leaves_that_are_no_floats_stay() -> None:
    tree = {**start("D'"), "counter": jnp.zeros((), int)}
    tx = optimizer(optax.lion, REPORTS["D'"], tree, lr=1.0)
    grads = jax.tree.map(jnp.ones_like, tree)
    updates, _ = tx.update(grads, tx.init(tree), tree)
    assert int(updates["counter"]) == 0


# Refusals


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


# Looking at a transformation


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
