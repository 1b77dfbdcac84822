"""Keras runs on one framework in a process: these tests run where KERAS_BACKEND says which, else they are left out.

Each framework has a run of its own: `make keras`, or `KERAS_BACKEND=jax pytest tests/keras`.
"""

import importlib.util
import os

RUNNING = os.environ.get("KERAS_BACKEND", "")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
there = bool(RUNNING) and all(importlib.util.find_spec(name) for name in ("keras", RUNNING))
collect_ignore_glob = [] if there else ["*"]
