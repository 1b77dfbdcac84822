"""What looking at a model costs against running it, on one thread.

Times are ratios of medians of interleaved runs; peaks are taken in fresh processes. A plain forward is
`model(ids)`, without grad unless the line says otherwise. Memory that is freed stays with the process
(`measuring.keep_heap`). Exit status 1 says that a goal was missed.

    python benchmarks/bench_inspect.py [--runs 9] [--only gpt2 llama]
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from measuring import Row, keep_heap, medians, peak_above, show

# isort: split
# What measuring sets must be set before torch is loaded.
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

import tiebeam
from tiebeam.backends.torch import trace as tracing
from tiebeam.ir import Graph

TOKENS = 64
UNREAD = tracing.Trace(Graph((), (), (), ()), {}, False)  # of a pass that was recorded, and of which no graph was made
Work = Callable[[], object]


def gpt2(layers: int = 12) -> tuple[torch.nn.Module, tuple[object, ...], dict[str, object]]:
    """GPT-2 small and 1 x 64 tokens."""
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(n_layer=layers)).eval()
    return model, (torch.randint(0, 50000, (1, TOKENS)),), {}


def llama(layers: int = 80) -> tuple[torch.nn.Module, tuple[object, ...], dict[str, object]]:
    """A Llama of the 70B size on meta, with a 4-D mask: without one, masking asks for values on meta."""
    config = LlamaConfig(
        vocab_size=128256,
        hidden_size=8192,
        intermediate_size=28672,
        num_hidden_layers=layers,
        num_attention_heads=64,
        num_key_value_heads=8,
        tie_word_embeddings=True,
        dtype="bfloat16",
    )
    with torch.device("meta"):
        model = LlamaForCausalLM(config).eval()
        ids = torch.ones(1, TOKENS, dtype=torch.long)
        mask = torch.zeros(1, 1, TOKENS, TOKENS, dtype=torch.bfloat16)
    return model.bfloat16(), (), {"input_ids": ids, "attention_mask": mask}


class Through(TorchDispatchMode):
    """The floor of recording below autograd: a mode that does nothing."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Noting(TorchDispatchMode):
    """The peer: a mode that notes each operation and the tensors it read and made, and holds them."""

    def __init__(self) -> None:
        super().__init__()
        self.notes: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.notes.append((func, args, kwargs, out))
        return out


MODELS = {"gpt2": gpt2, "llama": llama}


def works(name: str, layers: int | None = None) -> dict[str, Work]:
    """What can be measured on one model, by name."""
    model, args, kwargs = MODELS[name](*([] if layers is None else [layers]))
    inputs = kwargs or args

    def plain() -> None:
        with torch.no_grad():
            model(*args, **kwargs)

    def record() -> None:
        finish = tracing._finish
        tracing._finish = lambda *_: UNREAD  # not a mock: that would hold every record
        try:
            tracing.trace(model, args, kwargs)
        finally:
            tracing._finish = finish

    def within(mode: type[TorchDispatchMode]) -> Work:
        def run() -> None:
            with mode():
                model(*args, **kwargs)

        return run

    return {
        "plain": plain,
        "grad": lambda: model(*args, **kwargs),
        "record": record,
        "trace": lambda: tracing.trace(model, args, kwargs),
        "inspect": lambda: tiebeam.inspect(model, inputs),
        "through": within(Through),
        "noting": within(Noting),
    }


def peak(name: str, work: str) -> float | None:
    """MiB above the loaded model that one call needs, in a process of its own.

    There tensors go back to the system once they are freed: what counts is what is held, not how the heap was cut up.
    """
    done = subprocess.run(
        [sys.executable, __file__, "--peak", name, work], capture_output=True, text=True, check=True,
        env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"},
    )  # fmt: skip
    said = done.stdout.split()[-1]
    return None if said == "None" else float(said)


def print_peak(name: str, work: str) -> None:
    """The child's part of `peak`."""
    works(name, layers=1)[work]()  # what is imported or built once is not the call's
    print(peak_above(works(name)[work]))


def bench_gpt2(runs: int) -> list[Row]:
    """Rows of GPT-2 small on real weights."""
    todo = works("gpt2")
    plain, grad, recorded, traced, seen, through, noting = medians(runs, *todo.values())
    rows = [
        Row("gpt2: inspect / plain forward", seen / plain, 1.5, note=f"plain {plain * 1e3:.0f} ms"),
        Row("gpt2: recording alone / plain forward", recorded / plain, 1.1),
        Row("gpt2: recording and graph / plain forward", traced / plain),
        Row("gpt2: inspect / forward with grad", seen / grad),
        Row("gpt2: recording alone / forward with grad", recorded / grad),
        Row("gpt2: a dispatch mode that does nothing / plain forward", through / plain),
        Row("gpt2: a dispatch mode that notes and holds / plain forward", noting / plain),
    ]
    usual, ours = peak("gpt2", "grad"), peak("gpt2", "inspect")
    if usual is not None and ours is not None:
        note = f"{ours:.0f} against {usual:.0f} MiB above the model"
        rows.append(Row("gpt2: peak memory, inspect / forward with grad", ours / usual, 1.0, note=note))
    return rows


def bench_llama(runs: int) -> list[Row]:
    """Rows of the large Llama on meta."""
    todo = works("llama")
    plain, grad, recorded, traced, seen, *_ = medians(runs, *todo.values())
    rows = [
        Row("llama 70B, meta: inspect / plain forward", seen / plain, 2.5, note=f"plain {plain:.2f} s"),
        Row("llama 70B, meta: recording alone / plain forward", recorded / plain),
        Row("llama 70B, meta: recording and graph / plain forward", traced / plain),
        Row("llama 70B, meta: inspect / forward with grad", seen / grad),
    ]
    usual, ours = peak("llama", "plain"), peak("llama", "inspect")
    if usual is not None and ours is not None:
        note = f"{ours:.0f} against {usual:.0f} above the model"
        rows.append(Row("llama 70B, meta: extra peak memory", ours - usual, 100, " MiB", note))
    return rows


def main() -> int:
    """Measure and print; 1 where a goal was missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--only", nargs="+", choices=tuple(MODELS), default=list(MODELS))
    parser.add_argument("--peak", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.peak:
        print_peak(*args.peak)
        return 0
    keep_heap()
    rows = []
    if "gpt2" in args.only:
        rows += bench_gpt2(args.runs)
    if "llama" in args.only:
        rows += bench_llama(max(3, args.runs // 2))
    return int(show("Looking at a model, one thread", rows) > 0)


if __name__ == "__main__":
    sys.exit(main())
