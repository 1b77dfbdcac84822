"""Figures by matplotlib, as SVG and PNG, or as SVG text for a page."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tiebeam.errors import BackendError, StoreError
from tiebeam.experiments.tables import Figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

_STYLES = ("-", "--", "-.", ":")
_MARKS = "osD^vPX*"


def save(figures: Sequence[Figure], folder: Path, stem: str) -> list[Path]:
    """Write every figure as `STEM-NAME.svg` and `.png` into a folder, which is made.

    Raises:
        BackendError: matplotlib is missing.
        StoreError: A file cannot be written.
    """
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for figure in figures:
            for suffix in ("svg", "png"):
                path = folder / f"{stem}-{figure.name}.{suffix}"
                path.write_bytes(drawn(figure, suffix))
                written.append(path)
    except OSError as error:
        raise StoreError(f"a figure cannot be written to '{folder}'", got=str(error)) from error
    return written


def drawn(figure: Figure, kind: str) -> bytes:
    """Draw one figure; equal figures give equal bytes.

    Args:
        figure: What to draw.
        kind: "svg" or "png".

    Raises:
        BackendError: matplotlib is missing.
    """
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure as Drawing
    except ImportError as error:
        raise BackendError(
            "figures are drawn by 'matplotlib', which is missing", hint="pip install 'tiebeam[experiments]'"
        ) from error
    fixed: dict[str, Any] = {"svg.hashsalt": "tiebeam", "svg.fonttype": "none"}
    with mpl.rc_context(fixed):
        drawing = Drawing(figsize=(7.0, 4.4), layout="constrained")  # no pyplot: no window, no global state
        _draw(figure, drawing)
        out = io.BytesIO()
        drawing.savefig(out, format=kind, dpi=144, metadata={"Date": None} if kind == "svg" else {"Software": None})
    return out.getvalue()


def _draw(figure: Figure, drawing: "Drawing") -> None:
    axes = drawing.add_subplot()
    colors: dict[str, str] = {}
    for i, line in enumerate(figure.lines):
        family = line.label.partition(",")[0]
        color = colors.setdefault(family, f"C{len(colors) % 10}")
        x, y = zip(*line.points, strict=True) if line.points else ((), ())
        style = "--" if line.dashed else _STYLES[(len(colors) - 1) // 10 % len(_STYLES)]
        mark = "" if line.dashed or len(x) > 40 else _MARKS[i % len(_MARKS)]
        axes.plot(x, y, style, marker=mark or None, color=color, label=line.label, markersize=4, linewidth=1.4)
        if line.halves:
            low = [v - (h or 0.0) for v, h in zip(y, line.halves, strict=True)]
            high = [v + (h or 0.0) for v, h in zip(y, line.halves, strict=True)]
            axes.fill_between(x, low, high, color=color, alpha=0.15, linewidth=0)
    if figure.log_x:
        axes.set_xscale("log")
    if figure.log_y:
        axes.set_yscale("log")
    axes.set_title(figure.title)
    axes.set_xlabel(figure.x)
    axes.set_ylabel(figure.y)
    axes.grid(alpha=0.25)
    if figure.lines:
        axes.legend(fontsize="small", ncols=2 if len(figure.lines) > 6 else 1)
