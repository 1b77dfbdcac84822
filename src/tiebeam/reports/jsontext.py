"""The report as JSON: `Report.to_dict()` with sorted keys, described by `schema-1.json`."""

import json
import math
from importlib.resources import files
from typing import Any

from tiebeam.core.checkpoint import CHECKPOINT_SCHEMA, CheckpointReport
from tiebeam.core.report import SCHEMA_VERSION, Report


def to_json(report: Report | CheckpointReport) -> str:
    r"""Write a report as JSON text.

    Args:
        report: What was seen.

    Returns:
        Indented ASCII with sorted keys. NaN and infinities, which JSON does not have, are null.

    Example:
        >>> to_json(Report(model="Tiny", framework="torch")).splitlines()[:3]
        ['{', '  "findings": [],', '  "framework": "torch",']
    """
    return json.dumps(portable(report.to_dict()), indent=2, sort_keys=True, allow_nan=False)


def schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of what `to_json` writes.

    Example:
        >>> schema()["title"]
        'tiebeam report'
    """
    text = files("tiebeam.reports").joinpath(f"schema-{SCHEMA_VERSION}.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def checkpoint_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of what `to_json` writes of a checkpoint.

    Example:
        >>> checkpoint_schema()["title"]
        'tiebeam report on a checkpoint'
    """
    text = files("tiebeam.reports").joinpath(f"checkpoint-{CHECKPOINT_SCHEMA}.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def portable(value: Any) -> Any:
    """The same data out of what every JSON reader knows; array scalars become Python's numbers."""
    if isinstance(value, dict):
        return {str(k): portable(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [portable(v) for v in value]
    if not isinstance(value, str) and hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value
