"""Doctests of a backend need its framework: without it they are left out, as its tests are."""

import importlib.util

HOMES = {"jax": ("tiebeam/backends/jax/*", "tiebeam/zoo/jax/*"), "flax": ("tiebeam/backends/jax/nnx.py",)}
collect_ignore_glob = [home for name, homes in HOMES.items() if not importlib.util.find_spec(name) for home in homes]
