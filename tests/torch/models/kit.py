"""Small real modules whose truth was worked out by hand, one file a theme.

A builder returns a `Case`. `CASES[theme]` maps names to builders, so that importing draws nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VOCAB, WIDTH, BATCH, LENGTH = 37, 8, 2, 5


@dataclass(frozen=True)
class Truth:
    """What is so, by hand.

    `names` are the paths a table must carry; `partner` those of the other one where the state speaks of
    two. `counts` are (lookup records, readout records, executions of the first readout record).
    `numeric` False: the measurements cannot establish it (two passes, a cast, no table in both roles).
    """

    names: tuple[str, ...] = ("table",)
    state: str = "tied"
    lookup_factor: float | None = 1.0
    readout_factor: float | None = 1.0
    soft_cap: float | None = None
    readout_bias: bool = False
    norm_after_lookup: bool = False
    partner: tuple[str, ...] = ()
    counts: tuple[int, int, int] | None = (1, 1, 1)
    vocab: int = VOCAB
    width: int = WIDTH
    vocab_axis: int = 0
    findings: tuple[str, ...] = ()
    numeric: bool = True
    smooth: bool = True


@dataclass(frozen=True)
class Case:
    model: nn.Module
    inputs: Any
    truths: tuple[Truth, ...]


Builder = Callable[[], Case]
CASES: dict[str, dict[str, Builder]] = {}


def ids(vocab: int = VOCAB, batch: int = BATCH, length: int = LENGTH) -> Tensor:
    return torch.randint(0, vocab, (batch, length), generator=torch.Generator().manual_seed(3))


class Base(nn.Module):
    """A residual language model in four methods; a case overrides the one it is about."""

    def __init__(self, vocab: int = VOCAB, width: int = WIDTH) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(vocab, width) * 0.3)
        self.mid = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)

    def look(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.table)

    def body(self, x: Tensor) -> Tensor:
        return self.norm(x + torch.tanh(self.mid(x)))

    def read(self, h: Tensor) -> Any:
        return F.linear(h, self.table)

    def forward(self, ids: Tensor) -> Any:
        return self.read(self.body(self.look(ids)))


def case(theme: str, truth: Truth | tuple[Truth, ...] | None = None, inputs: Any = None) -> Callable[[Any], Any]:
    """Register a module class (built with no argument) or a function that returns (model, inputs, truths)."""

    def register(made: Any) -> Any:
        def build() -> Case:
            torch.manual_seed(0)
            if isinstance(made, type):
                given = (ids(),) if inputs is None else inputs
                truths = truth if isinstance(truth, tuple) else (truth or Truth(),)
                return Case(made(), given() if callable(given) else given, truths)
            return Case(*made())

        name = made.__name__
        assert name not in CASES.setdefault(theme, {}), name
        CASES[theme][name] = build
        return made

    return register


def load() -> dict[str, dict[str, Builder]]:
    """Import every theme."""
    from tests.torch.models import (  # noqa: F401
        bad,
        codebases,
        factors,
        families,
        habits,
        lookups,
        none,
        readouts,
        softcaps,
        states,
        unknown,
    )

    return CASES
