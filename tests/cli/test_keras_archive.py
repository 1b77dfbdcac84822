"""A `.keras` file is judged before anything of it is loaded; no test here imports Keras."""

import json
import sys
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Run

from tiebeam.cli.keras_archive import held_bytes, read_config
from tiebeam.cli.keras_target import choose_backend
from tiebeam.errors import BackendError, TargetError

pytestmark = pytest.mark.slow

DENSE = {"module": "keras.layers", "class_name": "Dense", "config": {"units": 4}, "registered_name": None}
FOREIGN = {"module": "os", "class_name": "system", "config": {}, "registered_name": "system"}
OWN = {"module": "my.layers", "class_name": "Mine", "config": {}, "registered_name": "Mine>Mine"}
LAMBDA = {"class_name": "__lambda__", "config": {"value": "4wAAAA=="}}


def model_of(*layers: Any) -> dict[str, Any]:
    return {"module": "keras", "class_name": "Sequential", "config": {"layers": list(layers)}, "registered_name": None}


def archive(path: Path, config: Any, *, weights: bytes = b"\x89HDF", more: dict[str, bytes] | None = None) -> Path:
    with zipfile.ZipFile(path, "w") as made:
        made.writestr("metadata.json", "{}")
        made.writestr("config.json", config if isinstance(config, str | bytes) else json.dumps(config))
        made.writestr("model.weights.h5", weights)
        for name, data in (more or {}).items():
            made.writestr(name, data)
    return path


def refused(path: Path) -> str:
    with pytest.raises(TargetError) as caught:
        read_config(path)
    return str(caught.value)


def test_a_plain_archive_is_read(tmp_path: Path) -> None:
    path = archive(tmp_path / "m.keras", model_of(DENSE), weights=bytes(100))
    assert read_config(path) == model_of(DENSE)
    assert held_bytes(path) == 100


@pytest.mark.parametrize(
    ("layer", "said"),
    [
        (FOREIGN, "os.system"),
        (OWN, "--import my.layers"),
        (LAMBDA, "Python code"),
        ({**DENSE, "config": {"activation": LAMBDA}}, "Python code"),
        ({**DENSE, "config": {"deep": [[{"x": FOREIGN}]]}}, "os.system"),
    ],
    ids=["foreign", "own", "lambda", "nested-lambda", "nested-foreign"],
)
def test_code_that_is_not_of_keras_is_refused_before_keras_is_loaded(
    layer: dict[str, Any], said: str, tmp_path: Path, run: Run
) -> None:
    before = "keras" in sys.modules
    ran = run("inspect", archive(tmp_path / "m.keras", model_of(layer)))
    assert ran.code == 2
    assert said in ran.err
    for part in ("got:", "expected:", "Hint:"):
        assert part in ran.err
    assert ("keras" in sys.modules) == before


def test_a_bomb_costs_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "bomb.keras"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("config.json", " " * 2**28)
        made.writestr("model.weights.h5", b"")
    tracemalloc.start()
    try:
        assert "too large to be what it says" in refused(path)
        assert tracemalloc.get_traced_memory()[1] < 2**22
    finally:
        tracemalloc.stop()


def test_bombed_weights_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "bomb.keras"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("config.json", json.dumps(model_of(DENSE)))
        made.writestr("model.weights.h5", bytes(2**26))
    assert "model.weights.h5" in refused(path)


@pytest.mark.parametrize("name", ["../out.txt", "assets/../../out.txt", "/etc/out.txt", "..\\out.txt", "C:\\out.txt"])
def test_a_member_that_leads_out_of_the_archive_is_refused(name: str, tmp_path: Path) -> None:
    assert "leads out of itself" in refused(archive(tmp_path / "m.keras", model_of(DENSE), more={name: b"x"}))
    assert [p.name for p in tmp_path.iterdir()] == ["m.keras"]


def test_a_link_is_refused(tmp_path: Path) -> None:
    path = archive(tmp_path / "m.keras", model_of(DENSE))
    with zipfile.ZipFile(path, "a") as made:
        link = zipfile.ZipInfo("assets/link")
        link.external_attr = 0o120777 << 16
        made.writestr(link, "/etc/passwd")
    assert "leads out of itself" in refused(path)


@pytest.mark.parametrize(
    ("config", "said"),
    [("{", "cannot be read"), ("[" * 200_000, "cannot be read"), ("[]", "no model"), (b"\xff\xfe", "cannot be read")],
    ids=["broken", "deep", "no-object", "no-text"],
)
def test_a_config_that_is_none_is_refused(config: Any, said: str, tmp_path: Path) -> None:
    assert said in refused(archive(tmp_path / "m.keras", config))


def test_a_config_of_very_many_objects_is_refused(tmp_path: Path, run: Run) -> None:
    ran = run("inspect", archive(tmp_path / "m.keras", model_of(*[{"class_name": "Dense"}] * 60_000)))
    assert ran.code == 2
    assert "too large" in ran.err


def test_a_file_that_is_no_archive_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.keras"
    path.write_bytes(b"\x89HDF\r\n")
    assert "cannot be read as a .keras file" in refused(path)
    with zipfile.ZipFile(path, "w") as made:
        made.writestr("readme.txt", "x")
    assert "holds no Keras model" in refused(path)


def test_meta_has_no_meaning_for_a_file_with_weights(tmp_path: Path, run: Run) -> None:
    ran = run("inspect", archive(tmp_path / "m.keras", model_of(DENSE)), "--meta")
    assert ran.code == 2
    assert "--meta" in ran.err


def test_a_keras_that_runs_already_cannot_change_over(monkeypatch: pytest.MonkeyPatch) -> None:
    class Keras:
        class config:  # noqa: N801 - as Keras has it
            @staticmethod
            def backend() -> str:
                return "jax"

    monkeypatch.setitem(sys.modules, "keras", Keras)  # type: ignore[arg-type]
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    choose_backend("jax")
    choose_backend(None)
    with pytest.raises(BackendError, match="cannot change over to torch"):
        choose_backend("torch")
