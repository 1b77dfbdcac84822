"""Without JAX and what is built on it these tests are left out; `--backends jax` makes that an error instead."""

import importlib.util

NEEDED = ("jax", "flax", "equinox")
collect_ignore_glob = [] if all(importlib.util.find_spec(name) for name in NEEDED) else ["*"]
