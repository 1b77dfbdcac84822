"""Whole models of kinds that only TensorFlow's graph has: text, ragged rows, loops over lists, mirrored variables."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops
from tests.keras.tensorflow.kit import VOCAB, WIDTH, built, plain_look, seen, table_of, tokens

import tiebeam


class Sequence(keras.Layer):
    """A table that serves both roles, and a normalisation; a case writes `call`."""

    def __init__(self, call: Callable[[Any, Any], Any]) -> None:
        super().__init__(name="lm")
        self.table = keras.layers.ReversibleEmbedding(VOCAB, WIDTH, name="table")
        self.norm = keras.layers.LayerNormalization(name="norm")
        self.weigh = self.add_weight((3, WIDTH, WIDTH), name="weigh")
        self.run = call

    def build(self, shape: Any) -> None:
        self.table.build(None)
        self.norm.build((None, WIDTH))

    def call(self, ids: Any) -> Any:
        return self.run(self, ids)


def recurrent(m: Any, ids: Any) -> Any:
    last, _ = ops.scan(lambda carry, w: (carry + ops.tanh(carry @ w), None), m.table(ids) * 2.0, m.weigh)
    return m.table(m.norm(last), reverse=True)


def cached(m: Any, ids: Any) -> Any:
    rows = m.table(ids) * 2.0
    held = ops.slice_update(ops.zeros((*ids.shape[:1], 9, WIDTH)), (0, 0, 0), rows)
    return m.table(m.norm(ops.slice(held, (0, 0, 0), rows.shape)), reverse=True)


CALLS: dict[str, tuple[Callable[[Any, Any], Any], float, float]] = {
    "mapped lookups": (
        lambda m, ids: m.table(m.norm(ops.map(lambda i: m.table(i) * 2.0, ids)), reverse=True), 2.0, 1.0,
    ),
    "mapped readouts": (
        lambda m, ids: ops.map(lambda h: m.table(h, reverse=True) * 3.0, m.norm(m.table(ids))), 1.0, 3.0,
    ),
    "vectorized": (
        lambda m, ids: m.table(m.norm(ops.vectorized_map(lambda i: m.table(i) * 2.0, ids)), reverse=True), 2.0, 1.0,
    ),
    "scanned layers": (recurrent, 2.0, 1.0),
    "a cache": (cached, 2.0, 1.0),
    "a switch of keras.ops": (
        lambda m, ids: ops.cond(
            ops.sum(ids) > 3,
            lambda: m.table(m.norm(m.table(ids)), reverse=True) * 5.0,
            lambda: m.table(m.norm(m.table(ids)), reverse=True) * 5.0,
        ),
        1.0,
        5.0,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_loops_and_branches_of_keras_are_followed(name: str) -> None:
    call, lookup, readout = CALLS[name]
    keras.backend.clear_session(free_memory=False)
    model = Sequence(call)
    model(tokens(2, 7))
    table = table_of(tiebeam.inspect(model, tokens(2, 7)), "lm/table/embeddings")
    assert table.state == "tied", table.notes
    # 2 is the size of the batch as well: those that take one batch only cannot tell the two apart.
    assert (table.lookup_factor, table.readout_factor) == (pytest.approx(lookup), pytest.approx(readout)), table.notes


@pytest.mark.parametrize("layer", [keras.layers.LSTM, keras.layers.GRU, keras.layers.SimpleRNN])
def test_recurrent_layers_stand_between_the_roles(layer: Any) -> None:
    keras.backend.clear_session(free_memory=False)
    ids = keras.Input((None,), dtype="int32")
    table = keras.layers.ReversibleEmbedding(VOCAB, WIDTH, name="table")
    hidden = layer(WIDTH, return_sequences=True)(table(ids) * 4.0)
    model = keras.Model(ids, table(hidden, reverse=True) / 8.0)
    found = table_of(tiebeam.inspect(model, tokens()), "table/embeddings")
    assert (found.state, found.lookup_factor, found.readout_factor) == ("tied", 4.0, 0.125)
    expected = keras.Model(ids, hidden)(tokens()).numpy()
    assert found.hidden_rms == pytest.approx(float(np.sqrt((expected**2).mean())), rel=1e-5)


def test_ids_may_come_from_text() -> None:
    keras.backend.clear_session(free_memory=False)
    words = keras.layers.TextVectorization(max_tokens=VOCAB, output_sequence_length=6)
    words.adapt(["a b c d e", "f g h"])
    table = keras.layers.ReversibleEmbedding(VOCAB, WIDTH, name="table")
    text = keras.Input((1,), dtype="string")
    model = keras.Model(text, table(keras.layers.LayerNormalization()(table(words(text)) * 3.0), reverse=True))
    found = table_of(tiebeam.inspect(model, tf.constant([["a b c"], ["d a"]])), "table/embeddings")
    assert (found.state, found.lookup_factor, found.readout_factor) == ("tied", 3.0, 1.0)


def test_rows_may_be_ragged() -> None:
    def call(m: Any, ids: Any) -> Any:
        return ids.with_values(m.table(m.norm(m.table(ids.values) * 3.0), reverse=True))

    keras.backend.clear_session(free_memory=False)
    model = Sequence(call)
    ids = tf.ragged.constant([[1, 2, 3], [4, 5]], dtype=tf.int32)
    model.build(None)
    model.built = True
    found = table_of(tiebeam.inspect(model, (ids,)), "lm/table/embeddings")
    assert (found.state, found.readout_factor) == ("tied", 1.0)
    # It could be a size of the inputs, and ragged ones are not cropped.
    assert found.lookup_factor is None
    assert any("it could come from the inputs" in note for note in found.notes), found.notes


def test_a_number_that_only_rounds_change_is_not_said_to_be_constant() -> None:
    def look(m: Any, ids: Any) -> Any:
        _, rows = tf.while_loop(lambda i, _: i < 3, lambda i, x: (i + 1, x * 2.0), [0, plain_look(m, ids)])
        return rows

    table = table_of(seen(built(look=look)))
    assert table.lookup_factor is None  # 2 of one round would be wrong, and 8 is not followed
    assert "a loop that multiplies what it carries" in table.notes[0]


MIRRORED = """
import os
os.environ["KERAS_BACKEND"] = "tensorflow"
import keras, numpy as np, tensorflow as tf, tiebeam
(cpu,) = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
    ids = keras.Input((None,), dtype="int32")
    table = keras.layers.ReversibleEmbedding(300, 16, name="table")
    model = keras.Model(ids, table(keras.layers.LayerNormalization()(table(ids) * 4.0), reverse=True))
data = np.arange(8, dtype="int32")[None]
(found,) = tiebeam.inspect(model, data).tables
assert (found.state, found.names, found.lookup_factor) == ("tied", ("table/embeddings",), 4.0), found
(fresh,) = tiebeam.initialize(model, data).tables
copies = [v.numpy() for v in table._embeddings._value.values]
assert len(copies) == 2 and np.array_equal(*copies), copies
assert abs(copies[0].std() / fresh.target_std - 1) < 0.05, (copies[0].std(), fresh.target_std)
print("all copies")
"""


@pytest.mark.slow
def test_every_copy_of_a_mirrored_table_is_written() -> None:
    root = Path(__file__).resolve().parents[3]
    done = subprocess.run(
        [sys.executable, "-c", MIRRORED], cwd=root / "src", capture_output=True, text=True, check=False
    )
    assert done.stdout.strip().endswith("all copies"), done.stderr[-2000:]
