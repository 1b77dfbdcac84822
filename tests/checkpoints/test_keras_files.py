"""Files that Keras writes: one variable that two layers own, a layer that owns both ends, and the config inside."""

import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from tiebeam.checkpoints import inspect, open_archive
from tiebeam.keras import TiedEmbedding

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Keras's own saving

IDS = np.array([[1, 2, 3]])


@cache
def rows(shared: Path) -> dict[str, dict[str, Any]]:
    lines = (shared / "cases" / "cases.jsonl").read_text(encoding="utf-8").splitlines()
    return {r["id"]: r for r in map(json.loads, lines)}


def names_of(name: str, shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    names: dict[str, Any] = {"__name__": name}
    exec(compile(rows(shared)[name]["input"], name, "exec"), names)
    return names


def codes(path: Path | str) -> dict[str, str]:
    return {f.code: f.severity for f in inspect(path).findings}


def test_one_variable_of_two_layers_is_stored_twice(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = names_of("ks-weights-file-two-copies", shared, tmp_path, monkeypatch)["p"]
    found = inspect(path)
    observed = rows(shared)["ks-weights-file-two-copies"]["observed"]["on_disk"]
    assert {n: list(e.shape or ()) for n, e in open_archive(path).entries.items()} == dict(observed)
    assert (found.state, found.table, found.readout) == ("equal", "layers/embedding/vars/0", "layers/table/vars/0")
    assert codes(path) == {"equal-not-declared": "warning"}


@pytest.mark.parametrize(
    ("name", "state"), [("ks-untied-from-tied-weights", "no-readout"), ("ks-tied-from-untied-weights", "different")]
)
def test_a_layer_that_owns_both_ends(
    name: str, state: str, shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = inspect(names_of(name, shared, tmp_path, monkeypatch)["p"])
    assert (found.state, found.table) == (state, "layers/reversible_embedding/vars/0")
    assert (found.readout is None) == (state == "no-readout")


@pytest.mark.parametrize("tie", [True, False])
def test_the_config_inside_a_keras_archive_says_whether_it_is_tied(tmp_path: Path, tie: bool) -> None:
    keras.utils.set_random_seed(0)
    ids = keras.Input((None,), dtype="int32")
    layer = keras.layers.ReversibleEmbedding(60, 16, tie_weights=tie, name="tok")
    model = keras.Model(ids, layer(layer(ids), reverse=True))
    model.save(tmp_path / "m.keras")
    found = inspect(tmp_path / "m.keras")
    assert (found.format, found.declared, found.effective) == ("keras", tie, tie)
    assert found.state == ("omitted" if tie else "different")
    assert found.elements == model.count_params()
    values = open_archive(tmp_path / "m.keras").entries["layers/reversible_embedding/vars/0"].values()
    assert np.array_equal(values, model.get_weights()[0])


def test_the_block_of_tiebeam_is_known_to_be_tied(tmp_path: Path) -> None:
    ids = keras.Input((None,), dtype="int32")
    layer = TiedEmbedding(60, 16)
    keras.Model(ids, layer(layer(ids), reverse=True)).save(tmp_path / "m.keras")
    found = inspect(tmp_path / "m.keras")
    assert (found.state, found.declared, found.findings) == ("omitted", True, ())


def test_a_trained_models_optimizer_is_no_part_of_it(tmp_path: Path) -> None:
    model = keras.Sequential([keras.layers.Embedding(60, 16), keras.layers.Dense(60, use_bias=False)])
    model.compile("adam", "sparse_categorical_crossentropy")
    model.fit(IDS, IDS, verbose=0)
    model.save(tmp_path / "m.keras")
    found = inspect(tmp_path / "m.keras")
    assert found.tensors == len(model.weights)
    assert (found.state, found.readout) == ("different", "layers/dense/vars/0")


def test_half_precision_weights_keep_their_bits(tmp_path: Path) -> None:
    layer = keras.layers.Embedding(60, 16, dtype="float16")
    model = keras.Sequential([layer])
    model(IDS)
    model.save_weights(tmp_path / "m.weights.h5")
    [entry] = open_archive(tmp_path / "m.weights.h5").entries.values()
    assert entry.dtype is not None
    assert entry.dtype.name == "float16"
    assert np.array_equal(entry.values(), np.asarray(layer.embeddings.value))
