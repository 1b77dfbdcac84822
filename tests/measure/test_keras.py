"""Measuring Keras models on each of the frameworks that Keras runs on: roles apart, wrong gradients found, watched."""

import json
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from keras import ops
from tests.keras.models.kit import numbers

import tiebeam
from tiebeam.keras import TiedEmbedding, optimizer

VOCAB, WIDTH = 40, 16
IDS = np.random.default_rng(0).integers(0, 30, (3, 7)).astype("int32")
RUNNING = keras.backend.backend()
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


class Model(keras.Model):
    """A residual model of one layer around two ways to read a table.

    Args:
        look: The rows of ids, given the model.
        read: The logits of a hidden state, given the model.
    """

    def __init__(self, look: Callable[..., Any], read: Callable[..., Any], *, split: bool = False) -> None:
        super().__init__(name="model")
        self.look, self.read = look, read
        self.table_of_lookup = TiedEmbedding(VOCAB, WIDTH, name="first")
        self.table_of_readout = TiedEmbedding(VOCAB, WIDTH, name="second") if split else self.table_of_lookup
        self.mix = keras.layers.Dense(WIDTH, "tanh", kernel_initializer=keras.initializers.RandomNormal(seed=1))
        self.norm = keras.layers.RMSNormalization()

    def build(self, shape: Any) -> None:
        for layer in dict.fromkeys((self.table_of_lookup, self.table_of_readout)):
            layer.build()
            layer.embeddings.assign(np.random.default_rng(3).standard_normal((VOCAB, WIDTH)).astype("float32") / 4)
        self.mix.build((None, None, WIDTH))
        self.norm.build((None, None, WIDTH))

    def call(self, ids: Any) -> Any:
        x = self.look(self, ids)
        return self.read(self, self.norm(x + self.mix(x)))


def table(model: Any) -> Any:
    return model.table_of_lookup.embeddings


def block_look(model: Any, ids: Any) -> Any:
    return model.table_of_lookup(ids)


def block_read(model: Any, h: Any) -> Any:
    return model.table_of_readout(h, reverse=True)


def once_look(model: Any, ids: Any) -> Any:
    model.at_once = ops.convert_to_tensor(table(model)) * 1.0  # one tensor for both roles
    return ops.take(model.at_once, ids, axis=0)


def once_read(model: Any, h: Any) -> Any:
    return ops.matmul(h, ops.transpose(model.at_once))


def one_hot_look(model: Any, ids: Any) -> Any:
    return ops.matmul(ops.one_hot(ids, VOCAB, dtype="float32"), table(model))


def transposed_read(model: Any, h: Any) -> Any:
    return ops.einsum("...d,vd->...v", h, ops.cast(ops.cast(table(model), "float16"), "float32"))


def plain_read(model: Any, h: Any) -> Any:
    return ops.matmul(h, ops.transpose(table(model)))


def built(look: Callable[..., Any] = block_look, read: Callable[..., Any] = block_read, **more: Any) -> Model:
    keras.backend.clear_session(free_memory=False)
    model = Model(look, read, **more)
    model.build((None, None))
    return model


def gradients(model: Any, variables: list[Any], ids: Any) -> list[Any]:
    """Of the loss of next tokens, as the framework gives them."""
    inputs, right = ops.convert_to_tensor(ids), ops.convert_to_tensor(ids[:, 1:])

    def loss() -> Any:
        return LOSS(right, model(inputs)[:, :-1])

    if RUNNING == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            value = loss()
        return [numbers(ops.convert_to_tensor(g)) for g in tape.gradient(value, [v.value for v in variables])]
    if RUNNING == "torch":
        loss().backward()
        return [numbers(v.value.grad) for v in variables]
    import jax

    def stateless(arrays: list[Any]) -> Any:
        with keras.StatelessScope(state_mapping=list(zip(variables, arrays, strict=True))):
            return loss()

    return [numbers(g) for g in jax.grad(stateless)([v.value for v in variables])]


