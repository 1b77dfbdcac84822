"""What making optimizer groups costs: seconds on a model of a billion parameters, on meta, and against inspecting it.

Exit status 1 says that a goal was missed.

    python benchmarks/bench_groups.py [--runs 9]
"""

import argparse
import sys

from measuring import Row, medians, show

# isort: split
# What measuring sets must be set before torch is loaded.
import torch

import tiebeam
from tiebeam.torch import param_groups, split_for_muon
from tiebeam.zoo.minigpt import MiniGPTConfig
from tiebeam.zoo.torch.minigpt import MiniGPT

GOAL = 0.2
"""Seconds."""


def main() -> int:
    """Measure and print; 1 where a goal was missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=9)
    runs = parser.parse_args().runs
    with torch.device("meta"):
        model = MiniGPT(MiniGPTConfig.from_scheme("D", vocab=50257, width=2048, layers=18, heads=16))
        report = tiebeam.inspect(model, torch.zeros(1, 8, dtype=torch.long))
    size = sum(p.numel() for p in model.parameters())
    optimizer = torch.optim.SGD(param_groups(model, report, lr=0.1, optimizer="sgd"))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=1000)
    grouped, split, seen, followed = medians(
        runs,
        lambda: param_groups(model, report, lr=1e-3, weight_decay=0.1),
        lambda: split_for_muon(model, report, lr=1e-3, muon_lr=0.02),
        lambda: tiebeam.inspect_optimizer(optimizer, model, report),
        lambda: tiebeam.inspect_optimizer(optimizer, model, report, schedule),
    )
    rows = [
        Row("param_groups", grouped, GOAL, " s"),
        Row("split_for_muon", split, GOAL, " s"),
        Row("inspect_optimizer", seen, GOAL, " s"),
        Row("inspect_optimizer, 1,000 steps of a schedule", followed, None, " s"),
    ]
    return int(show(f"Groups of a model of {size / 1e9:.2f} billion parameters, on meta", rows) > 0)


if __name__ == "__main__":
    sys.exit(main())
