"""What cannot be looked at: what it is, what came, what was expected, and what to do."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from tests.keras.models.kit import CASES, VOCAB, WIDTH, Written, embedding, ids, load, numbers

import tiebeam

load()
ROOT = Path(__file__).resolve().parents[2]


def test_a_model_that_was_never_called_is_refused_and_stays_unbuilt() -> None:
    for model in (Written(), keras.Sequential([embedding(), keras.layers.Dense(3)])):
        for inputs in (None, ids()):
            with pytest.raises(tiebeam.InputError, match="is not built") as caught:
                tiebeam.inspect(model, inputs)
            assert caught.value.hint
        assert not model.built
        assert not model.variables


def test_a_model_that_can_be_built_is_not_built_by_looking_at_it() -> None:
    model = Written()
    with pytest.raises(tiebeam.InputError, match="call the model once"):
        tiebeam.initialize(model, ids())
    model(ids())
    assert tiebeam.initialize(model, ids()).init


@pytest.mark.filterwarnings("ignore")  # Keras warns of the mistake as well
def test_a_layer_inside_that_was_never_built_is_named_and_stays_unbuilt() -> None:
    class Half(Written):
        def build(self, shape: Any) -> None:
            self.embed.build()
            self.norm.build((None, None, WIDTH))

    keras.backend.clear_session(free_memory=False)
    model = Half()
    model.build((None, None))
    before = len(model.variables)
    with pytest.raises(tiebeam.InputError, match=r"its layer 'dense' .* is not"):
        tiebeam.inspect(model, ids())
    assert not model.mid.built
    assert len(model.variables) == before
    model(ids())
    assert tiebeam.inspect(model, ids()).tables[0].state == "tied"


def test_inputs_that_the_model_refuses_come_with_its_own_error() -> None:
    case = CASES["functional_dictionary_of_inputs"]()
    with pytest.raises(tiebeam.InputError, match="does not run on these inputs") as caught:
        tiebeam.inspect(case.model, {"token_ids": ids()})
    assert caught.value.__cause__ is not None
    assert caught.value.got
    case = CASES["functional_reversible"]()
    with pytest.raises(tiebeam.InputError, match="does not run"):
        tiebeam.inspect(case.model, np.zeros((2, 3, 4, 5), "float32"))


def test_symbolic_inputs_are_no_arrays() -> None:
    case = CASES["functional_reversible"]()
    with pytest.raises(tiebeam.InputError, match="symbolic") as caught:
        tiebeam.inspect(case.model, keras.Input((3,), dtype="int32"))
    assert "(None, 3)" in caught.value.got


def test_a_batch_of_nothing_is_refused() -> None:
    case = CASES["functional_reversible"]()
    why = "nothing to look up" if keras.backend.backend() == "jax" else "the inputs are empty"
    with pytest.raises(tiebeam.InputError, match=why):
        tiebeam.inspect(case.model, np.zeros((0, 3), "int32"))


def test_few_bits_are_tried_on_pytorch_and_jax_and_refused_by_name_on_tensorflow() -> None:
    case = CASES["functional_reversible"]()
    if keras.backend.backend() == "tensorflow":
        with pytest.raises(tiebeam.BackendError, match=r"sensitivity does not know(.|\n)*or of Keras on one of them"):
            tiebeam.sensitivity(case.model, case.inputs)
    else:
        assert tiebeam.sensitivity(case.model, case.inputs).effects


def test_params_beside_a_model_that_holds_its_own() -> None:
    case = CASES["functional_reversible"]()
    with pytest.raises(tiebeam.InputError, match="holds its own"):
        tiebeam.inspect(case.model, case.inputs, params={})


def test_a_class_is_no_model() -> None:
    with pytest.raises(tiebeam.BackendError, match="a model made of it"):
        tiebeam.inspect(Written, ids())


def test_a_model_without_a_table_has_none() -> None:
    keras.backend.clear_session(free_memory=False)
    x = keras.Input((4,))
    model = keras.Model(x, keras.layers.Dense(3)(x))
    report = tiebeam.inspect(model)
    assert report.tables == ()
    assert [f.code for f in report.findings] == ["no-table"]
    before = [numbers(v) for v in model.variables]
    assert tiebeam.initialize(model).init == ()
    assert all(np.array_equal(a, numbers(b)) for a, b in zip(before, model.variables, strict=True))


def test_a_layer_alone_is_looked_at_like_a_model() -> None:
    layer = embedding()
    layer.build()
    [table] = tiebeam.inspect(layer, ids()).tables
    assert (table.state, table.vocab, table.width) == ("untied", VOCAB, WIDTH)


OTHER_KERAS = """
import os, sys
import keras, tiebeam
tokens = keras.Input((None,), dtype="int32")
model = keras.Model(tokens, keras.layers.Embedding(9, 4)(tokens))
for name in [n for n in sys.modules if n.partition(".")[0] == "keras"]:
    del sys.modules[name]
os.environ["KERAS_BACKEND"] = "numpy"
import keras
try:
    tiebeam.inspect(model)
except tiebeam.BackendError as error:
    print("OLD:", str(error).replace(chr(10), " "))
"""
ON_NUMPY = """
import keras, tiebeam
tokens = keras.Input((None,), dtype="int32")
try:
    tiebeam.inspect(keras.Model(tokens, keras.layers.Embedding(9, 4)(tokens)))
except tiebeam.BackendError as error:
    print("NUMPY:", str(error).replace(chr(10), " "))
"""


def run(code: str, backend: str) -> str:
    environment = {**os.environ, "KERAS_BACKEND": backend}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT / "src", env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_model_of_another_load_of_keras_is_refused() -> None:
    said = run(OTHER_KERAS, keras.backend.backend())
    assert "OLD: Functional is of another load of Keras" in said
    assert "Hint:" in said


@pytest.mark.slow
def test_keras_on_a_framework_without_a_graph_is_refused() -> None:
    assert "while Keras runs on numpy" in run(ON_NUMPY, "numpy")
