"""What cannot be looked at: what it is, what came, what was expected, and what to do."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.jax.models.kit import CASES, VOCAB, WIDTH, ids, load

import tiebeam

load()


def apply(params: Any, tokens: Any) -> Any:
    return params["table"][tokens] @ params["table"].T


def tree() -> dict[str, Any]:
    return {"table": jnp.ones((VOCAB, WIDTH))}


def test_a_function_without_params() -> None:
    with pytest.raises(tiebeam.BackendError, match="params="):
        tiebeam.inspect(apply, ids())


def test_a_watch_that_is_not_given_the_arrays_of_this_step() -> None:
    watch = tiebeam.Watch(CASES["linen_attend"]().model)
    with pytest.raises(tiebeam.InputError, match="holds no arrays"):
        watch(0, ids())
    assert not watch.history


def test_a_linen_module_without_variables() -> None:
    with pytest.raises(tiebeam.InputError, match=r"model\.init"):
        tiebeam.inspect(CASES["linen_attend"]().model, ids())


def test_params_beside_an_equinox_module() -> None:
    with pytest.raises(tiebeam.InputError, match="holds its own"):
        tiebeam.inspect(CASES["eqx_by_hand"]().model, ids()[0], params=tree())


def test_a_tree_without_arrays() -> None:
    with pytest.raises(tiebeam.InputError, match="hold no arrays"):
        tiebeam.inspect(apply, ids(), params={"table": None})


def test_variables_of_another_model() -> None:
    with pytest.raises(tiebeam.InputError, match="does not run on these inputs") as caught:
        tiebeam.inspect(CASES["linen_attend"]().model, ids(), params={"params": tree()})
    assert caught.value.__cause__ is not None


def test_ids_that_are_no_integers_are_said_to_be_what_they_are() -> None:
    model = CASES["linen_attend"]().model
    params = model.init(jax.random.key(0), ids())
    with pytest.raises(tiebeam.InputError, match=r"got: Array\(.*\) of float32"):
        tiebeam.inspect(model, ids().astype(float), params=params)


def test_a_tree_of_another_shape() -> None:
    with pytest.raises(tiebeam.InputError, match="does not run"):
        tiebeam.inspect(apply, ids(), params={"tables": jnp.ones((VOCAB, WIDTH))})


def test_a_state_of_another_nnx_module() -> None:
    from flax import nnx

    model = CASES["nnx_attend"]().model
    with pytest.raises(tiebeam.InputError, match="do not fit"):
        tiebeam.inspect(model, ids(), params=nnx.state(nnx.Linear(2, 2, rngs=nnx.Rngs(0))))


def test_donated_arrays() -> None:
    params = tree()
    params["table"].delete()
    with pytest.raises(tiebeam.InputError, match="'table' of apply is gone"):
        tiebeam.inspect(apply, ids(), params=params)


def test_a_function_that_asks_for_a_value() -> None:
    def branching(params: Any, tokens: Any) -> Any:
        h = params["table"][tokens]
        return h @ params["table"].T if h.sum() > 0 else h

    with pytest.raises(tiebeam.TraceError, match="asks for the value"):
        tiebeam.inspect(branching, ids(), params=tree())


def test_a_table_of_integers_is_seen_and_not_drawn() -> None:
    def quantised(params: Any, tokens: Any) -> Any:
        table = params["table"].astype(jnp.float32) * 0.01
        h = table[tokens]
        return (h / jnp.sqrt((h * h).mean(-1, keepdims=True) + 1e-6)) @ table.T

    params = {"table": jnp.asarray(np.random.default_rng(0).integers(-90, 90, (VOCAB, WIDTH)), jnp.int8)}
    assert tiebeam.inspect(quantised, ids(), params=params).tables[0].tied
    with pytest.raises(tiebeam.InputError, match="cannot be drawn"):
        tiebeam.initialize_params(quantised, ids(), params)


def test_inputs_are_made_where_none_are_given() -> None:
    case = CASES["linen_attend"]()
    assert tiebeam.inspect(case.model, params=case.params).tables[0].tied
    assert tiebeam.inspect(apply, params=tree()).tables[0].tied
    assert tiebeam.inspect(CASES["nnx_attend"]().model).tables[0].tied


def test_numpy_ids_and_keyword_arguments() -> None:
    report = tiebeam.inspect(apply, {"tokens": np.asarray(ids())}, params=tree())
    assert report.tables[0].tied


def test_an_unknown_body_is_a_barrier_with_a_note() -> None:
    def called_back(params: Any, tokens: Any) -> Any:
        h = params["table"][tokens]
        h = jax.pure_callback(lambda x: np.asarray(x), jax.ShapeDtypeStruct(h.shape, h.dtype), h)
        return h @ params["table"].T

    report = tiebeam.inspect(called_back, ids(), params=tree())
    assert report.tables[0].tied
    assert any("pure_callback" in n for n in report.notes)


def test_nothing_is_left_behind() -> None:
    """The model, its arrays and the trace state are as before."""
    case = CASES["nnx_layers_and_dropout"]()
    before = [
        np.array(jax.random.key_data(a) if jax.dtypes.issubdtype(a.dtype, jax.dtypes.prng_key) else a)
        for a in jax.tree.leaves(__import__("flax").nnx.state(case.model))
    ]
    tiebeam.inspect(case.model, case.inputs)
    after = [
        np.array(jax.random.key_data(a) if jax.dtypes.issubdtype(a.dtype, jax.dtypes.prng_key) else a)
        for a in jax.tree.leaves(__import__("flax").nnx.state(case.model))
    ]
    assert all(map(np.array_equal, before, after))


class Untraced(nn.Module):
    """Its own mistake, not one of the inputs."""

    @nn.compact
    def __call__(self, tokens: Any) -> Any:
        raise KeyError("a mistake in the model")


def test_the_models_own_error_is_chained() -> None:
    with pytest.raises(tiebeam.InputError, match="a mistake in the model"):
        tiebeam.inspect(Untraced(), ids(), params={"params": tree()})


def test_an_array_that_is_closed_over_is_no_table() -> None:
    """Params are arguments: what the function holds itself is a constant of the program."""
    table = tree()["table"]
    report = tiebeam.inspect(lambda p, t: table[t] @ table.T * p["by"], ids(), params={"by": jnp.float32(1.0)})
    assert not report.tables
    assert {f.code for f in report.findings} == {"no-table"}


def test_a_table_that_an_unknown_body_reads_too_is_of_unknown_state() -> None:
    def apply(params: Any, tokens: Any) -> Any:
        table = params["table"]
        out = jax.ShapeDtypeStruct((*tokens.shape, table.shape[0]), table.dtype)
        return jax.pure_callback(lambda h, t: np.asarray(h) @ np.asarray(t).T, out, table[tokens], table)

    report = tiebeam.inspect(apply, ids(), params=tree())
    assert report.tables[0].state == "unknown"
    assert any("pure_callback has an unknown body" in n for n in report.notes)


def test_an_unknown_body_that_nothing_depends_on_is_not_remarked() -> None:
    def apply(params: Any, tokens: Any) -> Any:
        h = params["table"][tokens]
        jax.pure_callback(np.asarray, jax.ShapeDtypeStruct(h.shape, h.dtype), h)
        return h @ params["table"].T

    assert not any("unknown body" in n for n in tiebeam.inspect(apply, ids(), params=tree()).notes)


@pytest.mark.parametrize("given", [ids(), (ids(),), np.zeros((1, 4), np.int64)])
def test_inputs_in_the_place_of_params_are_said_to_come_first(given: Any) -> None:
    model = CASES["linen_attend"]().model
    params = model.init(jax.random.key(0), ids())
    for call in (
        lambda: tiebeam.initialize_params(model, params, given),
        lambda: tiebeam.inspect(model, params, params=given),
        lambda: tiebeam.measure(model, params, params=given),
        lambda: tiebeam.resize_params(model, VOCAB + 8, params, given),
    ):
        with pytest.raises(tiebeam.InputError, match=r"(?s)no tree of its variables.*Hint: inputs come first"):
            call()


def test_ids_in_the_place_of_the_params_of_a_function() -> None:
    with pytest.raises(tiebeam.InputError, match="inputs come first"):
        tiebeam.initialize_params(apply, tree(), ids())


def test_a_table_alone_is_params_of_a_function() -> None:
    assert tiebeam.inspect(lambda t, tokens: t[tokens] @ t.T, ids(), params=tree()["table"]).tables[0].tied


def test_a_state_of_an_optimizer_is_no_tree_of_variables() -> None:
    model = CASES["linen_attend"]().model
    params = model.init(jax.random.key(0), ids())
    with pytest.raises(tiebeam.InputError, match=r"(?s)got: a tuple.*an optimizer's state"):
        tiebeam.inspect(model, ids(), params=(jnp.zeros((), jnp.int32), params))


def test_a_bound_linen_module_is_to_be_taken_apart() -> None:
    model = CASES["linen_attend"]().model
    bound = model.bind(model.init(jax.random.key(0), ids()))
    with pytest.raises(tiebeam.InputError, match=r"(?s)bound to some.*unbind"):
        tiebeam.inspect(bound, ids())
    module, variables = bound.unbind()
    assert tiebeam.inspect(module, ids(), params=variables).tables[0].tied


def test_a_loss_that_makes_numbers_of_traced_arrays() -> None:
    with pytest.raises(tiebeam.InputError, match=r"(?s)loss= does not run: Concretization.*one float of the framework"):
        tiebeam.measure(apply, ids(), params=tree(), loss=lambda output, batch: float(output.mean()))
