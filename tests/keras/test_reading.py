"""What a report says of quantised, adapted and odd models, and of inputs that nobody passed."""

from typing import Any

import keras
import numpy as np
import pytest
from keras import ops
from tests.keras.models.kit import CASES, VOCAB, WIDTH, functional, ids, load, numbers, reversible

import tiebeam

load()


def quantised(mode: str, tie: bool) -> Any:
    keras.backend.clear_session(free_memory=False)
    e, norm, dense = reversible(tie_weights=tie), keras.layers.LayerNormalization(), keras.layers.Dense(WIDTH)
    model = functional(e, e, lambda h: e(h, reverse=True), lambda x: norm(dense(x))).model
    model.quantize(mode)
    return model


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("tie", [True, False])
@pytest.mark.parametrize("mode", ["int8", "int4"])
def test_a_quantised_table_has_its_roles_and_no_number_that_is_not_known(mode: str, tie: bool) -> None:
    model = quantised(mode, tie)
    report = tiebeam.inspect(model, ids())
    looked = next(t for t in report.tables if t.lookups and t.name.endswith("/embeddings"))
    read = next(t for t in report.tables if t.readouts)
    assert (looked is read) == tie
    assert looked.state == ("tied" if tie else "untied")
    assert looked.lookup_factor is None
    assert read.readout_factor is None
    assert looked.notes
    for table in (looked, read):
        assert (table.dtype, table.std, table.target_std) == ("int8", None, None)
    codes = {f.code for f in report.findings}
    assert "factor-unknown" in codes
    assert not codes & {"init-scale", "reparametrized-role", "copy-not-tie", "drifted"}
    before = [numbers(v) for v in model.variables]
    with pytest.raises(tiebeam.InputError, match="quantising"):
        tiebeam.initialize(model, ids())
    assert all(np.array_equal(a, numbers(v)) for a, v in zip(before, model.variables, strict=True))


def test_a_table_with_an_adapter_is_frozen_and_says_what_is_added() -> None:
    keras.backend.clear_session(free_memory=False)
    e = reversible()
    case_ = functional(e, e, lambda h: e(h, reverse=True))
    e.enable_lora(2)
    table = next(t for t in tiebeam.inspect(case_.model, ids()).tables if t.readouts)
    assert (table.state, table.trainable) == ("tied", False)
    assert (table.lookup_factor, table.readout_factor) == (1.0, 1.0)
    assert table.lookups[0].reparametrized
    assert table.readouts[0].reparametrized


def test_a_frozen_table_does_not_train() -> None:
    case_ = CASES["frozen"]()
    report = tiebeam.inspect(case_.model, case_.inputs)
    assert not report.tables[0].trainable
    assert "frozen-both-roles" in {f.code for f in report.findings}


def test_a_product_made_while_the_graph_was_drawn_is_a_constant_of_it() -> None:
    """`ops.transpose(variable)` outside a layer is computed at once: only PyTorch's is a view of the variable."""
    keras.backend.clear_session(free_memory=False)
    e, norm = keras.layers.Embedding(VOCAB, WIDTH), keras.layers.LayerNormalization()
    tokens = keras.Input((None,), dtype="int32")
    model = keras.Model(tokens, ops.matmul(norm(e(tokens)), ops.transpose(e.embeddings)))
    state = tiebeam.inspect(model, ids()).tables[0].state
    table = np.random.default_rng(0).standard_normal((VOCAB, WIDTH)).astype("float32")
    e._embeddings.assign(table)
    follows = np.allclose(numbers(model(ids())), numbers(norm(e(ids()))) @ table.T, atol=1e-3)
    assert follows == (state == "tied")
    assert follows == (keras.backend.backend() == "torch")


@pytest.mark.parametrize(
    "name",
    [
        "functional_reversible",
        "functional_dictionary_of_inputs",
        "functional_two_inputs_in_a_tuple",
        "sequential_with_a_head_on_the_table",
        "written_by_hand",
        "written_nested_in_a_class",
        "written_dictionary_in_and_out",
    ],
)
def test_inputs_are_made_by_the_signature(name: str) -> None:
    case_ = CASES[name]()
    report = tiebeam.inspect(case_.model)
    table = next(t for t in report.tables if set(t.names) & set(case_.truth.names))
    assert (table.state, table.lookup_factor) == (case_.truth.state, case_.truth.lookup_factor)


def test_a_model_of_one_length_is_looked_at_in_that_length() -> None:
    keras.backend.clear_session(free_memory=False)
    e, norm = reversible(), keras.layers.LayerNormalization()
    tokens = keras.Input((6,), dtype="int32", batch_size=2)
    model = keras.Model(tokens, e(norm(e(tokens) * 3.0), reverse=True))
    assert tiebeam.inspect(model).tables[0].lookup_factor == 3.0


@pytest.mark.parametrize(("factor", "known"), [(2.0, 2.0), (4.0, 4.0), (0.5, 0.5), (6.0, None)])
def test_in_one_length_a_factor_may_be_the_batch_but_not_the_length(factor: float, known: float | None) -> None:
    keras.backend.clear_session(free_memory=False)
    e, norm = reversible(), keras.layers.LayerNormalization()
    tokens = keras.Input((6,), dtype="int32")
    model = keras.Model(tokens, e(norm(e(tokens) * factor), reverse=True))
    for batch in (2, 4, 16):
        assert tiebeam.inspect(model, ids(batch, 6)).tables[0].lookup_factor == known


def test_ids_that_come_as_floats_are_ids() -> None:
    """An input is float32 where Keras is not told otherwise; an embedding makes integers of it."""
    keras.backend.clear_session(free_memory=False)
    e, norm = reversible(), keras.layers.LayerNormalization()
    tokens = keras.Input((None,))
    model = keras.Model(tokens, e(norm(e(tokens) * 3.0), reverse=True))
    [table] = tiebeam.inspect(model, ids().astype("float32")).tables
    assert (table.state, table.lookup_factor) == ("tied", 3.0)
