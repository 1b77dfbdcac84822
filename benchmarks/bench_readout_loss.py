"""What the loss of a readout costs without its logits, against the cross entropy of logits and against torch's own.

One thread; processor seconds of interleaved runs, medians; memory in a fresh process each, above weights and gradients.
Errors are against float64 on fewer tokens. Exit status 1 says that a goal was missed. The goals of bfloat16 are for a
processor that multiplies it (AVX-512 BF16 or AMX); where it does not they are shown and not judged.

    python benchmarks/bench_readout_loss.py [--runs 3] [--widths 128 512] [--tokens 4096] [--only loss]
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Callable

from measuring import Row, medians, peak_above, show

# isort: split
# What measuring sets must be set before torch is loaded.
import torch
import torch.nn.functional as F
from plain_gpt import LAYERS, PlainModel, stepping
from torch.nn import LinearCrossEntropyOptions

from tiebeam.blocks.readout_loss.torch.precision import multiplies_bfloat16
from tiebeam.torch import readout_loss
from tiebeam.zoo.torch.minigpt import MiniGPT

VOCAB = 33_527
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
TIME = {("fp32", 128): 0.52, ("fp32", 512): 0.70, ("bf16", 128): 0.28, ("bf16", 512): 0.36}
STEP = {"fp32": 0.40, "bf16": 0.26}
MEMORY = 90.0
PARTS = ["loss", "large", "errors", "step"]
Loss = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def eager(hidden: torch.Tensor, table: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """By way of logits."""
    return F.cross_entropy(F.linear(hidden, table), targets)


def torchs_best(hidden: torch.Tensor, table: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """In chunks of 256 tokens."""
    options = LinearCrossEntropyOptions(batch_chunk_size=256, acc_policy="compact", chunking_method=None)
    return F.linear_cross_entropy(hidden, table, targets, options=options)


def torchs_default(hidden: torch.Tensor, table: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """As torch chooses."""
    return F.linear_cross_entropy(hidden, table, targets, options=LinearCrossEntropyOptions())


WAYS: dict[str, Loss] = {
    "eager": eager,
    "torch's own, best chunk": torchs_best,
    "torch's own, default": torchs_default,
    "readout_loss": readout_loss,
}


def problem(
    tokens: int, width: int, dtype: torch.dtype, vocab: int = VOCAB
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Hidden states of size 1, and a table that gives logits of size 1."""
    draws = torch.Generator().manual_seed(0)
    hidden = torch.randn(tokens, width, generator=draws).to(dtype).requires_grad_()
    table = (torch.randn(vocab, width, generator=draws) * width**-0.5).to(dtype).requires_grad_()
    return hidden, table, torch.randint(vocab, (tokens,), generator=draws)


