"""What JAX programs do beyond the contract: transformations, derivatives of their own, trees that are gone."""

import gc
import weakref
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tests.measure.jax_models import (
    IDS,
    PARAMS,
    READS,
    VOCAB,
    Read,
    body,
    both,
    next_token_loss,
    plain,
    product,
    tied,
)

import tiebeam


def by_hand(read: Read) -> tuple[jax.Array, jax.Array]:
    table, mid = PARAMS["table"], PARAMS["mid"]
    split: tuple[jax.Array, jax.Array] = jax.grad(lambda a, b: next_token_loss(read(IDS, a, b, mid)), argnums=(0, 1))(
        table, table + 0
    )
    return split


SLOW = ("over_devices", "read_in_a_scan", "vocabulary_in_pieces", "branches", "one_sum", "twice")
MARKED = [
    pytest.param(r, marks=[pytest.mark.slow, pytest.mark.wide] if r.__name__ in SLOW else [], id=r.__name__)
    for r in READS
]


@pytest.mark.parametrize("read", MARKED)
def test_each_role_sends_what_a_model_with_two_tables_sends(read: Read) -> None:
    model = tied(read)
    found = tiebeam.measure(model, IDS, params=PARAMS, grad=True, loss=lambda out, ids: next_token_loss(out, ids))
    got = [found.roles[role].grad for role in ("lookup", "readout")]
    for one, want in zip(got, by_hand(read), strict=True):
        np.testing.assert_allclose(one, want, rtol=1e-6, atol=1e-6 * float(jnp.abs(want).max()))
    whole = jax.grad(lambda p: next_token_loss(model(p, IDS)))(PARAMS)["table"]
    rounded = 1e-2 if read.__name__ == "one_cast" else 1e-5  # bfloat16 adds up in bfloat16
    np.testing.assert_allclose(got[0] + got[1], whole, rtol=rounded, atol=1e-6)
    assert found.tables[0].unaccounted == 0.0
    assert found.own_rank is not None


def test_what_comes_from_neither_role_is_said() -> None:
    def model(p: Any, ids: Any) -> Any:
        logits = plain(ids, p["table"], p["table"], p["mid"])
        return logits, (p["table"] ** 2).sum()

    found = tiebeam.measure(
        model, IDS, params=PARAMS, grad=True, loss=lambda out, ids: next_token_loss(out[0], ids) + 0.1 * out[1]
    )
    lookup, readout = by_hand(plain)
    np.testing.assert_allclose(found.roles["lookup"].grad, lookup, atol=1e-6)
    penalty = float(jnp.linalg.norm(0.2 * PARAMS["table"]))
    whole = float(jnp.linalg.norm(lookup + readout + 0.2 * PARAMS["table"]))
    assert found.tables[0].unaccounted == pytest.approx(penalty / whole, rel=1e-5)
    assert any("no lookup and no readout" in note for note in found.notes)


def test_an_operation_in_both_roles_is_not_guessed_at() -> None:
    found = tiebeam.measure(lambda p, ids: both(p["table"], ids, (1.0, 1.0)), IDS, params=PARAMS)
    assert {role: g.grad_norm for role, g in found.roles.items()} == {"lookup": None, "readout": None}
    assert found.tables[0].unaccounted == 1.0
    assert any("reads a table in both roles at once" in note for note in found.notes)


def test_a_derivative_of_its_own_is_the_one_that_is_measured() -> None:
    """A head that sends half: opening its body would have shown the right gradient."""

    @jax.custom_vjp
    def head(h: Any, w: Any) -> Any:
        return h @ w.T

    head.defvjp(
        lambda h, w: (h @ w.T, (h, w)), lambda kept, g: (g @ kept[1], 0.5 * jnp.einsum("btv,btd->vd", g, kept[0]))
    )
    found = tiebeam.measure(tied(lambda ids, a, b, mid: head(body(a[ids], mid), b)), IDS, params=PARAMS, grad=True)
    lookup, readout = by_hand(plain)
    np.testing.assert_allclose(found.roles["readout"].grad, 0.5 * readout, atol=1e-6)
    np.testing.assert_allclose(found.roles["lookup"].grad, lookup, atol=1e-6)


