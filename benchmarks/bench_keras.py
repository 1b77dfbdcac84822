"""What looking at a Keras model costs against building its function, on each framework that Keras runs on.

Building is what Keras itself does before it first predicts: on JAX to trace and compile the call, on TensorFlow to
trace its graph; PyTorch builds nothing, so there it is one call, and the figure for information. A process for each
framework; models are new each time, so that nothing is found in a cache. Exit status 1 says that a goal was missed.

    python benchmarks/bench_keras.py [--runs 5] [--only jax tensorflow torch]
"""

import argparse
import json
import os
import subprocess
import sys
from itertools import product
from typing import Any

from measuring import Row, medians, show

GOAL = 2.0
FRAMEWORKS = ("jax", "tensorflow", "torch")


def gpt2() -> Any:
    """A GPT-2 of four layers: no factor, so one pass tells all."""
    import keras_hub

    backbone = keras_hub.models.GPT2Backbone(
        vocabulary_size=5000, num_layers=4, num_heads=4, hidden_dim=128, intermediate_dim=512, max_sequence_length=64
    )
    return keras_hub.models.GPT2CausalLM(backbone=backbone, preprocessor=None)


def gemma() -> Any:
    """A Gemma of four layers: its factor could be a size of the inputs, so a second pass confirms it."""
    import keras_hub

    backbone = keras_hub.models.GemmaBackbone(
        vocabulary_size=5000, num_layers=4, num_query_heads=4, num_key_value_heads=1, hidden_dim=128,
        intermediate_dim=512, head_dim=32,
    )  # fmt: skip
    return keras_hub.models.GemmaCausalLM(backbone=backbone, preprocessor=None)


MODELS = {"gpt2": gpt2, "gemma": gemma}


def inputs_of_one_row() -> dict[str, Any]:
    """1 x 64 tokens."""
    import numpy as np

    ids = np.arange(64, dtype="int32")[None]
    return {"token_ids": ids, "padding_mask": np.ones_like(ids)}


def build(framework: str, model: Any, inputs: dict[str, Any]) -> None:
    """What Keras does before it first predicts."""
    if framework == "jax":
        import jax

        def call(trainable: Any, others: Any, given: Any) -> Any:
            return model.stateless_call(trainable, others, given)[0]

        values = [[v.value for v in vs] for vs in (model.trainable_variables, model.non_trainable_variables)]
        jax.jit(call).lower(*values, inputs).compile()
    elif framework == "tensorflow":
        import tensorflow as tf

        tf.function(lambda given: model(given)).get_concrete_function(inputs)
    else:
        model(inputs)


def child(framework: str, name: str, runs: int) -> None:
    """One process's part: prints the medians."""
    import tiebeam

    given = inputs_of_one_row()
    fresh = [MODELS[name]() for _ in range(2 * (runs + 1))]  # one more of each is for warming up
    built, seen = medians(
        runs, lambda: build(framework, fresh.pop(), given), lambda: tiebeam.inspect(fresh.pop(), given)
    )
    print(json.dumps([built, seen]))


def main() -> int:
    """Measure and print; 1 where a goal was missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=FRAMEWORKS, default=list(FRAMEWORKS))
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(*args.child, args.runs)
        return 0
    rows = []
    for framework, name in product(args.only, MODELS):
        command = [sys.executable, __file__, "--child", framework, name, "--runs", str(args.runs)]
        environment = {**os.environ, "KERAS_BACKEND": framework, "TF_CPP_MIN_LOG_LEVEL": "3"}
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        built, seen = json.loads(done.stdout.splitlines()[-1])
        goal = None if framework == "torch" else GOAL
        rows.append(
            Row(f"{name} on {framework}: inspect / building", seen / built, goal, note=f"building {built:.2f} s")
        )
    return int(show("Looking at Keras models of four layers, one thread", rows) > 0)


if __name__ == "__main__":
    sys.exit(main())
