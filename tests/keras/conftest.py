"""Keras runs on one framework in a process: these tests run where KERAS_BACKEND says which, else they are left out.

`pytest --backends keras` gives each framework a process of its own.
"""

import importlib.util
import os

RUNNING = os.environ.get("KERAS_BACKEND", "")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
there = bool(RUNNING) and all(importlib.util.find_spec(name) for name in ("keras", RUNNING))
collect_ignore_glob = [] if there else ["*"]
