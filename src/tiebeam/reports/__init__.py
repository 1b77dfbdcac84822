"""Renderers: pure functions of a `Report` or an `Advice`, registered by name; none is imported until it runs."""

import importlib
from collections.abc import Callable
from typing import Any

from tiebeam.core.advice import Advice
from tiebeam.core.report import Report

_PLACES = {
    "text": ("text", "render"),
    "markdown": ("markdown", "to_markdown"),
    "json": ("jsontext", "to_json"),
    "html": ("html", "to_html"),
    "notebook": ("notebook", "to_notebook"),
}

_ADVICE = {"text": "render", "markdown": "to_markdown", "json": "to_json", "html": "to_html"}


def _lazy(module: str, function: str) -> Callable[[Any], str]:
    def render(said: Any) -> str:
        found: Callable[[Any], str] = getattr(importlib.import_module(f"{__name__}.{module}"), function)
        return found(said)

    return render


Report.renderers.update({kind: _lazy(*place) for kind, place in _PLACES.items()})
Advice.renderers.update({kind: _lazy("advice", function) for kind, function in _ADVICE.items()})