@pytest.mark.parametrize("role", ["lookup", "readout"])
def test_a_detached_role_sends_nothing_and_is_a_dropped_path(role: str) -> None:
    def model(p: Any, ids: Any) -> Any:
        a, b = p["table"], jax.lax.stop_gradient(p["table"])
        return plain(ids, *((b, a) if role == "lookup" else (a, b)), p["mid"])

    found = tiebeam.measure(model, IDS, params=PARAMS)
    assert found.tables[0].state == "cut"
    assert found.roles[role].grad_norm == 0.0  # type: ignore[index]
    assert any(f"no gradient comes back from the {role}" in n for n in found.notes)
    checked = tiebeam.check_gradients(model, IDS, params=PARAMS)
    verdicts = {"lookup": checked.lookup, "readout": checked.readout}
    assert verdicts == {"lookup": "kept", "readout": "kept", role: "dropped"}


@pytest.mark.parametrize("times", [(0.0, 1.0), (2.0, 1.0), (1.0, 0.0), (1.0, 2.0)])
def test_a_path_lost_in_a_hand_written_backward_is_found(times: tuple[float, float]) -> None:
    verdict = {0.0: "dropped", 1.0: "kept", 2.0: "doubled"}
    found = tiebeam.check_gradients(lambda p, ids: both(p["table"], ids, times), IDS, params=PARAMS, rows=2)
    assert (found.lookup, found.readout) == (verdict[times[0]], verdict[times[1]])
    assert found.wrong_rows == (found.held if times[1] == 1.0 else VOCAB)
    assert found.times == pytest.approx(times, abs=1e-3)


@pytest.mark.slow
@pytest.mark.wide
@pytest.mark.parametrize("name", ["remat", "read_in_a_scan", "branches", "custom_head", "one_transposition"])
def test_right_backward_passes_pass(name: str) -> None:
    [read] = [r for r in READS if r.__name__ == name]
    found = tiebeam.check_gradients(tied(read), IDS, params=PARAMS, rows=2)
    assert found.ok, str(found)
    assert not jax.config.jax_enable_x64  # type: ignore[attr-defined]


def test_a_model_that_rounds_to_float32_raises_no_false_alarm() -> None:
    def model(p: Any, ids: Any) -> Any:
        h = body(p["table"][ids], p["mid"]).astype(jnp.float32)
        return product(h.astype(p["table"].dtype), p["table"])

    found = tiebeam.check_gradients(model, IDS, params=PARAMS)
    assert (found.lookup, found.readout, found.wrong_rows) == ("kept", "kept", 0), str(found)


# -- what cannot be measured --


def test_shapes_alone_have_nothing_to_measure() -> None:
    shapes = jax.eval_shape(lambda: PARAMS)
    for call in (tiebeam.measure, tiebeam.check_gradients):
        with pytest.raises(tiebeam.InputError, match="nothing to"):
            call(tied(plain), IDS, params=shapes)  # type: ignore[operator]


def test_arrays_that_were_donated_are_gone() -> None:
    params = jax.tree.map(jnp.copy, PARAMS)
    params["table"].delete()
    with pytest.raises(tiebeam.InputError, match=r"'table' of .* is gone"):
        tiebeam.measure(tied(plain), IDS, params=params)


def test_a_loss_that_is_not_finite_is_refused_with_what_else_is_not() -> None:
    params = {**PARAMS, "table": PARAMS["table"].at[3].set(jnp.nan)}
    with pytest.raises(tiebeam.InputError, match=r"(?s)not finite.*'table' holds entries.*logits"):
        tiebeam.measure(tied(plain), IDS, params=params)


@pytest.mark.parametrize("given", ["a loss", 3.0, np.ones(2), np.ones((), int)])
def test_a_loss_that_is_none_is_refused(given: object) -> None:
    with pytest.raises(tiebeam.InputError, match="no loss"):
        tiebeam.measure(tied(plain), IDS, params=PARAMS, loss=lambda out, ids: given)


