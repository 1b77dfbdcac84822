"""Tests of TensorFlow's own graph: left out where Keras runs on another framework."""

import importlib.util
import os

RUNNING = os.environ.get("KERAS_BACKEND", "tensorflow")
there = RUNNING == "tensorflow" and importlib.util.find_spec("tensorflow") is not None
collect_ignore_glob = [] if there else ["*"]
