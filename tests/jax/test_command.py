"""The command line on a JAX target: a function that returns the model, inputs and params."""

import json
import subprocess
import sys
from pathlib import Path

TARGET = """
import jax, jax.numpy as jnp
from tiebeam.zoo.jax.functional import FunctionalGpt

def build():
    model = FunctionalGpt.of("C", vocab=300, width=16)
    return model, jnp.arange(8)[None], model.init(jax.random.key(0))
"""


def test_a_target_may_return_params_as_well(tmp_path: Path) -> None:
    (tmp_path / "jax_target.py").write_text(TARGET, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "tiebeam.cli", "inspect", "jax_target:build", "--format", "json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    report = json.loads(done.stdout)
    assert report["framework"] == "jax"
    assert report["versions"]["jax"]
    assert [(t["state"], t["lookup_factor"]) for t in report["tables"]] == [("tied", 4.0)]
