"""What mending a checkpoint does to it, as data: a plan before, the same plan as the account after."""

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

OnConflict = Literal["embedding", "readout", "mean", "untie", "error"]


@dataclass(frozen=True, slots=True)
class FixPlan:
    """What `tiebeam.checkpoints.fix` does, or would do.

    Attributes:
        path: The checkpoint that is read; nothing in it is changed.
        out: The folder that is written.
        tie: Whether the copy is tied.
        table: The tensor that stays.
        values: Whose values it holds: "embedding" (its own), "readout" or "mean".
        dropped: The readout that is left out, or "".
        beside: Scales and zeros of a quantised readout, left out with it.
        added: The readout that is written as a copy of the table, or "".
        alias: Name that the metadata records as standing for the table, or "".
        rewritten: Files of weights that change.
        copied: Files that are copied as they are.
        config: (field, before, after) of the config; None where the field was absent.
        bytes_saved: Of tensors; negative where a readout is added. Unit: bytes.
        written: False for a plan alone.
    """

    path: str
    out: str
    tie: bool
    table: str
    values: Literal["embedding", "readout", "mean"] = "embedding"
    dropped: str = ""
    beside: tuple[str, ...] = ()
    added: str = ""
    alias: str = ""
    rewritten: tuple[str, ...] = ()
    copied: tuple[str, ...] = ()
    config: tuple[tuple[str, bool | None, bool], ...] = ()
    bytes_saved: int = 0
    written: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}

    def __str__(self) -> str:
        """The steps, one a line.

        Example:
            >>> print(FixPlan("m", "out", tie=True, table="wte.weight", dropped="lm_head.weight", bytes_saved=2048))
            out: would be tied, 2,048 bytes smaller
              keep wte.weight, with its own values
              drop lm_head.weight
        """
        would = "is" if self.written else "would be"
        size = f", {abs(self.bytes_saved):,} bytes {'smaller' if self.bytes_saved > 0 else 'larger'}"
        lines = [f"{self.out}: {would} {'tied' if self.tie else 'untied'}{size if self.bytes_saved else ''}"]
        whose = {"embedding": "its own values", "readout": "the readout's values", "mean": "the mean of both"}
        lines.append(f"  keep {self.table}, with {whose[self.values]}")
        lines += [f"  drop {', '.join((self.dropped, *self.beside))}"] if self.dropped else []
        lines += [f"  add {self.added}, a copy of {self.table}"] if self.added else []
        lines += [f"  record in the metadata that {self.alias} is {self.table}"] if self.alias else []
        lines += [
            f"  set {name} to {after} (was {'absent' if before is None else before})"
            for name, before, after in self.config
        ]
        lines += [f"  rewrite {', '.join(self.rewritten)}"] if self.rewritten else []
        lines += [f"  copy {', '.join(self.copied)}"] if self.copied else []
        return "\n".join(lines)
