"""What measuring a Keras model costs against one plain forward and backward pass, on each framework, on one thread.

Times are ratios of medians of interleaved runs, after a first one that traces and compiles, which is shown too. A plain
pass is what `fit` compiles on that framework: the gradients of the next-token loss under `tf.function` or `jax.jit`, or
`backward` on PyTorch. A process for each framework. Exit status 1 says that a goal was missed.

    python benchmarks/bench_measure_keras.py [--runs 5] [--size 2x128] [--only jax tensorflow torch]
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from measuring import Row, medians, show

FRAMEWORKS = ("jax", "tensorflow", "torch")
VOCAB, WIDTH, LAYERS = 20_000, 512, 4
ONE_THREAD = {
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "OMP_NUM_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
}


def gpt2() -> Any:
    """A GPT-2 of four layers."""
    import keras_hub

    backbone = keras_hub.models.GPT2Backbone(
        vocabulary_size=VOCAB, num_layers=LAYERS, num_heads=8, hidden_dim=WIDTH, intermediate_dim=4 * WIDTH,
        max_sequence_length=256, dropout=0.0,
    )  # fmt: skip
    return keras_hub.models.GPT2CausalLM(backbone=backbone, preprocessor=None)


def next_token_loss(logits: Any, ids: Any) -> Any:
    """Mean cross entropy of the next token."""
    import keras

    return keras.ops.mean(keras.losses.sparse_categorical_crossentropy(ids[:, 1:], logits[:, :-1], from_logits=True))


def plain_pass(framework: str, model: Any, inputs: dict[str, Any]) -> Callable[[], object]:
    """One forward and backward pass as `fit` has it, without an optimizer."""
    ids = inputs["token_ids"]
    if framework == "jax":
        import jax

        def loss(trainable: Any, others: Any, given: Any) -> Any:
            return next_token_loss(model.stateless_call(trainable, others, given)[0], given["token_ids"])

        step = jax.jit(jax.value_and_grad(loss))
        values = [[v.value for v in vs] for vs in (model.trainable_variables, model.non_trainable_variables)]
        return lambda: jax.block_until_ready(step(*values, inputs))
    if framework == "tensorflow":
        import tensorflow as tf

        @tf.function  # type: ignore[untyped-decorator]
        def gradients(given: Any) -> Any:
            with tf.GradientTape() as tape:
                value = next_token_loss(model(given), given["token_ids"])
            return tape.gradient(value, [v.value for v in model.trainable_variables])

        return lambda: gradients(inputs)

    import keras

    def backward() -> None:
        model.zero_grad()
        next_token_loss(model(inputs), keras.ops.convert_to_tensor(ids)).backward()

    return backward


def child(framework: str, size: str, runs: int) -> None:
    """One process's part: prints the medians, and the first time of each."""
    import numpy as np

    import tiebeam

    batch, tokens = map(int, size.split("x"))
    ids = np.random.default_rng(0).integers(0, VOCAB, (batch, tokens)).astype("int32")
    inputs = {"token_ids": ids, "padding_mask": np.ones_like(ids)}
    model = gpt2()
    plain = plain_pass(framework, model, inputs)

    def measured() -> None:
        tiebeam.measure(model, inputs)

    first = []
    for work in (plain, measured):
        start = time.perf_counter()
        work()
        first.append(time.perf_counter() - start)
    print(json.dumps([*medians(runs, plain, measured), *first]))


def main() -> int:
    """Measure and print; 1 where a goal was missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--size", default="2x128", help="batch x tokens")
    parser.add_argument("--only", nargs="+", choices=FRAMEWORKS, default=list(FRAMEWORKS))
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(args.child, args.size, args.runs)
        return 0
    rows = []
    for framework in args.only:
        command = [sys.executable, __file__, "--child", framework, "--size", args.size, "--runs", str(args.runs)]
        environment = {**os.environ, **ONE_THREAD, "KERAS_BACKEND": framework}
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        usual, ours, first_usual, first_ours = json.loads(done.stdout.splitlines()[-1])
        what = f"gpt2, {LAYERS} layers of {WIDTH} on {framework}, {args.size} tokens"
        rows += [
            Row(f"{what}: measure / forward and backward", ours / usual, 1.1, note=f"plain {usual * 1e3:.0f} ms"),
            Row(f"{what}: the first time, with compiling", first_ours / first_usual),
        ]
    return int(show("Measuring a Keras model, one thread", rows) > 0)


if __name__ == "__main__":
    sys.exit(main())
