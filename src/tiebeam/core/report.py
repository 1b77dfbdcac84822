"""The report: data first; text, Markdown and HTML are functions of it (registered from above)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from tiebeam.core.facts import Table
from tiebeam.core.finding import Finding
from tiebeam.core.mending import assert_healthy

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class TableInit:
    """What `initialize` did, or would do, to one table.

    Attributes:
        mode: "analytic" or "empirical", whichever was used in the end.
        rounds: Measured rounds.
        settled: Whether the measured logit std came within 2 % of 1, and the logits themselves, where they were
            measured, do not contradict it.
        written: False on meta: the plan alone.
    """

    name: str
    mode: Literal["analytic", "empirical"]
    std_before: float | None
    std: float
    predicted_logit_std: float | None
    measured_logit_std: float | None
    rounds: int = 0
    settled: bool = True
    written: bool = True
    biases: tuple[str, ...] = ()
    zero_rows: tuple[int, ...] = ()
    seed: int = 0


@dataclass(frozen=True)
class Report:
    """What tiebeam saw in a model.

    Example:
        >>> Report(model="Tiny", framework="torch").assert_healthy()
    """

    model: str
    framework: str
    tables: tuple[Table, ...] = ()
    findings: tuple[Finding, ...] = ()
    parameters: int = 0
    meta: bool = False
    init: tuple[TableInit, ...] = ()
    notes: tuple[str, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)

    renderers: ClassVar[dict[str, Callable[[Report], str]]] = {}

    def assert_healthy(self, ignore: str | Collection[str] = ()) -> None:
        """Raise where the report holds an error or a warning whose code is not in `ignore`.

        Args:
            ignore: Codes of findings that are meant, or one such code.

        Raises:
            UnhealthyTie: With every such finding, its place and its fix.
            RangeError: `ignore` names a code that no finding has.
        """
        __tracebackhide__ = True  # pytest shows the line of the test
        assert_healthy(self.model, "the model", self.findings, ignore)

    def to_dict(self) -> dict[str, Any]:
        """Plain data: what `--format json` prints. `schema` rises when a field changes its meaning."""
        return {
            "schema": SCHEMA_VERSION,
            "model": self.model,
            "framework": self.framework,
            "meta": self.meta,
            "parameters": self.parameters,
            "tables": [t.to_dict() for t in self.tables],
            "findings": [dataclasses.asdict(f) for f in self.findings],
            "init": [dataclasses.asdict(i) for i in self.init],
            "notes": list(self.notes),
            "versions": dict(self.versions),
        }

    def to_markdown(self) -> str:
        return self._render("markdown")

    def to_html(self) -> str:
        return self._render("html")

    def to_json(self) -> str:
        return self._render("json")

    def _repr_html_(self) -> str:
        return self._render("notebook")

    def __str__(self) -> str:
        return self._render("text") if "text" in self.renderers else repr(self)

    def _render(self, kind: str) -> str:
        return self.renderers[kind](self)
