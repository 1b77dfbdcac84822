"""What a run of an experiment costs: a training step beside that of the plain script, two processes beside one.

The plain script is that of the measurements that `schemes` repeats (`plain_gpt.py`): the same network, logits of the
whole batch, their cross entropy, AdamW as it comes; one thread, the same batch. The sweep does the same runs one after
another on a core, and then in two processes on two; their start has a row of its own. Exit status 1 says that a goal
was missed.

    python benchmarks/bench_experiments.py [--runs 3] [--batch 32] [--only step sweep]
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

from measuring import Row, medians, show

# isort: split
# What measuring sets must be set before torch is loaded.
import torch
from plain_gpt import LAYERS, PlainModel, stepping

from tiebeam.experiments.catalog import experiment
from tiebeam.experiments.runner import Plan, run_sweep
from tiebeam.experiments.sweep import ask
from tiebeam.zoo.torch.minigpt import MiniGPT

VOCAB, LENGTH = 33_527, 128
STEP = {128: 0.5, 512: None}
SWEEP = 1 / 1.6


def bench_step(width: int, batch: int, runs: int) -> list[Row]:
    """A step of each, in turn."""
    torch.manual_seed(0)
    ids = torch.randint(VOCAB, (batch, LENGTH + 1))
    plain, ours = (
        PlainModel(VOCAB, width),
        MiniGPT.from_scheme("C", vocab=VOCAB, width=width, layers=LAYERS, block_size=LENGTH),
    )

    with torch.no_grad():
        alike = float(plain.loss(ids)), float(ours.loss(ids))
    steps = stepping(plain, lambda: plain.loss(ids)), stepping(ours, lambda: ours.loss(ids), fused=True)
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
