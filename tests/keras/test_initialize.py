"""`initialize` on Keras models: written in place, the draws of every framework, and nothing else touched."""

from typing import Any

import keras
import numpy as np
import pytest
from keras import ops
from tests.keras.models.kit import CASES, Written, ids, load, normal, numbers

import tiebeam

load()
V, D = 300, 48
IDS = np.random.default_rng(1).integers(0, V, (4, 32)).astype("int32")


def language_model(dtype: str = "float32", body: Any = None, **options: Any) -> tuple[Any, Any]:
    """Half of the logits of a normalised stream; the model and its table."""
    keras.backend.clear_session(free_memory=False)
    e = keras.layers.ReversibleEmbedding(V, D, dtype=dtype, **options)
    norm = body or keras.layers.RMSNormalization(dtype=dtype)
    tokens = keras.Input((None,), dtype="int32")
    return keras.Model(tokens, e(norm(e(tokens)), reverse=True) * 0.5), e._embeddings


def state_of(model: Any) -> list[tuple[str, Any]]:
    return [(v.path, numbers(v)) for v in model.variables]


def test_logits_start_at_unit_variance_and_the_report_says_so() -> None:
    model, table = language_model()
    report = tiebeam.initialize(model, IDS)
    assert report.framework == "keras"
    assert {"keras", keras.backend.backend()} <= report.versions.keys()
    assert (report.init[0].mode, report.init[0].settled) == ("analytic", True)
    assert report.init[0].std == pytest.approx(2 / D**0.5, rel=1e-3)
    assert numbers(model(IDS)).std() == pytest.approx(1.0, rel=0.1)
    assert numbers(table).std() == pytest.approx(report.init[0].std, rel=0.02)
    report.assert_healthy()


def test_drawing_twice_is_drawing_once() -> None:
    model, table = language_model()
    tiebeam.initialize(model, IDS)
    once = numbers(table)
    tiebeam.initialize(model, IDS)
    assert np.array_equal(numbers(table), once)


def test_without_a_norm_the_std_is_measured_and_settles() -> None:
    dense, add = keras.layers.Dense(D, activation="tanh"), keras.layers.Add()
    model, _ = language_model(body=lambda x: add([x, dense(x)]))
    report = tiebeam.initialize(model, IDS)
    assert (report.init[0].mode, report.init[0].settled) == ("empirical", True)
    assert 0 < report.init[0].rounds <= 8
    assert numbers(model(IDS)).std() == pytest.approx(1.0, rel=0.03)


def test_asked_to_measure_it_measures() -> None:
    model, _ = language_model()
    report = tiebeam.initialize(model, IDS, mode="empirical")
    assert report.init[0].mode == "empirical"
    assert numbers(model(IDS)).std() == pytest.approx(1.0, rel=0.03)


def test_everything_but_the_table_stays() -> None:
    case = CASES["written_training_branches"]()
    flags = [(layer.built, layer.trainable) for layer in case.model._flatten_layers()]
    before = state_of(case.model)
    tiebeam.initialize(case.model, case.inputs)
    after = state_of(case.model)
    changed = [path for (path, a), (_, b) in zip(before, after, strict=True) if not np.array_equal(a, b)]
    assert changed == [case.table.path]
    assert any("seed" in path for path, _ in after)
    assert any("moving" in path for path, _ in after)
    assert [(layer.built, layer.trainable) for layer in case.model._flatten_layers()] == flags


@pytest.mark.filterwarnings("ignore:.*destroy the mask")
def test_a_row_of_zeros_stays_one_and_a_masked_row_is_drawn_like_any_other() -> None:
    model, table = language_model(mask_zero=True)
    rows = numbers(table)
    rows[3] = 0
    table.assign(rows)
    report = tiebeam.initialize(model, IDS)
    assert report.init[0].zero_rows == (3,)
    assert not numbers(table)[3].any()
    assert numbers(table)[0].all()


def test_a_table_of_zeros_is_drawn_whole() -> None:
    model, table = language_model(embeddings_initializer="zeros")
    report = tiebeam.initialize(model, IDS)
    assert report.init[0].zero_rows == ()
    assert numbers(table).all()


def test_a_bias_of_the_readout_becomes_zero_unless_it_is_frozen() -> None:
    case = CASES["functional_bias_of_its_own"]()
    bias = next(v for v in case.model.variables if v.path.endswith("/bias") and v.shape == (37,))
    report = tiebeam.initialize(case.model, case.inputs)
    assert report.init[0].biases == (bias.path,)
    assert not numbers(bias).any()

    case = CASES["functional_bias_of_its_own"]()
    bias = next(v for v in case.model.variables if v.path.endswith("/bias") and v.shape == (37,))
    bias.trainable = False
    assert tiebeam.initialize(case.model, case.inputs).init[0].biases == ()
    assert numbers(bias).any()


def test_a_table_stored_the_other_way_round_gets_the_same_draws() -> None:
    case = CASES["written_own_weight_wide"]()
    tiebeam.initialize(case.model, case.inputs, seed=5)
    wide = numbers(case.table)

    class Tall(Written):
        def make_embed(self) -> None:
            self.table = self.add_weight(shape=(37, 8), name="table", initializer=normal())

        def look(self, tokens: Any) -> Any:
            return ops.take(self.table, tokens, axis=0) * 2.0

        def read(self, h: Any) -> Any:
            return ops.matmul(h, ops.transpose(self.table))

    tall = Tall()
    tall(ids())
    tiebeam.initialize(tall, ids(), seed=5)
    assert np.array_equal(numbers(tall.table).T, wide)


@pytest.mark.filterwarnings("ignore")  # of Keras' quantisers
def test_a_table_that_cannot_be_written_leaves_every_other_as_it_was() -> None:
    keras.backend.clear_session(free_memory=False)
    one, other = (keras.layers.ReversibleEmbedding(V, D, name=name) for name in ("one", "other"))
    body = residual_of(D)
    tokens = keras.Input((None,), dtype="int32")
    hidden = body(one(tokens) + other(tokens))
    model = keras.Model(tokens, [one(hidden, reverse=True), other(hidden, reverse=True)])
    other.quantize("int8")
    before = state_of(model)
    with pytest.raises(tiebeam.InputError, match="quantising"):
        tiebeam.initialize(model, IDS)
    after = state_of(model)
    assert all(np.array_equal(a, b) for (_, a), (_, b) in zip(before, after, strict=True))


def residual_of(width: int) -> Any:
    dense, add = keras.layers.Dense(width, activation="tanh"), keras.layers.Add()
    norm = keras.layers.LayerNormalization()
    return lambda x: norm(add([x, dense(x)]))


def test_writing_into_a_new_tree_is_refused_with_the_call_that_serves() -> None:
    model, _ = language_model()
    with pytest.raises(tiebeam.InputError, match=r"tiebeam\.initialize\(model"):
        tiebeam.initialize_params(model, IDS)


def test_a_nested_and_an_untied_model_start_at_unit_logits() -> None:
    for name in ("functional_backbone_holds_the_table", "untied_reverse_embeddings"):
        case = CASES[name]()
        report = tiebeam.initialize(case.model, case.inputs)
        assert all(done.settled for done in report.init), name
        assert numbers(case.model(case.inputs)).std() == pytest.approx(1.0, rel=0.4), name  # 37 x 10 logits
