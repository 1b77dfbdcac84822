"""The command line on Keras targets: files, callables, classes of the user's, and what `init` writes.

On JAX alone: what a command does with Keras is the same on each. What depends on what was imported before, or prints as
Keras is imported, runs in a process of its own; the others share this one, which starts Keras once.
"""

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tiebeam.cli import main

# Saving warns: Keras' variables do not take NumPy 2's `copy` yet.
pytestmark = pytest.mark.slow

BACKEND = "jax"

MODULE = """
import keras
from keras import layers, ops

@keras.saving.register_keras_serializable("own")
class Twice(layers.Layer):
    def call(self, x):
        return x * 2.0

def model(vocab=300, width=16, twice=False):
    embed = layers.Embedding(vocab, width, name="embed")
    ids = keras.Input((None,), dtype="int32")
    x = embed(ids)
    x = Twice()(x) if twice else layers.Rescaling(2.0)(x)
    x = layers.LayerNormalization()(x)
    return keras.Model(ids, layers.Dense(vocab, use_bias=False, name="head")(x))

def build():
    return model()

def block():
    from tiebeam.keras import TiedEmbedding
    embed = TiedEmbedding(300, 16)
    ids = keras.Input((None,), dtype="int32")
    return keras.Model(ids, embed(layers.LayerNormalization()(embed(ids)), reverse=True))

def trained():
    import numpy as np
    import tiebeam, tiebeam.keras
    made = model()
    report = tiebeam.inspect(made, np.zeros((1, 8), int))
    optimizer = tiebeam.keras.optimizer(keras.optimizers.AdamW, made, report, lr=1e-3)
    made.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    made.fit(np.zeros((4, 8), int), np.zeros((4, 8), int), verbose=0)
    return made

def write():
    model().save("plain.keras")
    model(twice=True).save("own.keras")
    block().save("block.keras")
    trained().save("trained.keras")
    x = keras.Input((3,))
    keras.Model(x, layers.Lambda(lambda v: v * 2.0)(x)).save("lambda.keras")
"""


class Done(NamedTuple):
    """What came of a command."""

    returncode: int
    stdout: str
    stderr: str


Run = Callable[..., Done]


def run_apart(folder: Path, *args: str, code: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "KERAS_BACKEND": BACKEND}
    command = ["-c", code] if code else ["-m", "tiebeam.cli", *args]
    return subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The current folder, with a module of models in it, and files that it wrote."""
    made = tmp_path_factory.mktemp("models")
    (made / "keras_models.py").write_text(MODULE, encoding="utf-8")
    done = run_apart(made, code="import keras_models; keras_models.write()")
    assert done.returncode == 0, done.stderr
    return made


@pytest.fixture
def run(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """A command in this process, in that folder."""
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)

    def command(*args: str) -> Done:
        with pytest.raises(SystemExit) as ended:
            main(list(args))
        return Done(int(ended.value.code or 0), *capsys.readouterr())

    return command


def report_of(done: Done | subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode in (0, 1), done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


@pytest.mark.parametrize("target", ["plain.keras", "trained.keras", "keras_models:build"])
def test_a_file_and_a_callable_are_looked_at(target: str, run: Run) -> None:
    report = report_of(run("inspect", target, "--format", "json"))
    assert report["framework"] == "keras"
    assert {t["state"] for t in report["tables"]} == {"untied"}
    assert report["versions"]["keras"]


def test_a_class_of_the_users_is_imported_when_it_is_named(folder: Path) -> None:
    alone = run_apart(folder, "inspect", "own.keras")
    assert alone.returncode == 2
    assert "--import keras_models" in alone.stderr
    named = report_of(run_apart(folder, "inspect", "own.keras", "--import", "keras_models", "--format", "json"))
    lookups = [t["lookup_factor"] for t in named["tables"] if t["lookups"]]
    assert lookups == [2.0]


def test_the_building_blocks_need_no_import(folder: Path) -> None:
    report = report_of(run_apart(folder, "inspect", "block.keras", "--format", "json"))
    assert [t["state"] for t in report["tables"]] == ["tied"]


def test_a_lambda_is_refused_also_beside_imports(run: Run) -> None:
    done = run("inspect", "lambda.keras", "--import", "keras_models")
    assert done.returncode == 2
    assert "Python code" in done.stderr


def test_a_config_that_asks_for_more_than_the_file_holds_takes_no_memory(folder: Path, run: Run) -> None:
    """Forty terabytes, by the config."""
    with zipfile.ZipFile(folder / "plain.keras") as good, zipfile.ZipFile(folder / "huge.keras", "w") as bad:
        for member in good.namelist():
            data = good.read(member)
            if member == "config.json":
                data = data.replace(b'"input_dim": 300', b'"input_dim": 1000000000000')
            bad.writestr(member, data)
    done = run("inspect", "huge.keras")
    assert done.returncode == 2
    assert "are not those of its config" in done.stderr, done.stderr


def test_init_writes_a_file_that_keras_loads(folder: Path, run: Run) -> None:
    done = run("init", "plain.keras", "--out", "ready")
    assert done.returncode == 0, done.stderr
    assert sorted(p.name for p in (folder / "ready").iterdir()) == ["model.keras", "report.json"]
    code = (
        "import keras, numpy as np\n"
        "m = keras.saving.load_model('ready/model.keras')\n"
        "print(float(np.std(m.get_layer('head').kernel)))"
    )
    again = run_apart(folder, code=code)
    assert float(again.stdout.split()[-1]) == pytest.approx(0.25, rel=0.03), again.stderr


def test_the_backend_is_what_the_option_says(folder: Path) -> None:
    done = run_apart(folder, "inspect", "plain.keras", "--backend", "torch", "--fail-on", "never")
    assert done.returncode == 0, done.stderr
    assert "Keras computes with torch" in done.stderr
