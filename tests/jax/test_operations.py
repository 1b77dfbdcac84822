"""Operations on params trees: other rows, their optimizer state, and what has no meaning in JAX."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import tiebeam
from tiebeam.errors import BackendError, RangeError, TieError

VOCAB, WIDTH = 300, 32
IDS = jax.random.randint(jax.random.key(1), (2, 16), 0, 250)


def apply(params: Any, ids: Any) -> Any:
    hidden = jnp.tanh(params["table"][ids] @ params["mid"])
    return hidden @ params["table"].T + params["bias"]


def tree() -> Any:
    keys = jax.random.split(jax.random.key(0), 2)
    return {
        "table": jax.random.normal(keys[0], (VOCAB, WIDTH)) + 1,
        "mid": jax.random.normal(keys[1], (WIDTH, WIDTH)) / WIDTH**0.5,
        "bias": jnp.arange(VOCAB, dtype=jnp.float32) / VOCAB,
    }


class Linen(nn.Module):
    vocab: int = VOCAB

    @nn.compact
    def __call__(self, ids: Any) -> Any:
        embed = nn.Embed(self.vocab, WIDTH, name="embed")
        return embed.attend(jnp.tanh(nn.Dense(WIDTH)(embed(ids))))


class Equinox(eqx.Module):
    embed: eqx.nn.Embedding

    def __init__(self) -> None:
        self.embed = eqx.nn.Embedding(VOCAB, WIDTH, key=jax.random.key(0))

    def __call__(self, ids: Any) -> Any:
        return jnp.tanh(self.embed.weight[ids]) @ self.embed.weight.T


def train(params: Any, state: Any, tx: Any, steps: int, seed: int) -> tuple[Any, Any, list[float]]:
    losses = []
    for key in jax.random.split(jax.random.key(seed), steps):
        ids = jax.random.randint(key, (4, 9), 0, 250)

        def loss(p: Any, ids: Any = ids) -> Any:
            return optax.softmax_cross_entropy_with_integer_labels(apply(p, ids[:, :-1]), ids[:, 1:]).mean()

        value, grads = jax.value_and_grad(loss)(params)
        updates, state = tx.update(grads, state, params)
        params = optax.apply_updates(params, updates)
        losses.append(float(value))
    return params, state, losses


@pytest.mark.parametrize(
    "tx",
    [optax.adamw(1e-2), optax.sgd(1e-2, momentum=0.9), optax.adafactor(1e-2, min_dim_size_to_factor=8)],
    ids=["adamw", "momentum", "adafactor"],
)
def test_a_table_resized_and_back_trains_on_bit_by_bit(tx: Any) -> None:
    params, state, _ = train(tree(), tx.init(tree()), tx, 3, 1)
    right = train(params, state, tx, 3, 2)
    grown, more, change = tiebeam.resize_params(apply, 320, IDS, params, opt_state=state)
    assert grown["table"].shape == (320, WIDTH)
    assert grown["bias"].shape == (320,)
    assert change.vocab == (300, 320)
    assert all(320 in a.shape for a in jax.tree.leaves(more) if 300 in np.shape(a)) or not change.optimizer
    back, less, _ = tiebeam.resize_params(apply, 300, IDS, grown, opt_state=more)
    assert jax.tree.all(jax.tree.map(lambda a, b: np.array_equal(a, b), (back, less), (params, state)))
    assert train(back, less, tx, 3, 2)[2] == right[2]


def test_the_old_trees_are_only_read_and_rows_keep_their_values() -> None:
    params = tree()
    before = jax.tree.map(np.array, params)
    fresh, state, change = tiebeam.resize_params(apply, 310, IDS, params, rows="mean")
    assert state is None
    assert jax.tree.all(jax.tree.map(np.array_equal, params, before))
    assert np.array_equal(fresh["table"][:300], before["table"])
    assert np.allclose(fresh["table"][300:], before["table"].mean(0), atol=1e-6)
    assert np.allclose(fresh["bias"][300:], before["bias"].mean(), atol=1e-6)
    assert fresh["mid"] is params["mid"]
    assert change.report is not None
    assert change.report.tables[0].vocab == 310


def test_new_rows_are_those_that_every_framework_makes() -> None:
    """The digest of the same rows in NumPy, by the rule itself."""
    from tiebeam.core.operations.rows import plan_rows, resized

    params = tree()
    fresh, _, _ = tiebeam.resize_params(apply, 310, IDS, params, seed=3)
    right = resized(np.asarray(params["table"]), 0, plan_rows(300, 310, seed=3), 0)
    assert np.array_equal(fresh["table"], right)


def test_a_linen_module_needs_the_one_for_the_new_vocabulary() -> None:
    model = Linen()
    params = model.init(jax.random.key(0), IDS)
    state = optax.adam(1e-3).init(params["params"])  # of the inner tree alone, as many do
    with pytest.raises(TieError, match="resized="):
        tiebeam.resize_params(model, 320, IDS, params)
    fresh, more, _ = tiebeam.resize_params(model, 320, IDS, params, opt_state=state, resized=Linen(320))
    assert Linen(320).apply(fresh, IDS).shape[-1] == 320
    assert more[0].mu["embed"]["embedding"].shape == (320, WIDTH)


def test_a_smaller_vocabulary_and_shapes_alone() -> None:
    fresh, _, _ = tiebeam.resize_params(apply, 100, IDS, tree())
    assert fresh["table"].shape == (100, WIDTH)
    abstract = jax.eval_shape(tree)
    fresh, _, _ = tiebeam.resize_params(apply, 320, IDS, abstract)
    assert fresh["table"].shape == (320, WIDTH)


def test_what_has_no_meaning_is_refused_with_what_to_do() -> None:
    reasons: dict[str, tuple[Callable[..., Any], ...]] = {
        "one leaf in both roles": (tiebeam.tie, tiebeam.untie, tiebeam.retie),
        "no load and no move": (tiebeam.guard, tiebeam.ties),
        "fields of this module": (lambda m: tiebeam.resize(m, 9),),
        "writes it once": (lambda m: tiebeam.save(m, "m.safetensors"), lambda m: tiebeam.load(m, "m.safetensors")),
    }
    for reason, operations in reasons.items():
        for operation in operations:
            with pytest.raises(BackendError, match=reason):
                operation(Equinox())
    with pytest.raises(BackendError, match="resize_params"):
        tiebeam.resize(Linen(), 320)
    with pytest.raises(BackendError, match="holds its own arrays"):
        tiebeam.resize_params(Equinox(), 320, IDS)
    with pytest.raises(RangeError):
        tiebeam.resize_params(apply, 0, IDS, tree())
    copied = {**tree(), "out": tree()["table"]}

    def two(params: Any, ids: Any) -> Any:
        return jnp.tanh(params["table"][ids]) @ params["out"].T

    with pytest.raises(tiebeam.TieError, match="one parameter first"):
        tiebeam.initialize_params(two, IDS, copied)


def test_another_table_of_the_same_ids_takes_its_rows_and_counts_of_them_are_refused() -> None:
    def beside(params: Any, ids: Any) -> Any:
        return jnp.tanh(params["table"][ids] + params["more"][ids]) @ params["table"].T

    params = {**tree(), "more": jnp.ones((VOCAB, WIDTH))}
    fresh, _, _ = tiebeam.resize_params(beside, 320, IDS, params)
    assert fresh["more"].shape == (320, WIDTH)

    def counted(params: Any, ids: Any) -> Any:
        return jnp.tanh(params["table"][ids] * params["bias"][ids][..., None]) @ params["table"].T

    with pytest.raises(TieError, match="'bias' is looked up by the ids"):
        tiebeam.resize_params(counted, 320, IDS, tree())
