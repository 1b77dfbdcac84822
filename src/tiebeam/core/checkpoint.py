"""What a checkpoint holds of the tie, as data; text, Markdown, JSON and HTML are functions of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from tiebeam.core.finding import Finding
from tiebeam.core.mending import assert_healthy

CHECKPOINT_SCHEMA = 1

CheckpointState = Literal[
    "omitted",
    "equal",
    "equal-after-cast",
    "transposed",
    "sliced",
    "different",
    "no-readout",
    "no-table",
    "unknown",
]


@dataclass(frozen=True, slots=True)
class Stored:
    """One end of the model as a file holds it.

    Attributes:
        shape: None where the file does not say, as an index alone.
        dtype: "" where it is not known.
        file: The file that holds it.
        nbytes: Unit: bytes; 0 where the shape is not known.
        std: Of the rows that were looked at, or None.
    """

    name: str
    shape: tuple[int, ...] | None
    dtype: str
    file: str
    nbytes: int
    std: float | None = None


@dataclass(frozen=True, slots=True)
class Gap:
    """How far two matrices are apart.

    Attributes:
        largest: The largest difference of two entries.
        distance: Relative Frobenius distance: of the difference over that of the table.
        rows_differing: Rows that differ.
        rows_seen: Rows that were compared; a part where the matrices are large.
        rows: Rows that both have.
    """

    largest: float
    distance: float
    rows_differing: int
    rows_seen: int
    rows: int


@dataclass(frozen=True)
class CheckpointReport:
    """What tiebeam read from a checkpoint.

    Attributes:
        path: What was looked at.
        format: "safetensors", "torch", "gguf", "keras", "npz" or "llama2.c".
        state: "omitted": no readout, and the config, the family or the file itself ties. "equal": two names of equal
            bits, or of one storage. "equal-after-cast", "transposed", "sliced" (equal as far as the shorter goes),
            "different". "no-readout": absent, and nothing ties it. "no-table". "unknown": both are there and there is
            nothing to compare.
        table: Name of the table, or None.
        readout: Name of the readout, or None.
        declared: What the config says; None where it is silent or contradicts itself.
        effective: Whether a model built from the config has one table; None where that is not known.
        ends: Table and readout as stored, those that are there.
        elements: Numbers held, each storage once; None where an index has no files.
        nbytes: Their bytes, or what an index declares; None where neither is known.
        gap: Where two matrices differ in value.
    """

    path: str
    format: str
    state: CheckpointState
    table: str | None = None
    readout: str | None = None
    declared: bool | None = None
    effective: bool | None = None
    ends: tuple[Stored, ...] = ()
    findings: tuple[Finding, ...] = ()
    files: tuple[str, ...] = ()
    tensors: int = 0
    elements: int | None = None
    nbytes: int | None = None
    vocab: int | None = None
    gap: Gap | None = None
    notes: tuple[str, ...] = ()

    renderers: ClassVar[dict[str, Callable[[CheckpointReport], str]]] = {}

    def assert_healthy(self, ignore: str | Collection[str] = ()) -> None:
        """Raise where the report holds an error or a warning whose code is not in `ignore`.

        Args:
            ignore: Codes of findings that are meant, or one such code.

        Raises:
            UnhealthyTie: With every such finding and what to do.
            RangeError: `ignore` names a code that no finding has.

        Example:
            >>> CheckpointReport(path="model.safetensors", format="safetensors", state="omitted").assert_healthy()
        """
        __tracebackhide__ = True  # pytest shows the line of the test
        assert_healthy(f"'{self.path}'", "the file", self.findings, ignore)

    def to_dict(self) -> dict[str, Any]:
        """Plain data: what `--format json` prints. `schema` rises when a field changes its meaning."""
        plain = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        plain |= {
            "ends": [dataclasses.asdict(e) for e in self.ends],
            "findings": [dataclasses.asdict(f) for f in self.findings],
            "gap": None if self.gap is None else dataclasses.asdict(self.gap),
            "files": list(self.files),
            "notes": list(self.notes),
        }
        return {"schema": CHECKPOINT_SCHEMA, **plain}

    def to_markdown(self) -> str:
        return self._render("markdown")

    def to_html(self) -> str:
        return self._render("html")

    def to_json(self) -> str:
        return self._render("json")

    def _repr_html_(self) -> str:
        return self._render("html")

    def __str__(self) -> str:
        return self._render("text") if "text" in self.renderers else repr(self)

    def _render(self, kind: str) -> str:
        return self.renderers[kind](self)
