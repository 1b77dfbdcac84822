"""Doctests need their framework: without it they are left out, as its tests are."""

import importlib.util
import os

os.environ.setdefault("KERAS_BACKEND", "jax")  # TensorFlow and PyTorch do not get on in one process

HOMES = {
    "torch": ("tiebeam/blocks/torch.py", "tiebeam/torch/*"),
    "jax": ("tiebeam/backends/jax/*", "tiebeam/zoo/jax/*", "tiebeam/blocks/jax.py"),
    "flax": (
        "tiebeam/backends/jax/nnx.py",
        *(f"tiebeam/{home}" for name in ("linen", "nnx") for home in (f"blocks/{name}.py", f"{name}/*")),
    ),
    "equinox": ("tiebeam/blocks/equinox.py", "tiebeam/equinox/*"),
    "keras": ("tiebeam/blocks/keras.py", "tiebeam/keras/*"),
    "optax": ("tiebeam/backends/jax/optim.py", "tiebeam/backends/jax/holding.py", "tiebeam/jax/*"),
}
collect_ignore_glob = [home for name, homes in HOMES.items() if not importlib.util.find_spec(name) for home in homes]
