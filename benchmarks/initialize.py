"""What drawing a table costs against `torch.nn.init.normal_`, on one thread and on two.

Runs of both are interleaved, so that a busy machine slows both alike; the ratio of their medians is what
holds from machine to machine, seconds do not. Exit status 1 says that a goal was missed.

    python benchmarks/initialize.py [--vocab 50257] [--width 768] [--dtype float32] [--runs 9]
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before torch: idle threads must not eat a core

import torch

from tiebeam.backends.torch.weights import table_statistics, write_table

GOALS = {1: 3.5, 2: 2.0}
"""Largest ratio to `normal_`, by number of threads."""


def medians(runs: int, *works: Callable[[], object]) -> list[float]:
    """Median seconds of each, run in turn, after one round to warm up."""
    for work in works:
        work()
    seconds: list[list[float]] = [[] for _ in works]
    for _ in range(runs):
        for taken, work in zip(seconds, works, strict=True):
            start = time.perf_counter()
            work()
            taken.append(time.perf_counter() - start)
    return [statistics.median(taken) for taken in seconds]


def main() -> int:
    """Measure and print; 1 where a goal was missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--vocab", type=int, default=50257)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--vocab-axis", type=int, default=0, choices=(0, 1))
    args = parser.parse_args()
    shape = (args.vocab, args.width) if args.vocab_axis == 0 else (args.width, args.vocab)
    table = torch.empty(shape, dtype=getattr(torch, args.dtype))
    missed = False
    for threads, goal in GOALS.items():
        torch.set_num_threads(threads)
        reference, written, measured = medians(
            args.runs,
            lambda: torch.nn.init.normal_(table, std=0.02),
            lambda: write_table(table, vocab_axis=args.vocab_axis, seed=0, ordinal=0, std=0.02),
            lambda: table_statistics(table, args.vocab_axis),
        )
        ratio = written / reference
        missed |= ratio > goal
        print(
            f"{threads} thread(s): normal_ {reference:.3f} s, write_table {written:.3f} s, "
            f"ratio {ratio:.2f} (goal {goal}); table_statistics {measured:.3f} s"
        )
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
