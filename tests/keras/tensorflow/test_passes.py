"""What a pass leaves behind, and what it says where it cannot run."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tests.keras.tensorflow.kit import VOCAB, WIDTH, built, plain_look, plain_read, seen, table_of, tokens, values

import tiebeam
from tiebeam.errors import InputError, TraceError


def holding(name: str, make: Any) -> Any:
    """Puts something on the model that Keras does not track."""

    def hold(model: Any) -> None:
        vars(model)[name] = make()

    return hold


def test_a_variable_of_tensorflow_in_an_attribute_is_a_table_by_its_path() -> None:
    model = built(
        look=lambda m, ids: tf.gather(m.own, ids) * 3.0,
        read=lambda m, h: tf.matmul(h, m.own, transpose_b=True),
        hold=holding("own", lambda: tf.Variable(values(2))),
    )
    table = table_of(seen(model), "lm/own")
    assert (table.state, table.lookup_factor, table.readout_factor) == ("tied", 3.0, 1.0)
    assert not table.trainable  # no optimizer of Keras steps it


def test_a_variable_of_nobody_is_a_table_too() -> None:
    loose = tf.Variable(values(2), name="loose")
    model = built(look=lambda m, ids: tf.gather(loose, ids), read=lambda m, h: tf.matmul(h, loose, transpose_b=True))
    (table,) = [t for t in seen(model).tables if t.tied]
    assert table.names == ("loose:0",)
    assert table.std == pytest.approx(float(np.sqrt((loose.numpy() ** 2).mean())), rel=1e-5)


def test_what_a_pass_writes_into_variables_is_put_back() -> None:
    def look(m: Any, ids: Any) -> Any:
        m.seen.assign_add(1.0)
        return tf.gather(m.table, ids) * m.seen

    model = built(look=look, hold=holding("seen", lambda: tf.Variable(1.0)))
    before = model.seen.numpy()
    table = table_of(seen(model))
    assert model.seen.numpy() == before
    assert table.lookup_factor == pytest.approx(before + 1.0)  # the value that the pass itself used


def test_an_order_of_writes_is_kept() -> None:
    def look(m: Any, ids: Any) -> Any:
        rows = tf.gather(m.table, ids) * m.by
        m.by.assign(100.0)
        return rows

    model = built(look=look, hold=holding("by", lambda: tf.Variable(4.0)))
    model.by.assign(4.0)
    assert table_of(seen(model)).lookup_factor == pytest.approx(4.0)
    assert model.by.numpy() == 4.0


def test_a_generator_of_tensorflow_is_as_it_was() -> None:
    def look(m: Any, ids: Any) -> Any:
        return tf.gather(m.table, ids) + m.drawn.normal((WIDTH,))

    model = built(look=look, hold=holding("drawn", lambda: tf.random.Generator.from_seed(3)))
    before = model.drawn.state.numpy().copy()
    assert table_of(seen(model)).tied
    assert np.array_equal(model.drawn.state.numpy(), before)


def everything(model: Any) -> list[Any]:
    return [v.numpy().copy() for v in model.variables]


def test_seeds_and_statistics_are_as_they_were() -> None:
    keras.backend.clear_session(free_memory=False)
    table = keras.layers.Embedding(VOCAB, WIDTH)
    noise, mean = keras.layers.GaussianNoise(0.1, seed=3), keras.layers.BatchNormalization()
    ids = keras.Input((None,), dtype="int32")
    hidden = mean(noise(table(ids), training=True), training=True)
    model = keras.Model(ids, keras.ops.matmul(hidden, keras.ops.ones((WIDTH, 3))))
    before, state = everything(model), tf.random.get_global_generator().state.numpy().copy()
    report = tiebeam.inspect(model, tokens())
    assert report.tables
    after = everything(model)
    assert len(before) > 5
    assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))
    assert np.array_equal(state, tf.random.get_global_generator().state.numpy())


def test_random_numbers_that_come_after_are_those_that_would_have_come() -> None:
    model = built(look=lambda m, ids: plain_look(m, ids) + tf.random.normal((WIDTH,)))

    def numbers(between: Any) -> list[float]:
        tf.random.set_seed(5)
        first = float(tf.random.uniform(()))
        between()
        return [first, float(tf.random.uniform(())), float(keras.random.uniform(()))]

    keras.utils.set_random_seed(1)
    without = numbers(lambda: None)
    keras.utils.set_random_seed(1)
    assert numbers(lambda: seen(model)) == without


def test_no_loss_of_the_graph_stays_with_the_model() -> None:
    def read(m: Any, h: Any) -> Any:
        m.add_loss(tf.reduce_mean(h))
        return plain_read(m, h)

    model = built(read=read)
    seen(model)
    assert all(isinstance(float(loss), float) for loss in model.losses)


def test_nothing_of_tensorflow_is_switched() -> None:
    before = (tf.config.functions_run_eagerly(), tf.config.optimizer.get_experimental_options())
    seen(built())
    after = (tf.config.functions_run_eagerly(), tf.config.optimizer.get_experimental_options())
    assert {k: v for k, v in after[1].items() if v} == {k: v for k, v in before[1].items() if v}
    assert after[0] == before[0]


def test_a_model_that_raises_is_refused_with_its_own_error() -> None:
    model = built()
    model.look = lambda m, ids: tf.reshape(tf.gather(m.table, ids), (2, 5, WIDTH))
    before = everything(model)
    with pytest.raises(InputError, match="does not run on these inputs") as caught:
        tiebeam.inspect(model, tokens(3, 4))
    assert isinstance(caught.value.__cause__, tf.errors.InvalidArgumentError)
    assert all(np.array_equal(a, b) for a, b in zip(before, everything(model), strict=True))


def test_a_model_that_asks_for_values_is_told_so() -> None:
    def look(m: Any, ids: Any) -> Any:
        return plain_look(m, ids) * (2.0 if ids.numpy().max() > 3 else 1.0)

    with pytest.raises(TraceError, match=r"runs, but not as a tf\.function"):
        seen(built(look=look))


def test_a_branch_in_python_is_followed_inside_a_tf_function() -> None:
    @tf.function
    def look(m: Any, ids: Any) -> Any:
        rows = tf.gather(m.table, ids)
        if tf.reduce_max(ids) > 3:
            rows = rows * 4.0
            rows = rows / 2.0
        else:
            rows = rows * 2.0
        return rows

    assert table_of(seen(built(look=look))).lookup_factor == pytest.approx(2.0)


def test_the_second_look_traces_nothing_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    from tiebeam.backends import resolve
    from tiebeam.backends.keras.tensorflow import model as module

    view: Any = resolve(built())
    args, kwargs = view.arguments(tokens())
    first = view.trace(args, kwargs)

    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("traced again")

    monkeypatch.setattr(module, "program_of", never)
    view.model.table.assign(view.model.table * 2.0)
    again = view.trace(args, kwargs, logits=True)
    (lookup,) = [n for n in first.graph.nodes if n.op.name == "GATHER"]
    assert again.graph.rms[lookup.output] == pytest.approx(2.0 * first.graph.rms[lookup.output], rel=1e-5)
    assert again.graph.logit_std


def test_measured_sizes_are_those_of_the_pass() -> None:
    model = built(look=lambda m, ids: tf.gather(m.table, ids) * 3.0)
    rows = model.look(model, tokens())
    stream = rows + model.mid(rows)
    hidden = model.norm(stream)
    table = table_of(seen(model))
    looked = model.table.numpy()[tokens()]
    assert table.hidden_rms == pytest.approx(float(np.sqrt(np.mean(hidden.numpy() ** 2))), rel=1e-5)
    assert table.lookups[0].rms == pytest.approx(3.0 * float(np.sqrt(np.mean(looked**2))), rel=1e-5)
    a, b = stream.numpy().reshape(-1, WIDTH), looked.reshape(-1, WIDTH)
    cosines = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    assert table.readouts[0].kappa == pytest.approx(float(cosines.mean()), abs=1e-5)


def test_the_logits_are_of_unit_variance_after_initialising() -> None:
    model = built(read=lambda m, h: plain_read(m, h) / 4.0)
    report = tiebeam.initialize(model, tokens())
    table = table_of(report)
    assert table.std == pytest.approx(table.target_std, rel=0.2)
    assert float(np.std(model(tokens()).numpy())) == pytest.approx(1.0, rel=0.3)