def test_roles_of_the_building_block_send_what_a_model_split_by_hand_says() -> None:
    split = built(split=True)
    lookup, readout = gradients(split, [split.table_of_lookup.embeddings, split.table_of_readout.embeddings], IDS)
    found = tiebeam.measure(built(), IDS, grad=True)
    for role, want in (("lookup", lookup), ("readout", readout)):
        got = numbers(found.roles[role].grad)
        assert np.abs(got - want).max() <= 1e-6 * np.abs(want).max()
    assert found.tables[0].unaccounted == 0.0
    assert found.roles["lookup"].rows == len(np.unique(IDS[:, :-1]))


WAYS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "one-hot": (one_hot_look, plain_read),
    "cast and transposed": (block_look, transposed_read),
    "read once": (once_look, once_read),
}


@pytest.mark.parametrize("way", WAYS)
def test_whatever_way_the_table_is_read_the_roles_add_up(way: str) -> None:
    look, read = WAYS[way]
    model = built(look, read)
    [want] = gradients(model, [table(model)], IDS)
    found = tiebeam.measure(model, IDS, grad=True)
    assert found.tables[0].unaccounted == pytest.approx(0.0, abs=1e-6)
    total = sum(numbers(found.roles[role].grad) for role in ("lookup", "readout"))
    np.testing.assert_allclose(total, want, rtol=1e-4, atol=1e-7)
    assert all(found.roles[role].grad_norm for role in ("lookup", "readout"))


def test_nothing_is_changed() -> None:
    model = built()
    before = {v.path: numbers(v) for v in model.variables}
    held = set(vars(model))
    tiebeam.measure(model, IDS, grad=True, spectrum=True)
    tiebeam.check_gradients(model, IDS, rows=1)
    assert all(np.array_equal(before[v.path], numbers(v)) for v in model.variables)
    assert set(vars(model)) == held
    if RUNNING == "torch":
        assert all(v.value.grad is None for v in model.trainable_variables)


def test_a_loss_of_the_callers_counts_and_another_batch_is_another_number() -> None:
    model = built()

    def loss(output: Any, batch: Any) -> Any:
        return ops.mean(ops.square(output)) + 0.0 * ops.mean(ops.cast(batch[:, 0], "float32"))

    first, second = (tiebeam.measure(model, ids, loss=loss) for ids in (IDS, IDS[::-1] * 0 + 5))
    assert first.targets == "loss="
    assert first.initial_loss == pytest.approx(float((numbers(model(IDS)) ** 2).mean()), rel=1e-5)
    assert first.initial_loss != second.initial_loss


@dataclass
class Squared:
    """A loss that has no hash."""

    times: float = 1.0

    def __call__(self, output: Any, batch: Any) -> Any:
        return self.times * ops.mean(ops.square(output))


def test_numbers_that_a_model_or_a_loss_holds_count_as_they_are_now() -> None:
    model = built(read=lambda model, h: model.times * block_read(model, h))
    model.times, times, unhashed = 1.0, 1.0, Squared()

    def loss(output: Any, batch: Any) -> Any:
        return times * ops.mean(ops.square(output))

    first = tiebeam.measure(model, IDS, loss=loss).initial_loss
    assert tiebeam.measure(model, IDS, loss=unhashed).initial_loss == pytest.approx(first)
    model.times = 2.0
    assert tiebeam.measure(model, IDS, loss=loss).initial_loss == pytest.approx(4 * first, rel=1e-5)
    times = unhashed.times = 0.5
    assert tiebeam.measure(model, IDS, loss=loss).initial_loss == pytest.approx(2 * first, rel=1e-5)
    assert tiebeam.measure(model, IDS, loss=unhashed).initial_loss == pytest.approx(2 * first, rel=1e-5)


def test_each_thread_measures_its_own_batch() -> None:
    model = built()
    batches = [np.random.default_rng(seed).integers(0, VOCAB, IDS.shape).astype("int32") for seed in range(3)]
    wanted = [tiebeam.measure(model, ids).initial_loss for ids in batches]
    with ThreadPoolExecutor(3) as threads:
        found = list(threads.map(lambda ids: tiebeam.measure(model, ids).initial_loss, batches * 3))
    assert found == pytest.approx(wanted * 3, rel=1e-6)