def run(way: str, hidden: torch.Tensor, table: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Forward and backward."""
    hidden.grad = table.grad = None
    loss = WAYS[way](hidden, table, targets)
    loss.backward()
    return loss.detach()


def print_memory(way: str, tokens: int, width: int, kind: str) -> None:
    """MiB above weights and gradients, of this process."""
    torch.set_num_threads(1)
    run(way, *problem(64, width, DTYPES[kind], vocab=100))  # loads what is loaded once
    hidden, table, targets = problem(tokens, width, DTYPES[kind])
    above = peak_above(lambda: run(way, hidden, table, targets))
    gradients = (hidden.numel() + table.numel()) * table.element_size() / 2**20
    print("nan" if above is None else above - gradients)


def memory(way: str, tokens: int, width: int, kind: str) -> float:
    """The same of a fresh process."""
    arguments = ["--memory", way, "--tokens", str(tokens), "--widths", str(width), "--kind", kind]
    done = subprocess.run([sys.executable, __file__, *arguments], capture_output=True, text=True, check=True)
    return float(done.stdout)


def bench_loss(tokens: int, width: int, runs: int, *, slow: bool) -> list[Row]:
    """The loss alone."""
    given = {kind: problem(tokens, width, dtype) for kind, dtype in DTYPES.items()}
    cases = [("fp32", way) for way in WAYS if slow or way != "torch's own, default"] + [("bf16", "readout_loss")]
    native = multiplies_bfloat16("cpu")
    if native:  # elsewhere it takes minutes
        cases += [("bf16", "torch's own, best chunk")]
    works = [lambda k=kind, w=way: run(w, *given[k]) for kind, way in cases]
    seconds = medians(runs, *works, clock=time.thread_time)
    rows = []
    for (kind, way), taken in zip(cases, seconds, strict=True):
        ours = way == "readout_loss"
        goal = TIME.get((kind, width)) if ours and (kind == "fp32" or native) else None
        unjudged = (
            f", goal {TIME.get((kind, width))} where bfloat16 is native"
            if ours and kind == "bf16" and not native
            else ""
        )
        note = f"{taken:.2f} s{unjudged}"
        rows.append(Row(f"{kind}, width {width}: {way} / eager fp32", taken / seconds[0], goal, note=note))
        if way != "torch's own, default":
            goal = MEMORY if ours and kind == "fp32" and width == 128 else None
            rows.append(Row(f"{kind}, width {width}: {way}, memory", memory(way, tokens, width, kind), goal, " MiB"))
    return rows


def bench_large(tokens: int, width: int) -> list[Row]:
    """The loss of tables that were drawn too wide, where most probabilities are subnormal or nearly."""
    hidden, table, targets = problem(tokens // 8, width, torch.float32)
    rows = []
    for std in (1.0, 2.0):
        drawn = (table.detach() * (std * width**0.5)).requires_grad_()
        works = [lambda w=way, t=drawn: run(w, hidden, t, targets) for way in ("eager", "readout_loss")]
        usual, ours = medians(3, *works, clock=time.thread_time)
        what = f"fp32, width {width}, a table drawn at {std:g}: readout_loss / eager"
        rows.append(Row(what, ours / usual, note=f"{tokens // 8} tokens, {ours:.2f} s"))
    return rows


def bench_errors(width: int) -> list[Row]:
    """Against float64, on a quarter of the tokens."""
    rows = []
    for kind, dtype in DTYPES.items():
        hidden, table, targets = problem(1024, width, dtype)
        loss = run("readout_loss", hidden, table, targets)
        exact = [t.detach().double().requires_grad_() for t in (hidden, table)]
        want = run("eager", *exact, targets)
        rows.append(
            Row(
                f"{kind}, width {width}: error of the loss",
                abs(float(loss - want)) * 1e6,
                1.0 if kind == "fp32" else 100.0,
                "e-6",
            )
        )
        for name, mine, right in (("hidden", hidden, exact[0]), ("table", table, exact[1])):
            error = float((mine.grad.double() - right.grad).norm() / right.grad.norm()) * 1e7
            goal = 5.0 if kind == "fp32" else None
            rows.append(Row(f"{kind}, width {width}: error of the gradient of the {name}", error, goal, "e-7"))
    return rows


def bench_step(tokens: int, width: int, runs: int) -> list[Row]:
    """A training step of a GPT of four layers, beside that of the plain script of `schemes`."""
    length = 128
    ids = torch.randint(VOCAB, (tokens // length, length + 1), generator=torch.Generator().manual_seed(0))
    plain, chunked = PlainModel(VOCAB, width), PlainModel(VOCAB, width)

    def ours(dtype: torch.dtype) -> MiniGPT:
        return MiniGPT.from_scheme("C", vocab=VOCAB, width=width, layers=LAYERS, block_size=length).to(dtype)

    wide, logits, narrow = ours(torch.float32), ours(torch.float32), ours(torch.bfloat16)
    targets = ids[:, 1:].flatten()
    steps = {
        "the plain script": stepping(plain, lambda: plain.loss(ids)),
        "fp32: torch's own, best chunk": stepping(
            chunked, lambda: torchs_best(chunked.hidden(ids[:, :-1]).flatten(0, 1), chunked.table, targets)
        ),
        "fp32: MiniGPT by logits": stepping(
            logits, lambda: F.cross_entropy(logits(ids[:, :-1]).flatten(0, 1), targets), fused=True
        ),
        "fp32: MiniGPT.loss": stepping(wide, lambda: wide.loss(ids), fused=True),
        "bf16: MiniGPT.loss": stepping(narrow, lambda: narrow.loss(ids), fused=True),
    }
    goals: dict[str, float] = {}
    if width == 128:
        goals["fp32: MiniGPT.loss"] = STEP["fp32"]
        if multiplies_bfloat16("cpu"):
            goals["bf16: MiniGPT.loss"] = STEP["bf16"]
    seconds = dict(zip(steps, medians(runs, *steps.values(), clock=time.thread_time), strict=True))
    first = seconds.pop("the plain script")
    return [
        Row(
            f"step of a GPT, width {width}, {name} / plain script",
            taken / first,
            goals.get(name),
            note=f"{taken:.2f} s",
        )
        for name, taken in seconds.items()
    ]


def main() -> int:
    """Measure and print; 1 where a goal was missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--widths", type=int, nargs="+", default=[128, 512])
    parser.add_argument("--only", choices=PARTS, nargs="+", default=PARTS)
    parser.add_argument("--no-default", action="store_true", help="leave out torch's default, the slowest")
    parser.add_argument("--memory", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--kind", choices=DTYPES, default="fp32", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.memory:
        print_memory(args.memory, args.tokens, args.widths[0], args.kind)
        return 0
    torch.set_num_threads(1)
    rows: list[Row] = []
    for width in args.widths:
        rows += bench_loss(args.tokens, width, args.runs, slow=not args.no_default) if "loss" in args.only else []
        rows += bench_large(args.tokens, width) if "large" in args.only else []
        rows += bench_errors(width) if "errors" in args.only else []
    rows += bench_step(args.tokens, 128, args.runs) if "step" in args.only else []
    return int(show(f"The readout loss: {args.tokens} tokens, vocabulary {VOCAB}, one thread", rows) > 0)


if __name__ == "__main__":
    sys.exit(main())
