"""A number that could be a length is confirmed by a call where that can show it, and by another graph where not."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.framework import op_callbacks
from tests.keras.tensorflow.kit import WIDTH, Look, Read, built, plain_look, plain_read, seen, table_of, tokens

from tiebeam.backends.keras.tensorflow import model
from tiebeam.backends.keras.tensorflow.graph import glance

LENGTH = tokens().shape[1]
Graphs = list[tuple[int, ...]]


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Graphs:
    """The shape of the tokens of each graph that is made."""
    made: Graphs = []
    make = model.program_of

    def program_of(view: Any, args: Any, kwargs: Any, extend: Any) -> Any:
        made.append(tuple(args[0].shape))
        return make(view, args, kwargs, extend)

    monkeypatch.setattr(model, "program_of", program_of)
    return made


def capped(m: Any, h: Any) -> Any:
    return 30.0 * tf.tanh(tf.matmul(h, m.table, transpose_b=True) * 2.0 / 30.0)


CONFIRMED: dict[str, tuple[Look, Read, float, float, float | None]] = {
    "a lookup": (lambda m, ids: plain_look(m, ids) * 3.0, plain_read, 3.0, 1.0, None),
    "a root of the width": (lambda m, ids: plain_look(m, ids) * WIDTH**0.5, plain_read, WIDTH**0.5, 1.0, None),
    "a readout": (plain_look, lambda m, h: plain_read(m, h) / 4.0, 1.0, 0.25, None),
    "a hidden state": (plain_look, lambda m, h: plain_read(m, h * 0.5), 1.0, 0.5, None),
    "a negated one": (lambda m, ids: -(plain_look(m, ids) * 3.0), plain_read, -3.0, 1.0, None),
    "a soft cap": (lambda m, ids: plain_look(m, ids) * 3.0, capped, 3.0, 2.0, 30.0),
    "a number of a smaller dtype": (
        lambda m, ids: tf.cast(tf.cast(plain_look(m, ids), tf.bfloat16) * 2.5, tf.float32), plain_read, 2.5, 1.0, None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CONFIRMED)
def test_a_number_is_confirmed_without_another_graph(name: str, graphs: Graphs) -> None:
    look, read, looked, readout, cap = CONFIRMED[name]
    table = table_of(seen(built(look=look, read=read)))
    assert (table.lookup_factor, table.readout_factor) == (pytest.approx(looked), pytest.approx(readout))
    assert table.soft_cap == (None if cap is None else pytest.approx(cap))
    assert graphs == [(2, LENGTH)]


def length(x: Any) -> float:
    return float(x.shape[1])


def sized(m: Any, ids: Any) -> Any:
    return tf.cast(tf.shape(ids)[1], tf.float32)


def twice_elsewhere(m: Any, ids: Any) -> Any:
    x = plain_look(m, ids) * 8.0
    return x if ids.shape[1] == LENGTH else x * 2.0


def copies(m: Any, ids: Any) -> Any:
    return tf.reduce_sum(tf.stack([plain_look(m, ids) * 3.0] * ids.shape[1]), 0)


def added_up(m: Any, ids: Any) -> Any:
    x = plain_look(m, ids)
    return sum(x * 3.0 for _ in range(ids.shape[1]))


SIZES: dict[str, tuple[Look, Read, str]] = {
    "its root": (lambda m, ids: plain_look(m, ids) * length(ids) ** 0.5, plain_read, "lookup"),
    "a fraction of it": (lambda m, ids: plain_look(m, ids) * 3.0 * (length(ids) / LENGTH), plain_read, "lookup"),
    "from the graph": (lambda m, ids: plain_look(m, ids) * sized(m, ids), plain_read, "lookup"),
    "a step more at other lengths": (twice_elsewhere, plain_read, "lookup"),
    "of the hidden state": (plain_look, lambda m, h: plain_read(m, h / length(h)), "readout"),
    "of the logits": (plain_look, lambda m, h: plain_read(m, h) / length(h), "readout"),
    "a sum of as many copies": (copies, plain_read, "lookup"),
    "a sum of as many terms": (added_up, plain_read, "lookup"),
    "one here, behind a product": (
        lambda m, ids: plain_look(m, ids) * 3.0,
        lambda m, h: plain_read(m, h) * (length(h) / LENGTH),
        "readout",
    ),
    "the batch": (lambda m, ids: plain_look(m, ids) * float(ids.shape[0]), plain_read, "lookup"),
}


@pytest.mark.parametrize("name", SIZES)
def test_a_size_of_the_inputs_is_no_constant(name: str, graphs: Graphs) -> None:
    look, read, role = SIZES[name]
    table = table_of(seen(built(look=look, read=read)))
    assert getattr(table, f"{role}_factor") is None
    assert any("comes from the inputs" in note for note in table.notes)
    assert len(graphs) == 2  # the reason is a whole pass's


def test_a_size_beside_a_number_is_found(graphs: Graphs) -> None:
    """The readout's is a length, the lookup's is none: the whole pass tells them apart."""
    model = built(look=lambda m, ids: plain_look(m, ids) * 3.0, read=lambda m, h: plain_read(m, h) * length(h))
    table = table_of(seen(model))
    assert (table.lookup_factor, table.readout_factor) == (3.0, None)
    assert len(graphs) == 2


def test_a_number_that_stands_in_two_places_is_looked_at_in_both(graphs: Graphs) -> None:
    def read(m: Any, h: Any) -> Any:
        return plain_read(m, h * (m.number if h.shape[1] == LENGTH else 7.0))

    hold = {"number": tf.constant(3.0)}
    model = built(look=lambda m, ids: plain_look(m, ids) * m.number, read=read, hold=lambda m: vars(m).update(hold))
    table = table_of(seen(model))
    assert (table.lookup_factor, table.readout_factor) == (3.0, None)
    assert len(graphs) == 2


ELSEWHERE: dict[str, Look] = {
    "in a function": lambda m, ids: tf.function(lambda x: x * 3.0, autograph=False)(plain_look(m, ids)),
    "spread out before": lambda m, ids: plain_look(m, ids) * tf.fill(tf.shape(plain_look(m, ids)), 3.0),
    "in a sum of equal terms": lambda m, ids: tf.add_n([plain_look(m, ids)] * 3),
}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_a_number_that_a_call_does_not_show_is_confirmed_by_another_graph(name: str, graphs: Graphs) -> None:
    assert table_of(seen(built(look=ELSEWHERE[name]))).lookup_factor == pytest.approx(3.0)
    assert len(graphs) == 2


def test_work_beyond_the_bound_is_left_to_another_graph(graphs: Graphs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(glance, "WORK", 1)
    table = table_of(seen(built(read=lambda m, h: plain_read(m, h) / 4.0)))
    assert table.readout_factor == 0.25
    assert len(graphs) == 2


def test_a_length_that_the_model_refuses_leaves_the_number_to_its_own(graphs: Graphs) -> None:
    def look(m: Any, ids: Any) -> Any:
        if ids.shape[1] != LENGTH:
            raise ValueError("one length only")
        return plain_look(m, ids) * 3.0

    assert table_of(seen(built(look=look))).lookup_factor == 3.0
    assert len(graphs) > 1


def counting(m: Any, ids: Any) -> Any:
    m.seen.assign_add(1.0)
    return plain_look(m, ids) * 3.0


def drawing(m: Any, ids: Any) -> Any:
    return plain_look(m, ids) * 3.0 + 0.0 * tf.random.normal((WIDTH,))


@pytest.mark.parametrize("look", [counting, drawing])
def test_what_a_call_would_change_is_left_to_a_graph(look: Look, graphs: Graphs) -> None:
    model = built(look=look, hold=lambda m: vars(m).update(seen=tf.Variable(1.0)))
    before = model.seen.numpy()
    tf.random.set_seed(5)
    expected = tf.random.normal((3,)).numpy()
    tf.random.set_seed(5)
    assert table_of(seen(model)).lookup_factor == 3.0
    assert np.array_equal(tf.random.normal((3,)).numpy(), expected)
    assert model.seen.numpy() == before
    assert len(graphs) == 2


@pytest.mark.parametrize("raises", [False, True])
def test_nothing_is_watched_afterwards(raises: bool) -> None:
    def look(m: Any, ids: Any) -> Any:
        if raises and ids.shape[1] != LENGTH:
            raise ValueError("one length only")
        return plain_look(m, ids) * 3.0

    model = built(look=look)
    before = [v.numpy() for v in model.variables]
    seen(model)
    assert not context.context().op_callbacks
    assert all(np.array_equal(v.numpy(), b) for v, b in zip(model.variables, before, strict=True))


def test_a_watch_of_the_callers_own_stays() -> None:
    executed: list[str] = []

    def watch(op_type: str, *_: Any, **__: Any) -> None:
        executed.append(op_type)

    model = built(look=lambda m, ids: plain_look(m, ids) * 3.0)
    op_callbacks.add_op_callback(watch)
    try:
        seen(model)
        executed.clear()
        keras.ops.exp(tf.ones(2))
        assert "Exp" in executed
    finally:
        op_callbacks.remove_op_callback(watch)
