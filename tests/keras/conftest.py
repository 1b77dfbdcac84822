"""Without Keras these tests are left out. They run on one framework: KERAS_BACKEND, else TensorFlow."""

import importlib.util
import os

RUNNING = os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
collect_ignore_glob = [] if all(importlib.util.find_spec(name) for name in ("keras", RUNNING)) else ["*"]
