"""A finding: one thing that a report has to say. Every code there is stands in `findings/catalog.py`."""

from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "warning", "info"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing the report has to say.

    Attributes:
        code: Stable name, such as "init-scale".
        severity: "error" wrong results; "warning" memory, quality or a tie at risk; "info".
        where: Parameter path (or "" for the whole model).
        message: What is so and what it will do.
        fix: Python that mends it, with `model`, `inputs` and `tiebeam` in scope; "" where none can.
        hint: What to do, in words, where no code can.
    """

    code: str
    severity: Severity
    where: str
    message: str
    fix: str = ""
    hint: str = ""
