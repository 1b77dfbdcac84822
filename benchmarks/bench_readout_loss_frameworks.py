"""What the readout loss of JAX and of Keras on TensorFlow costs, against the cross entropy of logits in each.

One processor core and a fresh process for each figure: seconds of the second run; memory above weights and gradients.
Only shown: the goals are PyTorch's (bench_readout_loss.py).

    python benchmarks/bench_readout_loss_frameworks.py [--width 128] [--tokens 4096] [--frameworks jax tensorflow]
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from measuring import Row, peak_above, show

VOCAB = 33_527
WAYS = ("eager", "readout_loss")
Step = Callable[[], object]


def in_jax(way: str, arrays: list[Any]) -> Step:
    """The loss and both gradients, compiled."""
    import jax
    import jax.numpy as jnp

    from tiebeam.jax import readout_loss

    def eager(hidden: jax.Array, table: jax.Array, targets: jax.Array) -> jax.Array:
        logits = hidden @ table.T
        own = jnp.take_along_axis(logits, targets[:, None], axis=-1)[:, 0]
        return (jax.nn.logsumexp(logits, axis=-1) - own).mean()

    given = [jnp.asarray(a) for a in arrays]
    loss = {"eager": eager, "readout_loss": readout_loss}[way]
    compiled = jax.jit(jax.value_and_grad(loss, argnums=(0, 1))).lower(*given).compile()
    return lambda: jax.block_until_ready(compiled(*given))


def in_tensorflow(way: str, arrays: list[Any]) -> Step:
    """The same in a graph."""
    os.environ |= {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3"}
    import tensorflow as tf

    from tiebeam.keras import readout_loss

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)

    def eager(hidden: tf.Tensor, table: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
        logits = tf.matmul(hidden, table, transpose_b=True)
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits))

    loss = {"eager": eager, "readout_loss": readout_loss}[way]

    @tf.function
    def step(hidden: tf.Tensor, table: tf.Tensor, targets: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch([hidden, table])
            value = loss(hidden, table, targets)
        return value, tape.gradient(value, [hidden, table])

    given = [tf.constant(a) for a in arrays]
    step(given[0][:64], given[1], given[2][:64])  # loads what is loaded once, and keeps little memory
    traced = step.get_concrete_function(*given)
    return lambda: traced(*given)


FRAMEWORKS: dict[str, Callable[[str, list[Any]], Step]] = {"jax": in_jax, "tensorflow": in_tensorflow}


def print_cost(framework: str, way: str, tokens: int, width: int) -> None:
    """Seconds and MiB of this process."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    import numpy as np

    draws = np.random.default_rng(0)
    hidden = draws.standard_normal((tokens, width), dtype=np.float32)
    table = draws.standard_normal((VOCAB, width), dtype=np.float32) / np.float32(width**0.5)
    step = FRAMEWORKS[framework](way, [hidden, table, draws.integers(VOCAB, size=tokens)])
    above = peak_above(step)
    start = time.process_time()
    step()
    seconds, gradients = time.process_time() - start, (hidden.nbytes + table.nbytes) / 2**20
    print(json.dumps({"seconds": seconds, "memory": float("nan") if above is None else above - gradients}))


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--frameworks", choices=FRAMEWORKS, nargs="+", default=list(FRAMEWORKS))
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.way:
        print_cost(args.frameworks[0], args.way, args.tokens, args.width)
        return 0
    rows: list[Row] = []
    for framework in args.frameworks:
        costs = []
        for way in WAYS:
            more = ["--tokens", str(args.tokens), "--width", str(args.width), "--frameworks", framework, "--way", way]
            done = subprocess.run([sys.executable, __file__, *more], capture_output=True, text=True, check=True)
            costs.append(json.loads(done.stdout.splitlines()[-1]))
        for way, cost in zip(WAYS, costs, strict=True):
            ratio, note = cost["seconds"] / costs[0]["seconds"], f"{cost['seconds']:.2f} s"
            rows.append(Row(f"{framework}: {way} / eager", ratio, note=note))
            rows.append(Row(f"{framework}: {way}, memory", cost["memory"], unit=" MiB"))
    show(f"The readout loss: {args.tokens} tokens, vocabulary {VOCAB}, width {args.width}, one core", rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
