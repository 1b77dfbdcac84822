"""The optax transformation on models of each kind: leaves are told by path."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
import pytest
from flax import nnx
from tests.optim.optax_kit import REPORTS, TOKENS, Eqx, Linen, Nnx, start

import tiebeam
from tiebeam.jax import optimizer

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
