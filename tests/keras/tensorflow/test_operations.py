"""What TensorFlow's own operations do to a table: each way to look up, to read out and to multiply.

The factors are held against numbers too: the table is moved for one role alone, and the rows and the logits follow.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tests.keras.tensorflow.kit import (
    VOCAB,
    WIDTH,
    Look,
    Read,
    built,
    plain_look,
    plain_read,
    seen,
    table_of,
    tokens,
    values,
)


def flat(h: Any) -> Any:
    return tf.reshape(h, (-1, WIDTH))


LOOKUPS: dict[str, tuple[Look, float]] = {
    "gather": (plain_look, 1.0),
    "embedding_lookup": (lambda m, ids: tf.nn.embedding_lookup(m.table.value, ids) * 3.0, 3.0),
    "several shards of one table": (lambda m, ids: tf.nn.embedding_lookup([m.table.value], ids), 1.0),
    "gather_nd": (lambda m, ids: tf.gather_nd(m.table, ids[..., None]) / 4.0, 0.25),
    "one-hot product": (lambda m, ids: tf.one_hot(ids, VOCAB) @ m.table * 2.0, 2.0),
    "one-hot of a contraction": (lambda m, ids: tf.einsum("btv,vd->btd", tf.one_hot(ids, VOCAB), m.table), 1.0),
    "one row at a time": (
        lambda m, ids: tf.stack([[m.table.value[ids[i, t]] for t in range(ids.shape[1])] for i in range(ids.shape[0])]),
        1.0,
    ),
    "raw gather": (lambda m, ids: tf.raw_ops.GatherV2(params=m.table.value, indices=ids, axis=tf.constant(0)), 1.0),
    "raw resource gather": (
        lambda m, ids: tf.raw_ops.ResourceGather(resource=m.table.value.handle, indices=ids, dtype=tf.float32) * -2.0,
        -2.0,
    ),
    "rows of the transposed table": (
        lambda m, ids: tf.transpose(tf.gather(tf.transpose(m.table), ids, axis=1), (1, 2, 0)), 1.0,
    ),
    "in a tf.function": (lambda m, ids: tf.function(lambda i: tf.gather(m.table, i) * 5.0)(ids), 5.0),
    "in nested functions": (
        lambda m, ids: tf.function(tf.function(lambda i: tf.gather(m.table, i) * 5.0))(ids) * 2.0, 10.0,
    ),
    "recomputed": (lambda m, ids: tf.recompute_grad(lambda i: tf.gather(m.table, i) * 2.0)(ids), 2.0),
    "sum of equal terms": (lambda m, ids: tf.add_n([tf.gather(m.table, ids)] * 3), 3.0),
    "a table times a number": (lambda m, ids: tf.gather(m.table * 7.0, ids), 7.0),
    "numbers that were spread out": (lambda m, ids: tf.gather(m.table, ids) * tf.fill((WIDTH,), tf.sqrt(16.0)), 4.0),
    "position rows added": (
        lambda m, ids: tf.gather(m.table, ids) * 2.0 + tf.constant(values(5, (9, WIDTH)))[: ids.shape[1]], 2.0,
    ),
    "a split and joined width": (
        lambda m, ids: tf.concat(tf.split(tf.gather(m.table, ids), 2, axis=-1)[::-1], -1) * 2.0, 2.0,
    ),
    "stacked and picked": (lambda m, ids: tf.unstack(tf.stack([tf.gather(m.table, ids)] * 2, 1), axis=1)[0] * 2.0, 2.0),
    "a slice and padding": (lambda m, ids: tf.pad(tf.gather(m.table, ids)[:, 1:], [[0, 0], [1, 0], [0, 0]]) * 2.0, 2.0),
    "masked": (lambda m, ids: tf.where((ids != 5)[..., None], tf.gather(m.table, ids), 0.0) * 2.0, 2.0),
    "dropout that is on": (lambda m, ids: tf.nn.dropout(tf.gather(m.table, ids), 0.25) * 2.0, 2.0),
}  # fmt: skip

READOUTS: dict[str, tuple[Read, float]] = {
    "transposed product": (plain_read, 1.0),
    "tensordot": (lambda m, h: tf.tensordot(h, m.table, [[2], [1]]) * 2.0, 2.0),
    "tensordot with a transposed table": (lambda m, h: tf.tensordot(h, tf.transpose(m.table), 1) / 8.0, 0.125),
    "einsum": (lambda m, h: tf.einsum("btd,vd->btv", h, m.table), 1.0),
    "einsum with an ellipsis": (lambda m, h: tf.einsum("...d,vd->...v", h, m.table) * 0.5, 0.5),
    "matrix of all positions": (lambda m, h: tf.reshape(flat(h) @ tf.transpose(m.table), (*h.shape[:2], VOCAB)), 1.0),
    "raw product": (lambda m, h: tf.raw_ops.MatMul(a=flat(h), b=m.table.value, transpose_b=True), 1.0),
    "raw stacked product": (lambda m, h: tf.raw_ops.BatchMatMulV2(x=h, y=m.table.value, adj_y=True) * 3.0, 3.0),
    "table first": (lambda m, h: tf.transpose(tf.matmul(m.table, flat(h), transpose_b=True)), 1.0),
    "multiplied and summed": (lambda m, h: tf.reduce_sum(h[:, :, None] * m.table.value, -1), 1.0),
    "a bias": (lambda m, h: tf.nn.bias_add(plain_read(m, h), tf.ones(VOCAB)), 1.0),
    "the last position": (lambda m, h: tf.linalg.matvec(m.table.value, h[:, -1]) * 2.0, 2.0),
    "in a tf.function": (lambda m, h: tf.function(lambda x: plain_read(m, x) * 3.0)(h), 3.0),
    "compiled": (lambda m, h: tf.function(lambda x: plain_read(m, x) * 3.0, jit_compile=True)(h), 3.0),
    "a factor of the width": (
        lambda m, h: plain_read(m, h * tf.math.rsqrt(tf.cast(tf.shape(h)[-1], tf.float32))), WIDTH**-0.5,
    ),
    "divided, then negated": (lambda m, h: -(plain_read(m, h) / 4.0), -0.25),
    "log-probabilities": (lambda m, h: tf.nn.log_softmax(plain_read(m, h) * 2.0), 2.0),
    "a hidden state that was multiplied": (lambda m, h: plain_read(m, h * 6.0), 6.0),
    "a custom gradient": (lambda m, h: tf.custom_gradient(lambda x: (x * 2.0, lambda g: g))(plain_read(m, h)), 2.0),
    "an unused branch": (
        lambda m, h: tf.cond(tf.constant(True), lambda: plain_read(m, h) * 2.0, lambda: plain_read(m, h)), 2.0,
    ),
    "branches that agree": (
        lambda m, h: tf.cond(tf.reduce_sum(h) > 0, lambda: plain_read(m, h) * 2.0, lambda: plain_read(m, h) / 0.5), 2.0,
    ),
    "a switch": (
        lambda m, h: tf.switch_case(tf.cast(tf.reduce_sum(h), tf.int32) % 2, [lambda: plain_read(m, h)] * 2) * 2.0, 2.0,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LOOKUPS)
def test_a_lookup_is_seen_with_its_factor(name: str) -> None:
    look, factor = LOOKUPS[name]
    table = table_of(seen(built(look=look)))
    assert table.state == "tied", table.notes
    assert table.lookup_factor == pytest.approx(factor, rel=1e-6), table.notes
    assert table.readout_factor == 1.0


@pytest.mark.parametrize("name", READOUTS)
def test_a_readout_is_seen_with_its_factor(name: str) -> None:
    read, factor = READOUTS[name]
    table = table_of(seen(built(read=read)))
    assert table.state == "tied", table.notes
    assert table.readout_factor == pytest.approx(factor, rel=1e-6), table.notes
    assert table.lookup_factor == 1.0
    assert table.readouts[0].normalized
    assert table.hidden_rms == pytest.approx(1.0, rel=0.05)


def moved(model: Any, compute: Callable[[], Any]) -> Any:
    """How a result changes as the table is moved, per element of the move."""
    before, delta = compute(), values(9, std=0.05)
    kept = model.table.numpy()
    model.table.assign(kept + delta)
    after = compute()
    model.table.assign(kept)
    return np.asarray(after) - np.asarray(before), delta


@pytest.mark.parametrize(
    "name", [n for n in LOOKUPS if n not in ("dropout that is on", "a slice and padding", "masked")]
)
def test_the_rows_move_as_the_lookup_factor_says(name: str) -> None:
    look, factor = LOOKUPS[name]
    model = built(look=look)
    change, delta = moved(model, lambda: look(model, tokens()))
    expected = factor * delta[tokens()]
    if name == "a split and joined width":
        expected = np.concatenate([expected[..., WIDTH // 2 :], expected[..., : WIDTH // 2]], -1)
    np.testing.assert_allclose(change, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", [n for n in READOUTS if n != "log-probabilities"])
def test_the_logits_move_as_the_readout_factor_says(name: str) -> None:
    read, factor = READOUTS[name]
    model = built(read=read)
    hidden = tf.constant(values(4, (2, 5, WIDTH), std=1.0))
    change, delta = moved(model, lambda: read(model, hidden))
    expected = factor * (hidden.numpy() @ delta.T)
    expected = expected[:, -1] if name == "the last position" else expected
    np.testing.assert_allclose(change.reshape(expected.shape), expected, rtol=1e-3, atol=1e-5)


UNKNOWN: dict[str, tuple[Look, str]] = {
    "a size of the inputs": (
        lambda m, ids: tf.gather(m.table, ids) * tf.cast(tf.shape(ids)[1], tf.float32), "comes from the inputs",
    ),
    "a root of a size": (lambda m, ids: tf.gather(m.table, ids) * float(ids.shape[1]) ** 0.5, "comes from the inputs"),
    "a number of the inputs": (
        lambda m, ids: tf.gather(m.table, ids) * tf.cast(tf.reduce_max(ids), tf.float32), "depends on the inputs",
    ),
    "branches that differ": (
        lambda m, ids: tf.cond(
            tf.reduce_sum(ids) > 9, lambda: tf.gather(m.table, ids) * 2.0, lambda: tf.gather(m.table, ids) * 3.0
        ),
        "differ",
    ),
    "a vector": (lambda m, ids: tf.gather(m.table, ids) * tf.constant(values(8, (WIDTH,))), "is no scalar"),
    "a random number": (lambda m, ids: tf.gather(m.table, ids) * tf.random.uniform(()), "random"),
}  # fmt: skip


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_is_no_constant_is_none_with_its_reason(name: str) -> None:
    look, reason = UNKNOWN[name]
    table = table_of(seen(built(look=look)))
    assert table.lookup_factor is None
    assert any(reason in note for note in table.notes), table.notes


def test_a_soft_cap_is_seen() -> None:
    table = table_of(seen(built(read=lambda m, h: 5.0 * tf.tanh(plain_read(m, h) / 5.0))))
    assert table.soft_cap == pytest.approx(5.0)
    assert table.readout_factor == pytest.approx(1.0)


def test_a_loss_of_labels_is_where_a_readout_ends() -> None:
    def loss(m: Any, h: Any) -> Any:
        labels = tf.ones(h.shape[:2], tf.int32)
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, plain_read(m, h) * 2.0))

    assert table_of(seen(built(read=loss))).readout_factor == pytest.approx(2.0)


def test_a_role_behind_a_stopped_gradient_is_cut() -> None:
    table = table_of(seen(built(read=lambda m, h: tf.matmul(h, tf.stop_gradient(m.table.value), transpose_b=True))))
    assert table.state == "cut"


def test_a_number_that_weights_give_is_computed() -> None:
    def read(m: Any, h: Any) -> Any:
        return plain_read(m, h) * tf.reduce_mean(tf.square(m.mid.kernel))

    model = built(read=read)
    expected = float(np.square(model.mid.kernel.numpy()).mean())
    assert table_of(seen(model)).readout_factor == pytest.approx(expected, rel=1e-5)


def test_shapes_that_only_a_run_tells_are_followed() -> None:
    def look(m: Any, ids: Any) -> Any:
        kept = tf.boolean_mask(tf.gather(m.table, ids), ids > 0) * 2.0
        return tf.reshape(kept, (*ids.shape, WIDTH))

    table = table_of(seen(built(look=look)))
    assert (table.state, table.lookup_factor) == ("tied", 2.0), table.notes


def test_of_a_loop_one_round_is_followed() -> None:
    def read(m: Any, h: Any) -> Any:
        _, last = tf.while_loop(lambda i, _: i < 3, lambda i, x: (i + 1, m.norm(x + m.mid(x))), [0, h])
        return plain_read(m, last) * 2.0

    report = seen(built(read=read))
    assert table_of(report).readout_factor == pytest.approx(2.0)
    assert any("one round was followed" in note for note in report.notes)


def python(m: Any, h: Any) -> Any:
    again = tf.py_function(lambda x: x * 2.0, [h], tf.float32)
    again.set_shape(h.shape)
    return plain_read(m, again)


def test_python_inside_the_graph_is_a_barrier_with_a_note() -> None:
    report = seen(built(read=python))
    assert table_of(report).readout_factor == 1.0
    assert any("EagerPyFunc has an unknown body" in note for note in report.notes)


def test_an_operation_of_unknown_body_on_the_table_is_told() -> None:
    def read(m: Any, h: Any) -> Any:
        changed = tf.raw_ops.AdjustContrastv2(images=m.table.value[..., None], contrast_factor=2.0)
        return tf.matmul(h, changed[..., 0], transpose_b=True)

    report = seen(built(read=read))
    assert any("AdjustContrastv2 has an unknown body" in note for note in report.notes)
    assert table_of(report).state != "tied"