def test_ids_and_labels_outside_of_the_vocabulary_are_refused() -> None:
    model = built()
    with pytest.raises(tiebeam.TiebeamError, match=f"labels of {VOCAB}"):
        tiebeam.measure(model, (IDS, IDS * 0 + VOCAB))
    if RUNNING != "jax":  # which looks up something else, and says nothing
        with pytest.raises(tiebeam.TiebeamError, match="does not run on these inputs"):
            tiebeam.measure(model, IDS + VOCAB, loss=lambda output, batch: ops.mean(output))


def test_a_frozen_table_is_said_to_be_frozen() -> None:
    model = built()
    model.table_of_lookup.trainable = False
    found = tiebeam.measure(model, IDS)
    assert found.roles["lookup"].grad_norm is None
    assert any("frozen" in note for note in found.notes)


def test_a_detached_role_sends_nothing() -> None:
    def detached(model: Any, ids: Any) -> Any:
        return ops.stop_gradient(block_look(model, ids))

    found = tiebeam.measure(built(detached), IDS)
    assert found.roles["lookup"].grad_norm == 0.0
    assert found.roles["readout"].grad_norm


def test_a_loss_that_is_not_finite_is_refused_with_the_table_named() -> None:
    model = built()
    table(model).assign(np.full((VOCAB, WIDTH), np.inf, "float32"))
    with pytest.raises(tiebeam.InputError, match="not finite"):
        tiebeam.measure(model, IDS)


def test_rows_without_gradient_so_far_are_counted_from_a_keras_optimizer() -> None:
    def half(model: Any, h: Any) -> Any:
        return ops.matmul(h, ops.transpose(table(model)[:30]))

    model = built(read=half)
    report = tiebeam.inspect(model, IDS)
    made = optimizer(keras.optimizers.Adam, model, report, lr=1e-3, ratios={t.name: 1.0 for t in report.tables})
    model.compile(made, LOSS, jit_compile=False)
    model.fit(IDS[:, :-1], IDS[:, 1:], verbose=0)
    found = tiebeam.measure(model, IDS, loss=lambda output, _: ops.mean(output), optimizer=model.optimizer)
    assert [t.silent_rows for t in found.tables if t.silent_rows is not None] == [VOCAB - 30]


@ops.custom_gradient
def half_a_product(h: Any, rows: Any) -> Any:
    """A fused head whose author forgot the table."""
    out = ops.matmul(h, ops.transpose(rows))

    def backward(*args: Any, upstream: Any = None) -> Any:
        (upstream,) = args or (upstream,)
        return ops.matmul(upstream, rows), ops.zeros_like(rows)

    return out, backward


def forgotten_read(model: Any, h: Any) -> Any:
    return half_a_product(h, ops.convert_to_tensor(table(model)))


@pytest.mark.skipif(RUNNING == "torch", reason="tests/measure/test_gradient_check.py has PyTorch's own functions")
def test_a_dropped_path_is_found() -> None:
    found = tiebeam.check_gradients(built(read=forgotten_read), IDS, rows=2)
    assert (found.ok, found.lookup, found.readout) == (False, "kept", "dropped")


