"""What drawing a table costs against `torch.nn.init.normal_`, on one thread and on two.

The ratio of the medians of interleaved runs holds from machine to machine; seconds do not.
Exit status 1 says that a goal was missed.

    python benchmarks/bench_initialize.py [--vocab 50257] [--width 768] [--dtype float32] [--runs 9]
"""

import argparse
import sys

from measuring import Row, medians, show

# isort: split
# What measuring sets must be set before torch is loaded.
import torch

from tiebeam.backends.torch.weights import table_statistics, write_table

GOALS = {1: 3.5, 2: 2.0}
"""Largest ratio to `normal_`, by number of threads."""


def main() -> int:
    """Measure and print; 1 where a goal was missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocab", type=int, default=50257)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--vocab-axis", type=int, default=0, choices=(0, 1))
    args = parser.parse_args()
    shape = (args.vocab, args.width) if args.vocab_axis == 0 else (args.width, args.vocab)
    table = torch.empty(shape, dtype=getattr(torch, args.dtype))
    rows = []
    for threads, goal in GOALS.items():
        torch.set_num_threads(threads)
        reference, written, measured = medians(
            args.runs,
            lambda: torch.nn.init.normal_(table, std=0.02),
            lambda: write_table(table, vocab_axis=args.vocab_axis, seed=0, ordinal=0, std=0.02),
            lambda: table_statistics(table, args.vocab_axis),
        )
        where = f"{threads} thread{'s'[: threads > 1]}"
        rows += [
            Row(f"write the table, {where}", written / reference, goal, note=f"normal_ {reference:.3f} s"),
            Row(f"its std, finiteness and spread, {where}", measured / reference),
        ]
    title = f"Drawing {args.vocab:,} x {args.width:,} {args.dtype}, against nn.init.normal_"
    return int(show(title, rows) > 0)


if __name__ == "__main__":
    sys.exit(main())
