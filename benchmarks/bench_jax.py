"""What looking at a large JAX model costs: 2 billion parameters as shapes alone, in linen and in nnx.

The figure is the wall time of `tiebeam.inspect` in a fresh process, after the model was built by `jax.eval_shape`
or `nnx.eval_shape`; tracing the model once is shown beside it. Exit status 1 says that a goal was missed.

    python benchmarks/bench_jax.py [--only linen nnx] [--layers 18]
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from measuring import Row, show

# isort: split
import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import nnx

import tiebeam

VOCAB, WIDTH, HIDDEN, HEADS, HEAD = 256_128, 2048, 16_384, 8, 256
TOKENS, GOAL = 64, 10.0


def attended(q: Any, k: Any, v: Any) -> Any:
    """Causal attention of many queries to one key and value."""
    scores = jnp.einsum("bthd,bsd->bhts", q, k) * HEAD**-0.5
    mask = jnp.tril(jnp.ones((q.shape[1], q.shape[1]), bool))
    return jnp.einsum("bhts,bsd->bthd", jax.nn.softmax(jnp.where(mask, scores, -2e38), axis=-1), v)


class LinenBlock(nn.Module):
    """Attention and a gated network, each behind its norm."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        h = nn.RMSNorm()(x)
        q = nn.DenseGeneral((HEADS, HEAD), use_bias=False)(h)
        k, v = (nn.Dense(HEAD, use_bias=False)(h) for _ in range(2))
        x = x + nn.DenseGeneral(WIDTH, axis=(-2, -1), use_bias=False)(attended(q, k, v))
        h = nn.RMSNorm()(x)
        gate, up = (nn.Dense(HIDDEN, use_bias=False)(h) for _ in range(2))
        return x + nn.Dense(WIDTH, use_bias=False)(nn.gelu(gate) * up)


class LinenModel(nn.Module):
    """A decoder with a tied table; its layers are written out, not scanned."""

    layers: int

    @nn.compact
    def __call__(self, tokens: Any) -> Any:
        embed = nn.Embed(VOCAB, WIDTH, name="embed")
        x = embed(tokens) * jnp.sqrt(WIDTH)
        for i in range(self.layers):
            x = LinenBlock(name=f"layer_{i}")(x)
        return 30.0 * jnp.tanh(embed.attend(nn.RMSNorm()(x)) / 30.0)


class NnxBlock(nnx.Module):
    """The same block."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.norm, self.other = nnx.RMSNorm(WIDTH, rngs=rngs), nnx.RMSNorm(WIDTH, rngs=rngs)
        self.q = nnx.LinearGeneral(WIDTH, (HEADS, HEAD), use_bias=False, rngs=rngs)
        self.k, self.v = (nnx.Linear(WIDTH, HEAD, use_bias=False, rngs=rngs) for _ in range(2))
        self.out = nnx.LinearGeneral((HEADS, HEAD), WIDTH, axis=(-2, -1), use_bias=False, rngs=rngs)
        self.gate, self.up = (nnx.Linear(WIDTH, HIDDEN, use_bias=False, rngs=rngs) for _ in range(2))
        self.down = nnx.Linear(HIDDEN, WIDTH, use_bias=False, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        h = self.norm(x)
        x = x + self.out(attended(self.q(h), self.k(h), self.v(h)))
        h = self.other(x)
        return x + self.down(nnx.gelu(self.gate(h)) * self.up(h))


class NnxModel(nnx.Module):
    """The same decoder."""

    def __init__(self, layers: int, rngs: nnx.Rngs) -> None:
        self.embed = nnx.Embed(VOCAB, WIDTH, rngs=rngs)
        self.blocks = nnx.List([NnxBlock(rngs) for _ in range(layers)])
        self.norm = nnx.RMSNorm(WIDTH, rngs=rngs)

    def __call__(self, tokens: Any) -> Any:
        x = self.embed(tokens) * jnp.sqrt(WIDTH)
        for block in self.blocks:
            x = block(x)
        return 30.0 * jnp.tanh(self.embed.attend(self.norm(x)) / 30.0)


def linen(layers: int) -> tuple[Any, Any, Callable[[Any], Any]]:
    """The module, its shapes, and a plain application."""
    model = LinenModel(layers)
    shapes = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, TOKENS), jnp.int32))
    return model, shapes, lambda ids: jax.make_jaxpr(model.apply)(shapes, ids)


def of_nnx(layers: int) -> tuple[Any, Any, Callable[[Any], Any]]:
    """The same of nnx, which holds its own shapes."""
    model = nnx.eval_shape(lambda: NnxModel(layers, nnx.Rngs(0)))
    structure, state = nnx.split(model)
    return model, None, lambda ids: jax.make_jaxpr(lambda s, i: nnx.merge(structure, s)(i))(state, ids)


MODELS = {"linen": linen, "nnx": of_nnx}


def measure(name: str, layers: int) -> None:
    """The child's part: print seconds, parameters and what was seen."""
    model, params, plain = MODELS[name](layers)
    ids = jnp.zeros((1, TOKENS), jnp.int32)
    start = time.perf_counter()
    report = tiebeam.inspect(model, ids, params=params)
    seen = time.perf_counter() - start
    jax.clear_caches()
    start = time.perf_counter()
    plain(ids)
    traced = time.perf_counter() - start
    [table] = report.tables
    what = f"{table.state}, x {table.lookup_factor:.2f}, x {table.readout_factor:g}, cap {table.soft_cap:g}"
    print(f"{seen}\t{traced}\t{report.parameters}\t{what}")


def main() -> int:
    """Measure and print; 1 where a goal was missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=tuple(MODELS), default=list(MODELS))
    parser.add_argument("--layers", type=int, default=18)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        measure(args.child, args.layers)
        return 0
    rows = []
    for name in args.only:
        command = [sys.executable, __file__, "--child", name, "--layers", str(args.layers)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        seen, traced, parameters, what = done.stdout.strip().splitlines()[-1].split("\t")
        note = f"{int(parameters) / 1e9:.1f} billion parameters: {what}"
        rows.append(Row(f"{name}, shapes alone: inspect", float(seen), GOAL, " s", note))
        rows.append(Row(f"{name}: tracing it once", float(traced), None, " s"))
    return int(show("Looking at a JAX model of 2 billion parameters", rows) > 0)


if __name__ == "__main__":
    sys.exit(main())
