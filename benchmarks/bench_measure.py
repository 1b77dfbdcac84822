"""What measuring a model costs against one plain forward and backward pass, on one thread.

Times are ratios of medians of interleaved runs, in processor time. A plain pass is
`model(ids, labels=ids).loss.backward()` with gradients set to None before. Exit status 1 says that a goal was missed.

    python benchmarks/bench_measure.py [--runs 5] [--sizes 1x64 4x256]
"""

import argparse
import sys
import time

from measuring import Row, medians, show

# isort: split
# What measuring sets must be set before torch is loaded.
import torch
from transformers import GPT2Config, GPT2LMHeadModel

import tiebeam


def bench(batch: int, tokens: int, runs: int) -> list[Row]:
    """Rows of GPT-2 small on one batch."""
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config()).eval()
    ids = torch.randint(0, 50000, (batch, tokens))

    def plain() -> None:
        model.zero_grad(set_to_none=True)
        model(ids, labels=ids).loss.backward()

    def measured() -> None:
        tiebeam.measure(model, {"input_ids": ids, "labels": ids})

    def with_spectrum() -> None:
        tiebeam.measure(model, {"input_ids": ids, "labels": ids}, spectrum=True)

    usual, ours, more = medians(runs, plain, measured, with_spectrum, clock=time.process_time)
    size = f"gpt2, {batch} x {tokens} tokens"
    return [
        Row(f"{size}: measure / forward and backward", ours / usual, 1.1, note=f"plain {usual * 1e3:.0f} ms"),
        Row(f"{size}: with the table's spectrum", more / usual),
    ]


def main() -> int:
    """Measure and print; 1 where a goal was missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--sizes", nargs="+", default=["1x64", "4x256"], help="batch x tokens")
    args = parser.parse_args()
    torch.set_num_threads(1)
    sizes = [tuple(map(int, size.split("x"))) for size in args.sizes]
    rows = [row for batch, tokens in sizes for row in bench(batch, tokens, args.runs)]
    return int(show("Measuring a model, one thread", rows) > 0)


if __name__ == "__main__":
    sys.exit(main())
