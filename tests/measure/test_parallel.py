"""Role gradients where several processes hold a model."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_roles_are_told_apart_exactly_in_shards_replicas_and_parallel_tensors(tmp_path: Path) -> None:
    path = os.pathsep.join(p for p in sys.path if p)
    done = subprocess.run(
        [sys.executable, "-m", "tests.measure.parallel", str(tmp_path / "rendezvous")],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        cwd=Path(__file__).resolve().parents[2],
    )
    assert done.returncode == 0, done.stderr[-4000:]
