"""Curves as an inline SVG, of losses by default: axes, a line for each label, ln V dotted, a legend and ends."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tiebeam.reports.markup import Markup, element, joined
from tiebeam.reports.numbers import number

CSS = """
.tb-chart{display:block;width:100%;max-width:44rem;height:auto;margin:0 auto;font:12.5px system-ui,sans-serif}
.tb-chart text{fill:currentColor}
.tb-chart .tb-grid{stroke:currentColor;opacity:.16}
.tb-chart .tb-axis{stroke:currentColor;opacity:.6}
.tb-chart .tb-curve,.tb-key line{fill:none;stroke-width:2.2;stroke-linejoin:round;stroke-linecap:round}
.tb-chart .tb-lnv{stroke:currentColor;stroke-width:1.6;stroke-dasharray:.1 5;stroke-linecap:round}
.tb-s0{stroke:var(--s0)}.tb-s1{stroke:var(--s1)}.tb-s2{stroke:var(--s2)}
.tb-s3{stroke:var(--s3)}.tb-s4{stroke:var(--s4)}.tb-s5{stroke:var(--s5)}
.tb-key{width:2.2em;height:.8em;margin-right:.5em;vertical-align:middle;overflow:visible}
@media (max-width:34rem){.tb-chart{font-size:15.5px}}
"""

_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 470, 14, 258
_COLORS = 6
_DASHES = ("", "8 4", "2 4", "10 4 2 4")  # so that lines can be told apart without colour
_POINTS = 600  # more would not show
_SPREAD = 8.0  # ratio of losses from which the axis is logarithmic

Point = tuple[float, float]
Curves = Mapping[str, Sequence[Point]]


@dataclass(frozen=True, slots=True)
class Labels:
    """What the axes show."""

    across: str = "step"
    up: str = "loss"
    unit: str = "nats"


LOSS = Labels()


def chart(curves: Curves, log_vocab: float | None = None, labels: Labels = LOSS) -> Markup:
    """Draw loss against step, or what the labels say.

    Args:
        curves: Label to points (step, loss). Losses that are not finite leave a gap. Unit: nats.
        log_vocab: ln V, drawn as a dotted line where given. Unit: nats.
        labels: Of the axes.

    Returns:
        A figure; where nothing is finite, a paragraph that says so.
    """
    seen = [p for points in curves.values() for p in points if _finite(p)]
    if not seen:
        return element("p", f"No finite {labels.up} to draw.")
    losses = [loss for _, loss in seen] + ([log_vocab] if log_vocab is not None else [])
    across, up = _linear([step for step, _ in seen], _LEFT, _RIGHT), _upwards(losses)
    drawn = [element("title", _summary(curves, log_vocab, labels)), *_axes(across, up, labels)]
    if log_vocab is not None:
        y = up.at(log_vocab)
        drawn.append(element("line", x1=_LEFT, x2=_RIGHT, y1=y, y2=y, class_="tb-lnv"))
        drawn.append(element("text", "ln V", x=_RIGHT, y=y - 5, text_anchor="end"))
    for i, points in enumerate(curves.values()):
        drawn += _curve(points, across, up, i)
    picture = element("svg", *drawn, class_="tb-chart", viewBox="0 0 480 304", role="img")
    return element("figure", picture, _ends(curves, log_vocab, labels))


@dataclass(frozen=True, slots=True)
class _Axis:
    """A scale from values to coordinates, with its ticks."""

    low: float
    high: float
    start: float
    stop: float
    ticks: list[float]
    log: bool = False

    def at(self, value: float) -> float:
        """Coordinate of a value."""
        place, low, high = (math.log(v) if self.log else v for v in (value, self.low, self.high))
        return self.start + (self.stop - self.start) * (place - low) / (high - low)


def _linear(values: list[float], start: float, stop: float) -> _Axis:
    low, high = min(values), max(values)
    if low == high:
        low, high = low - 0.5, high + 0.5
    raw = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw * (1 - 1e-9))
    ticks = [step * i for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]
    return _Axis(low, high, start, stop, ticks)


def _upwards(losses: list[float]) -> _Axis:
    low, high = min(losses), max(losses)
    if low > 0 and high / low >= _SPREAD:
        low, high = low / 1.1, high * 1.1
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        ticks = [m * 10.0**k for k in powers for m in (1, 2, 5) if low <= m * 10.0**k <= high]
        return _Axis(low, high, _BOTTOM, _TOP, ticks, log=True)
    margin = 0.05 * (high - low)
    return _linear([max(low - margin, min(low, 0.0)), high + margin], _BOTTOM, _TOP)


def _axes(across: _Axis, up: _Axis, labels: Labels) -> list[Markup]:
    drawn = []
    for tick in up.ticks:
        y = up.at(tick)
        drawn.append(element("line", x1=_LEFT, x2=_RIGHT, y1=y, y2=y, class_="tb-grid"))
        drawn.append(element("text", number(tick), x=_LEFT - 6, y=y + 4, text_anchor="end"))
    for tick in across.ticks:
        x = across.at(tick)
        drawn.append(element("line", x1=x, x2=x, y1=_BOTTOM, y2=_BOTTOM + 4, class_="tb-axis"))
        drawn.append(element("text", number(tick), x=x, y=_BOTTOM + 18, text_anchor="middle"))
    drawn.append(element("line", x1=_LEFT, x2=_RIGHT, y1=_BOTTOM, y2=_BOTTOM, class_="tb-axis"))
    drawn.append(element("text", labels.across, x=(_LEFT + _RIGHT) / 2, y=_BOTTOM + 38, text_anchor="middle"))
    title = f"{labels.up}, {labels.unit}" + (" (log scale)" if up.log else "")
    return [*drawn, element("text", title, x=_LEFT + 6, y=_TOP + 6, class_="tb-strong")]


def _curve(points: Sequence[Point], across: _Axis, up: _Axis, i: int) -> list[Markup]:
    style, dash = f"tb-curve tb-s{i % _COLORS}", _DASHES[i % len(_DASHES)]
    drawn = []
    for run in _runs(points):
        placed = " ".join(f"{across.at(step):.1f},{up.at(loss):.1f}" for step, loss in _thinned(run))
        drawn.append(element("polyline", points=placed, class_=style, stroke_dasharray=dash))
    return drawn


def _runs(points: Sequence[Point]) -> list[list[Point]]:
    """Stretches of finite points."""
    runs: list[list[Point]] = [[]]
    for point in points:
        if _finite(point):
            runs[-1].append(point)
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]


def _thinned(run: list[Point]) -> list[Point]:
    """At most about `_POINTS` points: the lowest and highest of each bucket, so that spikes stay."""
    if len(run) <= _POINTS:
        return run
    size = math.ceil(len(run) / (_POINTS // 2))
    kept = {0, len(run) - 1}
    for start in range(0, len(run), size):
        bucket = range(start, min(start + size, len(run)))
        kept |= {min(bucket, key=lambda j: run[j][1]), max(bucket, key=lambda j: run[j][1])}
    return [run[j] for j in sorted(kept)]


def _ends(curves: Curves, log_vocab: float | None, labels: Labels) -> Markup:
    """Legend and figures in one: each curve's sign, first, last and lowest loss."""
    titles = ("curve", f"first {labels.up}", f"last {labels.up}", "lowest")
    head = element("tr", *(element("th", t, scope="col") for t in titles))
    rows = [_end(label, points, i) for i, (label, points) in enumerate(curves.items())]
    table = element("table", element("thead", head), element("tbody", *rows))
    framed = element("div", table, class_="tb-scroll")
    if log_vocab is None:
        return framed
    said = f"Dotted: ln V = {number(log_vocab)}, the loss of uniform logits."
    return joined(framed, element("figcaption", said))


def _end(label: str, points: Sequence[Point], i: int) -> Markup:
    style, dash = f"tb-s{i % _COLORS}", _DASHES[i % len(_DASHES)]
    line = element("line", x1=0, x2=32, y1=6, y2=6, class_=style, stroke_dasharray=dash)
    key = element("svg", line, class_="tb-key", viewBox="0 0 32 12", aria_hidden="true")
    losses = [loss for _, loss in points]
    finite = [loss for loss in losses if math.isfinite(loss)]
    cells = [number(losses[0]), number(losses[-1])] if losses else ["none", "none"]
    cells.append(number(min(finite)) if finite else "none")
    return element("tr", element("th", key, label, scope="row"), *(element("td", c) for c in cells))


def _summary(curves: Curves, log_vocab: float | None, labels: Labels) -> str:
    said = [f"{label} from {number(p[0][1])} to {number(p[-1][1])}" for label, p in curves.items() if p]
    said += [f"ln V is {number(log_vocab)}"] if log_vocab is not None else []
    return f"{labels.up.capitalize()} against {labels.across}: {'; '.join(said)}"


def _finite(point: Point) -> bool:
    return math.isfinite(point[0]) and math.isfinite(point[1])
