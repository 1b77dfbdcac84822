"""Renderers: pure functions of reports, measurements and advice, by name; none is imported until it runs."""

import importlib
from collections.abc import Callable
from typing import Any

from tiebeam.core.advising.advice import Advice
from tiebeam.core.checkpoint import CheckpointReport
from tiebeam.core.measuring.measurement import Measurement
from tiebeam.core.report import Report

_PLACES = {
    "text": ("text", "render"),
    "markdown": ("markdown", "to_markdown"),
    "json": ("jsontext", "to_json"),
    "html": ("html", "to_html"),
    "notebook": ("notebook", "to_notebook"),
}


def _lazy(module: str, function: str) -> Callable[[Any], str]:
    def render(shown: Any) -> str:
        found: Callable[[Any], str] = getattr(importlib.import_module(f"{__name__}.{module}"), function)
        return found(shown)

    return render


Report.renderers.update({kind: _lazy(*place) for kind, place in _PLACES.items()})
CheckpointReport.renderers.update({kind: _lazy(*place) for kind, place in _PLACES.items()})
Measurement.renderers.update({kind: _lazy("measured", f"to_{kind}") for kind in ("markdown", "json", "html")})
Advice.renderers.update({kind: _lazy("advice", f"to_{kind}") for kind in ("markdown", "json", "html")})
Advice.renderers["text"] = _lazy("advice", "render")
