"""`tiebeam.inspect`."""

from typing import Any

from tiebeam.api.look import Look, look
from tiebeam.core.report import Report


def inspect(model: Any, inputs: Any = None) -> Report:
    """See what a model really does with its table."""
    return report_of(look(model, inputs))


def report_of(seen: Look) -> Report:
    """The report of a look."""
    graph = seen.traced.graph
    return Report(
        model=seen.model.name,
        framework=seen.model.framework,
        tables=seen.tables,
        parameters=seen.model.parameters(),
        meta=graph.meta,
        notes=graph.notes,
    )