def test_fit_is_watched(tmp_path: Path) -> None:
    model = built()
    model.compile("adam", LOSS, jit_compile=False)
    logged: list[dict[str, Any]] = []
    watch = tiebeam.Watch(model, every=2, log=logged.append, path=tmp_path / "watch.jsonl")
    callback = watch.keras_callback(IDS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for epochs in (1, 2):
            model.fit(IDS[:, :-1], IDS[:, 1:], batch_size=1, epochs=epochs, callbacks=[callback], verbose=0)
    steps = [0, 2, 4, 6, 8]
    assert [step for step, _ in watch.history] == steps
    assert [record["step"] for record in logged] == steps
    assert [json.loads(line)["step"] for line in (tmp_path / "watch.jsonl").read_text().splitlines()] == steps
    losses = [found.initial_loss for _, found in watch.history]
    assert len(set(losses)) == len(losses)  # the weights of that very step, on JAX too
    assert losses[-1] < losses[0]


def gated_read(model: Any, h: Any) -> Any:
    """TensorFlow writes the gradient of silu by hand."""
    return ops.matmul(ops.silu(h), ops.transpose(table(model)))


def test_gradients_that_the_framework_wrote_by_hand_are_followed() -> None:
    model = built(read=gated_read)
    [want] = gradients(model, [table(model)], IDS)
    found = tiebeam.measure(model, IDS, grad=True)
    total = sum(numbers(found.roles[role].grad) for role in ("lookup", "readout"))
    np.testing.assert_allclose(total, want, rtol=1e-4, atol=1e-7)
    assert found.tables[0].unaccounted == pytest.approx(0.0, abs=1e-6)
    assert tiebeam.check_gradients(model, IDS, rows=1).ok


@ops.custom_gradient
def whole_product(h: Any, rows: Any) -> Any:
    """A fused head that is right."""
    out = ops.matmul(h, ops.transpose(rows))

    def backward(*args: Any, upstream: Any = None) -> Any:
        (upstream,) = args or (upstream,)
        flat, hidden = ops.reshape(upstream, (-1, VOCAB)), ops.reshape(h, (-1, WIDTH))
        return ops.matmul(upstream, rows), ops.matmul(ops.transpose(flat), hidden)

    return out, backward


@pytest.mark.skipif(RUNNING == "torch", reason="tests/measure/test_split.py has PyTorch's own functions")
def test_a_fused_head_is_a_readout() -> None:
    model = built(read=lambda model, h: whole_product(h, ops.convert_to_tensor(table(model))))
    plain, fused = (tiebeam.measure(m, IDS, grad=True) for m in (built(read=plain_read), model))
    for role in ("lookup", "readout"):
        want, got = (numbers(m.roles[role].grad) for m in (plain, fused))
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-7)
    assert tiebeam.check_gradients(model, IDS, rows=1).ok


class Bare(Model):
    """Without a layer between: nothing in float32."""

    def call(self, ids: Any) -> Any:
        return self.read(self, self.norm(self.look(self, ids)))


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_a_right_gradient_of_a_model_in_half_precision_is_not_called_wrong(policy: str) -> None:
    """Losses are rounded to more than a move of a row changes them by: their differences decide nothing."""
    keras.backend.clear_session(free_memory=False)
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        model = Bare(block_look, block_read)
        model.build((None, None))
        found = tiebeam.check_gradients(model, IDS)
    finally:
        keras.config.set_dtype_policy(before)
    assert "wrong" not in (found.lookup, found.readout)
    assert not any(p.right is False for p in found.probes)


class Losing(Model):
    """Returns its loss, without the logits."""

    def call(self, ids: Any) -> Any:
        x = self.look(self, ids)
        return self.table_of_readout.loss(self.norm(x + self.mix(x))[:, :-1], ids[:, 1:])


def test_a_model_that_returns_a_readout_loss_is_measured_as_one_that_returns_logits() -> None:
    model = Losing(block_look, block_read)
    model.build((None, None))
    found, by_logits = tiebeam.measure(model, IDS), tiebeam.measure(built(), IDS)
    assert found.loss == pytest.approx(by_logits.loss, rel=1e-5)
    for role in ("lookup", "readout"):
        assert found.roles[role].grad_norm == pytest.approx(by_logits.roles[role].grad_norm, rel=1e-4)


class OwnFunction(Losing):
    """As Losing, in a `tf.function` of its own."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        import tensorflow as tf

        self.own = tf.function(super().call)

    def call(self, ids: Any) -> Any:
        return self.own(ids)


@pytest.mark.skipif(RUNNING != "tensorflow", reason="a tf.function is TensorFlow's")
def test_a_function_that_keeps_its_graph_is_looked_at_as_it_trains_and_refused_with_a_hint() -> None:
    model = OwnFunction(block_look, block_read)
    model.build((None, None))
    with pytest.raises(tiebeam.InputError, match="Hint: a model that returns logits"):
        tiebeam.measure(model, IDS)
    kept = model.own.get_concrete_function(keras.ops.convert_to_tensor(IDS))
    assert any(node.op.endswith("While") for node in kept.graph.as_graph_def().node)