def test_a_loss_without_a_gradient_is_said() -> None:
    found = tiebeam.measure(
        tied(plain), IDS, params=PARAMS, loss=lambda out, ids: jax.lax.stop_gradient(next_token_loss(out, ids))
    )
    assert "no gradient comes from the loss to any table" in found.notes
    assert found.roles["lookup"].grad_norm == 0.0


def test_a_loop_without_a_backward_pass_is_refused() -> None:
    def model(p: Any, ids: Any) -> Any:
        h = jax.lax.while_loop(lambda s: s[0] < ids[0, 0], lambda s: (s[0] + 1, jnp.tanh(s[1])), (0, p["table"][ids]))
        return h[1] @ p["table"].T

    with pytest.raises(tiebeam.InputError, match="the backward pass of the model fails"):
        tiebeam.measure(model, IDS, params=PARAMS)


def test_the_models_own_loss_and_padding_count() -> None:
    mask = np.array([[1] * 6, [1] * 4 + [0] * 2])

    def own(p: Any, ids: Any, attention_mask: Any) -> Any:
        return {"logits": plain(ids, p["table"], p["table"], p["mid"])}

    found = tiebeam.measure(own, {"ids": IDS, "attention_mask": mask}, params=PARAMS)
    kept = plain(IDS, PARAMS["table"], PARAMS["table"], PARAMS["mid"])
    lost = -jax.nn.log_softmax(kept)[:, :-1][jnp.arange(2)[:, None], jnp.arange(5), IDS[:, 1:]]
    assert found.initial_loss == pytest.approx(float((lost * mask[:, 1:]).sum() / mask[:, 1:].sum()), rel=1e-5)
    alone = tiebeam.measure(lambda p, ids: next_token_loss(tied(plain)(p, ids), ids), IDS, params=PARAMS)
    assert alone.targets == "the model's own loss"
    assert alone.initial_loss == pytest.approx(float(next_token_loss(kept)), rel=1e-5)
    assert alone.own_rank is None


def test_a_table_that_is_whole_numbers_is_frozen_and_a_model_without_one_says_so() -> None:
    found = tiebeam.measure(
        lambda p, x: x @ p["w"], jnp.ones((2, 4)), params={"w": jnp.ones((4, 4))}, loss=lambda out, x: out.sum()
    )
    assert found.roles == {}
    assert "no vocabulary table was seen" in found.notes


# -- again and again --


def test_a_second_measurement_traces_nothing() -> None:
    traced: list[int] = []

    def model(p: Any, ids: Any) -> Any:
        traced.append(1)
        return plain(ids, p["table"], p["table"], p["mid"])

    first = tiebeam.measure(model, IDS, params=PARAMS)
    seen = len(traced)
    moved = tiebeam.measure(model, IDS[::-1] * 2 % VOCAB, params={**PARAMS, "mid": PARAMS["mid"] * 2})
    again = tiebeam.measure(model, IDS, params=PARAMS)
    assert len(traced) == seen
    assert again.to_dict() == first.to_dict()
    assert moved.initial_loss != first.initial_loss


def test_a_number_that_is_closed_over_counts_as_it_is_now() -> None:
    times = weight = 1.0

    def model(p: Any, ids: Any) -> Any:
        return times * plain(ids, p["table"], p["table"], p["mid"])

    def loss(output: Any, batch: Any) -> Any:
        return weight * (output**2).mean()

    first = tiebeam.measure(model, IDS, params=PARAMS, loss=loss).initial_loss
    times = 2.0
    assert tiebeam.measure(model, IDS, params=PARAMS, loss=loss).initial_loss == pytest.approx(4 * first)
    weight = 0.5
    assert tiebeam.measure(model, IDS, params=PARAMS, loss=loss).initial_loss == pytest.approx(2 * first)


def test_what_a_function_closes_over_goes_with_it() -> None:
    def made(bias: jax.Array) -> Any:
        return lambda p, ids: plain(ids, p["table"], p["table"], p["mid"]) + bias

    bias = jnp.ones(VOCAB)
    model, held = made(bias), weakref.ref(bias)
    tiebeam.measure(model, IDS, params=PARAMS)
    del model, bias
    gc.collect()
    assert held() is None


