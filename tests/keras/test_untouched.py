"""Looking changes nothing, loads nothing, and leaves random numbers as they were to be."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from tests.keras.models.kit import load, numbers

import tiebeam

CASES_ALL = load()
ROOT = Path(__file__).resolve().parents[2]
LOADED = """
import sys
import keras
tokens = keras.Input((None,), dtype="int32")
e = keras.layers.ReversibleEmbedding(30, 8)
model = keras.Model(tokens, e(keras.layers.LayerNormalization()(e(tokens)), reverse=True))
import numpy; model(numpy.ones((1, 4), "int32"))
frameworks = {"torch", "jax", "flax", "equinox", "tensorflow"}
before = frameworks & set(sys.modules)
import tiebeam
tiebeam.initialize(model)
print("more:", sorted(frameworks & set(sys.modules) - before))
"""


@pytest.mark.parametrize(
    "name", ["written_training_branches", "functional_dropout_and_positions", "policy_mixed_written"]
)
def test_variables_seeds_statistics_and_flags_are_as_before(name: str) -> None:
    case = CASES_ALL[name]()
    layers = case.model._flatten_layers()
    flags = [(layer.built, layer.trainable, layer._called, layer._parent_path) for layer in layers]
    held = [(v, numbers(v)) for v in case.model.variables]
    values = [v._value for v in case.model.variables]
    tiebeam.inspect(case.model, case.inputs)
    assert [v for v, _ in held] == case.model.variables or len(held) == len(case.model.variables)
    assert all(v._value is before for v, before in zip(case.model.variables, values, strict=True))
    assert all(np.array_equal(numbers(v), before) for v, before in held)
    assert [(la.built, la.trainable, la._called, la._parent_path) for la in layers] == flags


def test_random_numbers_go_on_as_if_nobody_had_looked() -> None:
    def drawn(look: bool) -> Any:
        case = CASES_ALL["written_training_branches"]()
        if look:
            tiebeam.inspect(case.model, case.inputs)
        return numbers(case.model(case.inputs, training=True)), numbers(keras.random.normal((3,)))

    for one, other in zip(drawn(False), drawn(True), strict=True):
        assert np.array_equal(one, other)


def test_a_model_that_fails_is_as_it_was() -> None:
    case = CASES_ALL["written_dictionary_in_and_out"]()
    before = [numbers(v) for v in case.model.variables]
    with pytest.raises(tiebeam.InputError):
        tiebeam.inspect(case.model, {"other": case.inputs["tokens"]})
    assert all(np.array_equal(a, numbers(v)) for a, v in zip(before, case.model.variables, strict=True))
    assert tiebeam.inspect(case.model, case.inputs).tables[0].state == "tied"


@pytest.mark.slow
def test_no_other_framework_is_loaded_than_keras_runs_on() -> None:
    environment = {**os.environ, "KERAS_BACKEND": keras.backend.backend()}
    done = subprocess.run(
        [sys.executable, "-c", LOADED], cwd=ROOT / "src", env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "more: []"
