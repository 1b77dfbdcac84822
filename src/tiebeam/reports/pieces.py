"""The pieces of which every renderer lays out a report: rows, steps and their groups, in words."""

from dataclasses import dataclass
from typing import Literal

from tiebeam.core.facts import Table
from tiebeam.reports.strings import Code, Spans

Tone = Literal["good", "info", "warning", "error"]
StepKind = Literal["ids", "table", "factor", "network", "norm", "bias", "cap", "logits"]


@dataclass(frozen=True, slots=True)
class Row:
    """One labelled line."""

    label: str
    value: Spans


@dataclass(frozen=True, slots=True)
class Step:
    """One station of the signal on its way from ids to logits."""

    kind: StepKind
    text: str


@dataclass(frozen=True, slots=True)
class TablePart:
    """One table: its heading, its flow and its rows."""

    table: Table
    name: Code
    state: str
    size: str
    flow: tuple[Step, ...]
    rows: tuple[Row, ...]

    @property
    def flow_line(self) -> str:
        """The flow as one line of prose."""
        return " → ".join(s.text for s in self.flow)


@dataclass(frozen=True, slots=True)
class FindingPart:
    """One finding, ready to be laid out."""

    severity: str
    code: str
    where: Code | None
    message: Spans
    fix: str
    hint: Spans


@dataclass(frozen=True, slots=True)
class InitPart:
    """One initialised table."""

    name: Code
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Section:
    """Labelled lines under a heading of their own: what is no table of a model."""

    heading: str
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Parts:
    """A whole report in words; the verdict is the summary with the model's name."""

    verdict: str
    summary: str
    tone: Tone
    model: str
    subtitle: str
    tables: tuple[TablePart, ...]
    findings: tuple[FindingPart, ...]
    init: tuple[InitPart, ...]
    notes: tuple[Spans, ...]
    versions: tuple[str, ...]
    sections: tuple[Section, ...] = ()
