"""Doctests of a backend need its framework: without it they are left out, as its tests are.

Keras runs on one framework in a process: its doctests run where KERAS_BACKEND says which.
"""

import importlib.util
import os

HOMES = {
    "torch": ("tiebeam/blocks/torch.py", "tiebeam/torch/*"),
    "jax": ("tiebeam/backends/jax/*", "tiebeam/zoo/jax/*", "tiebeam/blocks/jax.py"),
    "flax": (
        "tiebeam/backends/jax/nnx.py",
        *(f"tiebeam/{home}" for name in ("linen", "nnx") for home in (f"blocks/{name}.py", f"{name}/*")),
    ),
    "equinox": ("tiebeam/blocks/equinox.py", "tiebeam/equinox/*"),
}
KERAS = ("tiebeam/backends/keras/*", "tiebeam/zoo/keras/*", "tiebeam/blocks/keras.py", "tiebeam/keras/*")
RUNS_ON = {
    "jax": ("tiebeam/backends/keras/on_jax.py",),
    "torch": ("tiebeam/backends/keras/on_torch.py",),
    "tensorflow": ("tiebeam/backends/keras/tensorflow/*",),
}
RUNNING = os.environ.get("KERAS_BACKEND", "")

missing = [home for name, homes in HOMES.items() if not importlib.util.find_spec(name) for home in homes]
strange = [home for name, homes in RUNS_ON.items() if name != RUNNING for home in homes]
there = bool(RUNNING) and importlib.util.find_spec("keras") is not None
collect_ignore_glob = [*missing, *(strange if there else KERAS)]
