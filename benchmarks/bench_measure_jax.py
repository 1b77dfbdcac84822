"""What measuring a JAX model costs against one plain forward and backward pass, on one thread.

Times are ratios of medians of interleaved runs, after a first one that traces and compiles, which is shown too. A plain
pass is the compiled `jax.value_and_grad` of the next-token loss. Exit status 1 says that a goal was missed.

    python benchmarks/bench_measure_jax.py [--runs 5] [--sizes 1x64 4x256] [--layers 12] [--forms written scanned]
"""

import argparse
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from measuring import Row, medians, show

os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
# isort: split
# What is set must be set before JAX is loaded.
import flax.linen as nn
import jax
import jax.numpy as jnp

import tiebeam

VOCAB, WIDTH, HEADS = 50257, 768, 12


class Block(nn.Module):
    """A layer of GPT-2; `_` is for `nn.scan`."""

    @nn.compact
    def __call__(self, x: Any, _: Any = None) -> Any:
        h = nn.LayerNorm()(x)
        x = x + nn.MultiHeadDotProductAttention(HEADS)(h, mask=nn.make_causal_mask(x[..., 0]))
        h = nn.gelu(nn.Dense(4 * WIDTH)(nn.LayerNorm()(x)))
        return x + nn.Dense(WIDTH)(h), None


class Model(nn.Module):
    """GPT-2 small; its layers are written out, or one that is scanned and checkpointed."""

    layers: int
    scanned: bool

    @nn.compact
    def __call__(self, ids: Any) -> Any:
        embed = nn.Embed(VOCAB, WIDTH, embedding_init=nn.initializers.normal(WIDTH**-0.5))
        x = embed(ids) + self.param("positions", nn.initializers.normal(0.02), (1024, WIDTH))[: ids.shape[1]]
        if self.scanned:
            kind: Any = nn.scan(nn.remat(Block), {"params": 0}, split_rngs={"params": True}, length=self.layers)
            x, _ = kind()(x, None)
        else:
            for _ in range(self.layers):
                x, _ = Block()(x)
        return embed.attend(nn.LayerNorm()(x))


def next_token_loss(logits: Any, ids: Any) -> Any:
    """Mean cross entropy of the next token."""
    logits, right = logits[:, :-1], ids[:, 1:]
    picked = jnp.take_along_axis(logits, right[..., None], axis=-1)[..., 0]
    return (jax.nn.logsumexp(logits, axis=-1) - picked).mean()


def bench(model: Model, batch: int, tokens: int, runs: int) -> list[Row]:
    """Rows of one model on one batch."""
    ids = jax.random.randint(jax.random.key(1), (batch, tokens), 0, VOCAB)
    params = jax.jit(model.init)(jax.random.key(0), ids)
    step = jax.jit(jax.value_and_grad(lambda p, i: next_token_loss(model.apply(p, i), i)))

    def plain() -> None:
        jax.block_until_ready(step(params, ids))

    def measured() -> None:
        tiebeam.measure(model, ids, params=params)

    first = [_seconds(work) for work in (plain, measured)]
    usual, ours = medians(runs, plain, measured)
    form = "scanned" if model.scanned else "written out"
    size = f"gpt2, {model.layers} layers {form}, {batch} x {tokens} tokens"
    return [
        Row(f"{size}: measure / forward and backward", ours / usual, 1.1, note=f"plain {usual * 1e3:.0f} ms"),
        Row(f"{size}: watching every 100 steps, of training without its optimizer", ours / usual, 2, " %"),
        Row(f"{size}: the first time, with compiling", first[1] / first[0]),
    ]


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> int:
    """Measure and print; 1 where a goal was missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--sizes", nargs="+", default=["1x64", "4x256"], help="batch x tokens")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--forms", nargs="+", choices=["written", "scanned"], default=["written", "scanned"])
    args = parser.parse_args()
    sizes = [tuple(map(int, size.split("x"))) for size in args.sizes]
    models = [Model(args.layers, form == "scanned") for form in args.forms]
    rows = [row for model in models for batch, tokens in sizes for row in bench(model, batch, tokens, args.runs)]
    return int(show("Measuring a JAX model, one thread", rows) > 0)


if __name__ == "__main__":
    sys.exit(main())
