"""What a run of an experiment costs: a training step beside that of the plain script, two processes beside one.

The plain script is that of the measurements that `schemes` repeats: the same network, logits of the whole batch, their
cross entropy, AdamW as it comes; one thread, the same batch. The sweep does the same runs one after another on a core,
and then in two processes on two; their start has a row of its own. Exit status 1 says that a goal was missed.

    python benchmarks/bench_experiments.py [--runs 3] [--batch 32] [--only step sweep]
"""

import argparse
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from measuring import Row, medians, show

# isort: split
# What measuring sets must be set before torch is loaded.
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tiebeam.experiments.catalog import experiment
from tiebeam.experiments.runner import Plan, run_sweep
from tiebeam.experiments.sweep import ask
from tiebeam.zoo.torch.minigpt import MiniGPT

VOCAB, LENGTH, LAYERS = 33_527, 128, 4
STEP = {128: 0.5, 512: None}
SWEEP = 1 / 1.6


class PlainBlock(nn.Module):
    """Pre-norm attention and feed-forward layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = max(width // 64, 2)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        shapes = {
            "qkv": (width, 3 * width),
            "mix": (width, width),
            "up": (width, 4 * width),
            "down": (4 * width, width),
        }
        self.linear = nn.ModuleDict({name: nn.Linear(*shape, bias=False) for name, shape in shapes.items()})
        for name, layer in self.linear.items():
            std = layer.in_features**-0.5
            nn.init.normal_(layer.weight, 0.0, std / math.sqrt(2 * LAYERS) if name in ("mix", "down") else std)

    def forward(self, x: Tensor) -> Tensor:
        """The stream after it."""
        batch, tokens, width = x.shape
        split = self.linear["qkv"](self.norms[0](x)).view(batch, tokens, 3, self.heads, width // self.heads)
        mixed = F.scaled_dot_product_attention(*split.permute(2, 0, 3, 1, 4), is_causal=True)
        x = x + self.linear["mix"](mixed.transpose(1, 2).reshape(x.shape))
        return x + self.linear["down"](F.gelu(self.linear["up"](self.norms[1](x))))


class PlainModel(nn.Module):
    """The network as one would write it down: scheme C, its table a bare parameter."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.factor = width**0.5
        self.table = nn.Parameter(torch.randn(VOCAB, width) * width**-0.5)
        self.blocks = nn.Sequential(*(PlainBlock(width) for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(width)

    def forward(self, ids: Tensor) -> Tensor:
        """Logits, (batch, tokens, vocab)."""
        return self.norm(self.blocks(F.embedding(ids, self.table) * self.factor)) @ self.table.t()


def stepping(model: nn.Module, loss: Callable[[], Tensor], **adam: bool) -> Callable[[], None]:
    """One update of `model`: backward pass, clipping, AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.0, **adam)

    def step() -> None:
        found = loss()
        optimizer.zero_grad(set_to_none=True)
        found.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


def bench_step(width: int, batch: int, runs: int) -> list[Row]:
    """A step of each, in turn."""
    torch.manual_seed(0)
    ids = torch.randint(VOCAB, (batch, LENGTH + 1))
    plain, ours = (
        PlainModel(width),
        MiniGPT.from_scheme("C", vocab=VOCAB, width=width, layers=LAYERS, block_size=LENGTH),
    )

    def by_logits() -> Tensor:
        return F.cross_entropy(plain(ids[:, :-1]).float().reshape(-1, VOCAB), ids[:, 1:].reshape(-1))

    with torch.no_grad():
        alike = float(by_logits()), float(ours.loss(ids))
    steps = stepping(plain, by_logits), stepping(ours, lambda: ours.loss(ids), fused=True)
    theirs, mine = medians(runs, *steps, clock=time.thread_time)
    note = f"{theirs:.2f} s; first losses {alike[0]:.2f} and {alike[1]:.2f}"
    return [Row(f"step at width {width}: MiniGPT / plain script", mine / theirs, STEP.get(width), note=note)]


def bench_sweep(steps: int) -> list[Row]:
    """The same runs one after another on one core, and shared out to two workers; what both wait for first is apart."""
    what = experiment("schemes")
    few = {"schemes": ["C"], "rates": [1e-3, 2e-3, 4e-3, 8e-3], "unclipped": ["C"], "widths": [64], "seeds": [0, 1]}
    cores, started, seconds = sorted(os.sched_getaffinity(0))[:2], [], []
    with tempfile.TemporaryDirectory() as folder:

        def sweep(workers: int, steps: int) -> float:
            asked = ask(what, "laptop", {**few, "steps": steps}, data=["synthetic"], cache=Path(folder))
            plan = Plan(Path(folder) / f"{workers}-{steps}.sqlite", asked.tokens, workers=workers)
            start = time.perf_counter()
            counts = run_sweep(what, asked.configs, plan)
            assert counts["finished"] == len(asked.configs), counts
            return time.perf_counter() - start

        for workers in (1, 2):
            os.sched_setaffinity(0, cores[:workers])
            started.append(sweep(workers, 1))  # starts processes, which load torch and are kept
            seconds.append(sweep(workers, steps))
    one, two = seconds
    note = f"{one:.1f} s and {two:.1f} s for ten runs of {steps} steps, {one / two:.2f} times as fast"
    begun = f"ten runs of one step, with what is loaded first; one after another {started[0]:.1f} s"
    return [
        Row("sweep: two workers / one after another", two / one, SWEEP, note=note),
        Row("until two workers have started", started[1], unit=" s", note=begun),
    ]


def main() -> int:
    """Measure and print; 1 where a goal was missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=32, help="windows of 128 tokens in a step")
    parser.add_argument("--widths", type=int, nargs="+", default=[128, 512])
    parser.add_argument("--steps", type=int, default=100, help="of each run of the sweep")
    parser.add_argument("--only", choices=["step", "sweep"], nargs="+", default=["step", "sweep"])
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[Row] = []
    if "step" in args.only:
        for width in args.widths:
            rows += bench_step(width, args.batch, args.runs)
    if "sweep" in args.only and hasattr(os, "sched_setaffinity"):
        rows += bench_sweep(args.steps)
    return int(show(f"Experiments: vocabulary {VOCAB}, {args.batch} windows of {LENGTH} tokens", rows) > 0)


if __name__ == "__main__":
    sys.exit(main())
