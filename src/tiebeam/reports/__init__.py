"""Renderers: pure functions of a report, registered by name; none is imported until it runs."""

import importlib
from collections.abc import Callable

from tiebeam.core.checkpoint import CheckpointReport
from tiebeam.core.report import Report

_PLACES = {
    "text": ("text", "render"),
    "markdown": ("markdown", "to_markdown"),
    "json": ("jsontext", "to_json"),
    "html": ("html", "to_html"),
    "notebook": ("notebook", "to_notebook"),
}


def _lazy(module: str, function: str) -> Callable[[Report | CheckpointReport], str]:
    def render(report: Report | CheckpointReport) -> str:
        found: Callable[[Report | CheckpointReport], str] = getattr(
            importlib.import_module(f"{__name__}.{module}"), function
        )
        return found(report)

    return render


Report.renderers.update({kind: _lazy(*place) for kind, place in _PLACES.items()})
CheckpointReport.renderers.update({kind: _lazy(*place) for kind, place in _PLACES.items()})
