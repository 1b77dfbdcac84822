"""What an operation did, as data."""

import dataclasses
from dataclasses import dataclass
from typing import Any

from tiebeam.core.report import Report


@dataclass(frozen=True)
class Change:
    """What was done to a model, its config and its optimizer.

    Attributes:
        operation: "tie", "untie", "retie", "resize" or "load".
        tables: Names of the parameters that it was done to, those of one parameter together.
        vocab: Rows before and after.
        config: Fields of the config that were set, as "path: before -> after".
        optimizer: What became of the optimizer's state, by parameter.
        notes: What else is worth knowing.
        report: Of the look that confirmed it; None where identity and storage did.

    Example:
        >>> print(Change("resize", (("embed.weight",),), vocab=(50, 64)))
        resize: embed.weight
          rows: 50 -> 64
    """

    operation: str
    tables: tuple[tuple[str, ...], ...]
    vocab: tuple[int, int] | None = None
    config: tuple[str, ...] = ()
    optimizer: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    report: Report | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain data, the report apart."""
        held = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "report"}
        return {k: [list(t) if isinstance(t, tuple) else t for t in v] if isinstance(v, tuple) else v
                for k, v in held.items()}  # fmt: skip

    def __str__(self) -> str:
        lines = [f"{self.operation}: {'; '.join(' = '.join(names) for names in self.tables) or 'nothing to do'}"]
        lines += [f"  rows: {self.vocab[0]} -> {self.vocab[1]}"] if self.vocab else []
        lines += [f"  config: {said}" for said in self.config]
        lines += [f"  optimizer: {said}" for said in self.optimizer]
        lines += [f"  note: {said}" for said in self.notes]
        return "\n".join(lines)
