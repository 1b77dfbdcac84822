"""Keras fixes its backend when it is imported: the file of its block runs once more for each other backend."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BACKENDS = ("jax", "tensorflow", "torch")


@pytest.mark.slow
@pytest.mark.parametrize("engine", [b for b in BACKENDS if b != os.environ.get("KERAS_BACKEND")])
def test_the_block_of_keras_holds_on_every_backend(engine):
    if importlib.util.find_spec(engine) is None:
        pytest.skip(f"{engine} is not installed")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "0", "-q", "tests/blocks/test_keras.py"],
        cwd=ROOT,
        env={**os.environ, "KERAS_BACKEND": engine, "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
