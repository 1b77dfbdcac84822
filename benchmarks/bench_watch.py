"""What watching costs a training run, on one thread.

Each model trains for some hundreds of steps, watched every 100. Its share is the processor time spent in the watch,
every call counted, over that of the whole run. Beside it stands the same run without a watch, in turn with the other by
blocks of 100 steps: on a busy machine that ratio alone would say nothing about two percent. Exit status 1 says that the
goal was missed.

    python benchmarks/bench_watch.py [--blocks 3]
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from measuring import Row, show

# isort: split
# What measuring sets must be set before torch is loaded.
import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

import tiebeam
from tiebeam.zoo.minigpt import MiniGPTConfig
from tiebeam.zoo.torch.minigpt import MiniGPT

EVERY = 100


@dataclass
class Run:
    """A model in training.

    Attributes:
        watched: Seconds in the watch, by block of steps.
        blocks: Seconds of each block.
    """

    model: nn.Module
    vocab: int
    shape: tuple[int, int]
    loss: Callable[[nn.Module, Tensor], Tensor]
    watch: tiebeam.Watch | None
    watched: list[float] = field(default_factory=list)
    blocks: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4)
        self.step = 0

    def block(self) -> None:
        """Train for as many steps as lie between two measurements."""
        start, spent = time.process_time(), 0.0
        for _ in range(EVERY):
            ids = torch.randint(0, self.vocab, self.shape)
            if self.watch is not None:
                before = time.process_time()
                self.watch(self.step, ids)
                spent += time.process_time() - before
            self.optimizer.zero_grad(set_to_none=True)
            self.loss(self.model, ids).backward()
            self.optimizer.step()
            self.step += 1
        self.blocks.append(time.process_time() - start)
        self.watched.append(spent)


def of_logits(model: nn.Module, ids: Tensor) -> Tensor:
    """Cross entropy of the next tokens."""
    logits = model(ids)
    return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def of_labels(model: nn.Module, ids: Tensor) -> Tensor:
    """The model's own loss."""
    loss: Tensor = model(input_ids=ids, labels=ids).loss
    return loss


def minigpt(layers: int, width: int) -> nn.Module:
    """A GPT of the zoo."""
    return MiniGPT(MiniGPTConfig.from_scheme("C", vocab=4096, width=width, layers=layers, heads=4))


def gpt2(layers: int, width: int) -> nn.Module:
    """GPT-2 with its own vocabulary, which weighs most where the body is small."""
    return GPT2LMHeadModel(GPT2Config(n_layer=layers, n_embd=width, n_head=4))


CASES = {
    "MiniGPT, 4 layers of 128, vocab 4,096, 8 x 64 tokens": (lambda: minigpt(4, 128), 4096, (8, 64), of_logits),
    "GPT-2, 2 layers of 128, vocab 50,257, 2 x 64 tokens": (lambda: gpt2(2, 128), 50257, (2, 64), of_labels),
}


def bench(name: str, blocks: int) -> list[Row]:
    """Rows of one model."""
    build, vocab, shape, loss = CASES[name]
    torch.manual_seed(0)
    models = [build(), build()]
    runs = [
        Run(model, vocab, shape, loss, tiebeam.Watch(model, every=EVERY) if i == 0 else None)
        for i, model in enumerate(models)
    ]
    tiebeam.measure(models[0], torch.randint(0, vocab, shape))  # what is loaded at the first call is no training's
    for _ in range(blocks):
        for run in runs:
            run.block()
    watched, plain = runs
    share = 100 * sum(watched.watched) / sum(watched.blocks)
    step = sum(plain.blocks) / (blocks * EVERY)
    ratio = statistics.median(watched.blocks) / statistics.median(plain.blocks)
    return [
        Row(f"{name}: share of a training run", share, 2, " %", note=f"a step takes {step * 1e3:.0f} ms"),
        Row(f"{name}: watched / not watched", ratio, note="blocks of 100 steps in turn"),
    ]


def main() -> int:
    """Measure and print; 1 where the goal was missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = [row for name in CASES for row in bench(name, args.blocks)]
    return int(show("Watching a training run every 100 steps, one thread, processor time", rows) > 0)


if __name__ == "__main__":
    sys.exit(main())