@pytest.mark.parametrize("wrong", [VOCAB, -1])
def test_labels_that_are_no_tokens_are_refused_where_jax_takes_others(wrong: int) -> None:
    with pytest.raises(tiebeam.InputError, match=f"labels of {wrong}"):
        tiebeam.measure(tied(plain), (IDS, np.full(IDS.shape, wrong)), params=PARAMS)


def test_silent_rows_are_those_of_the_optimizers_state() -> None:
    tx = optax.adam(1e-2)
    state = tx.init(PARAMS)
    one = jax.tree.map(lambda x: x.at[:10].set(0.1), jax.tree.map(jnp.zeros_like, PARAMS))
    _, state = tx.update(one, state)
    [table] = tiebeam.measure(tied(plain), IDS, params=PARAMS, optimizer=state).tables
    assert table.silent_rows == VOCAB - 10


# -- watching --


def test_a_loop_of_new_params_is_watched_as_it_goes() -> None:
    model, tx = tied(plain), optax.adam(0.05)

    @jax.jit
    def step_of(params: Any, state: Any) -> Any:
        updates, state = tx.update(jax.grad(lambda p: next_token_loss(model(p, IDS)))(params), state)
        return optax.apply_updates(params, updates), state

    seen: list[dict[str, Any]] = []
    watch = tiebeam.Watch(model, 4, seen.append)
    params, state = PARAMS, tx.init(PARAMS)
    for step in range(9):
        watch(step, IDS, params=params)
        params, state = step_of(params, state)
    assert [r["step"] for r in seen] == [0, 4, 8]
    losses = [found.initial_loss for _, found in watch.history]
    assert losses == sorted(losses, reverse=True)
    assert losses[2] < 0.8 * losses[0]


class Module(eqx.Module):
    table: jax.Array

    def __call__(self, ids: Any) -> Any:
        return jnp.tanh(self.table[ids]) @ self.table.T


def test_a_model_that_is_a_new_one_after_each_step_has_to_be_given() -> None:
    old, new = Module(PARAMS["table"]), Module(PARAMS["table"] * 2)
    watch = tiebeam.Watch(old, every=1)
    with pytest.raises(tiebeam.InputError, match="each step makes a new Module"):
        watch(0, IDS)
    found = watch(0, IDS, model=new)
    assert found is not None
    assert found.initial_loss == pytest.approx(float(next_token_loss(new(IDS))), rel=1e-5)
    with pytest.raises(tiebeam.InputError, match="holds no arrays"):
        tiebeam.Watch(tied(plain), every=5)(1, IDS)


@pytest.mark.parametrize("kind", ["bfloat16", "float16"])
def test_a_right_gradient_of_a_program_in_half_precision_is_undecided_and_not_called_wrong(kind: str) -> None:
    """Losses are rounded to more than a move of a row changes them by: their differences decide nothing."""

    def model(p: Any, ids: Any) -> Any:
        table = p["table"].astype(kind)
        x = table[ids]
        return x / jnp.sqrt((x**2).mean(-1, keepdims=True) + 1e-3) @ table.T

    rng = np.random.default_rng(0)
    table = jnp.asarray(rng.normal(size=(64, 16)) / 4, jnp.float32)
    found = tiebeam.check_gradients(model, jnp.asarray(rng.integers(0, 48, (8, 16))), params={"table": table})
    assert (found.lookup, found.readout, found.wrong_rows) == ("unknown", "unknown", None)


def test_a_mesh_with_explicit_axes_is_refused_with_a_hint() -> None:
    mesh = jax.make_mesh((1,), ("a",), axis_types=(jax.sharding.AxisType.Explicit,))
    whole = jax.sharding.PartitionSpec(None, None, None)

    def model(p: Any, ids: Any) -> Any:
        x = p["table"].at[ids].get(out_sharding=whole)
        return jnp.einsum("bsd,vd->bsv", jnp.tanh(x), p["table"], out_sharding=whole)

    with jax.set_mesh(mesh):
        at = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("a"))
        params = {"table": jax.device_put(PARAMS["table"], at)}
        for look in (tiebeam.measure, tiebeam.check_gradients):
            with pytest.raises(tiebeam.InputError, match=r"Hint: jax\.device_get"):
                look(model, IDS, params=params)
