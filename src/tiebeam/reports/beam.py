"""The flow of one table as a picture: a roof whose feet are the two roles and whose tie beam is the table."""

from tiebeam.core.facts import Lookup, Readout, Table
from tiebeam.reports.markup import Markup, element, joined
from tiebeam.reports.numbers import count, known, number
from tiebeam.reports.strings import visible
from tiebeam.reports.tables import flow

CSS = """
.tb-roof{display:block;width:100%;max-width:36rem;height:auto;margin:0 auto;font:13px system-ui,sans-serif}
.tb-roof text{fill:currentColor}
.tb-roof .tb-soft{opacity:.72}
.tb-roof .tb-name{font:600 12.5px ui-monospace,Menlo,Consolas,"DejaVu Sans Mono",monospace}
.tb-roof .tb-strong{font-weight:650}
.tb-roof .tb-state{font-size:17px;font-weight:650}
.tb-roof .tb-line{stroke:currentColor;stroke-width:1.6;fill:none}
.tb-roof .tb-tip{fill:currentColor}
.tb-roof .tb-box{fill:none;stroke:currentColor;stroke-width:1.6}
.tb-roof .tb-wood{fill:rgba(217,119,6,.2);stroke:#b4690e;stroke-width:1.8}
.tb-roof .tb-peg{fill:#b4690e}
.tb-roof .tb-off{stroke-dasharray:4 4;opacity:.45}
.tb-roof .tb-dash{stroke-dasharray:5 4}
@media (max-width:34rem){.tb-roof{font-size:15.5px}.tb-roof .tb-name{font-size:14.5px}}
"""

_WIDTH = 480
_LEFT, _RIGHT, _MIDDLE = 90, 390, 240  # the feet and the ridge
_RIDGE, _TOP, _BOTTOM = 58, 190, 254  # foot of the network box, the beam's two edges
_SLOPE = 100 / (_TOP - _RIDGE)  # of a rafter: across for each unit up
_STEP = 19  # between lines of text


def roof(table: Table) -> Markup:
    """Draw a table between its roles.

    The signal enters at the left foot as ids, passes the table, climbs to the network, comes down on the
    right and leaves through the table as logits. A tied table is one beam; a table with one role is
    half a beam, and what it does not reach is dashed; a role without gradient has a dashed rafter.

    Args:
        table: Its facts; unknown ones are shown as such.

    Returns:
        An SVG element that takes its ink from `currentColor` and its style from `CSS`.
    """
    stations = _stations(table)
    base = _BOTTOM + 14 + _STEP * max(len(stations), 1)
    line = " → ".join(step.text for step in flow(table))
    pieces = [element("title", f"Flow of {visible(table.name)}, {table.state}: {line}"), _network()]
    pieces += [_lookup_side(table, base), _readout_side(table, stations, base), _timber(table)]
    pieces.append(_text(_MIDDLE, 150, table.state, "tb-state"))
    return element("svg", *pieces, class_="tb-roof", viewBox=f"0 0 {_WIDTH} {base + 42}", role="img")


def _network() -> Markup:
    box = element("rect", x=170, y=14, width=140, height=_RIDGE - 14, rx=8, class_="tb-box")
    return joined(box, _text(_MIDDLE, 41, "network", "tb-strong"))


def _lookup_side(table: Table, base: float) -> Markup:
    off = "" if table.lookups else " tb-off"
    rafter = off or _dashed(table.lookups)
    drawn = [_arrow(_LEFT, base, _LEFT, _BOTTOM, off), _arrow(_LEFT, _TOP, _LEFT + 100, _RIDGE, rafter)]
    drawn.append(_text(_LEFT, base + 18, "ids", "tb-strong" if table.lookups else "tb-soft"))
    if table.lookups:
        said = ["no gradient"] if _dashed(table.lookups) else []
        said += [f"× {known(table.lookup_factor)}", f"rms {known(table.predicted.lookup_rms)}"]
        said += ["norm"] if table.norm_after_lookup else []
        drawn += _beside_rafter(said, _LEFT)
        drawn.append(_text(_LEFT + 16, _TOP - 8, "lookup", "tb-soft", "start"))
    return joined(*drawn)


def _readout_side(table: Table, stations: list[str], base: float) -> Markup:
    off = "" if table.readouts else " tb-off"
    rafter = off or _dashed(table.readouts)
    drawn = [_arrow(_RIGHT - 100, _RIDGE, _RIGHT, _TOP, rafter), _arrow(_RIGHT, _BOTTOM, _RIGHT, base, off)]
    drawn.append(_text(_RIGHT, base + 18, "logits", "tb-strong" if table.readouts else "tb-soft"))
    if table.readouts:
        said = ["norm"] if any(r.normalized for r in table.readouts) else []
        said += ["hidden rms", known(table.hidden_rms)]
        said += ["no gradient"] if _dashed(table.readouts) else []
        drawn += _beside_rafter(said[::-1], _RIGHT)
        drawn.append(_text(_RIGHT - 16, _TOP - 8, "readout", "tb-soft", "end"))
        drawn += _stack(_RIGHT - 14, _BOTTOM + 18, stations, "end")
        drawn.append(_text(_RIGHT, base + 35, f"std {known(table.predicted.logit_std)}", "tb-soft"))
    return joined(*drawn)


def _stations(table: Table) -> list[str]:
    """What the logits pass on their way out."""
    if not table.readouts:
        return []
    said = [f"× {known(table.readout_factor)}", *(["+ bias"] if table.readout_bias else [])]
    return said + ([f"soft cap {number(table.soft_cap)}"] if table.soft_cap is not None else [])


def _timber(table: Table) -> Markup:
    size = f"{count(table.vocab)} × {count(table.width)}"
    stds = f"std {known(table.std)}, target {known(table.target_std)}"
    whole = bool(table.lookups) == bool(table.readouts)
    if whole:
        style = "tb-wood" if table.tied else "tb-wood tb-dash"
        drawn = [element("rect", x=20, y=_TOP, width=440, height=_BOTTOM - _TOP, rx=5, class_=style)]
        drawn += _stack(_MIDDLE, _TOP + 19, [size, stds], "middle", first=_shortened(table.name, 46))
        pegs = [_LEFT, _RIGHT] if table.lookups else []
    else:
        own, other = (20, 250) if table.lookups else (250, 20)
        drawn = [_half(own, "tb-wood"), _half(other, "tb-box tb-off")]
        drawn += _stack(own + 105, _TOP + 19, [size, stds], "middle", first=_shortened(table.name, 22))
        drawn += _other(table, other + 105)
        pegs = [_LEFT if table.lookups else _RIGHT]
    drawn += [element("circle", cx=x, cy=y, r=4, class_="tb-peg") for x in pegs for y in (_TOP, _BOTTOM)]
    return joined(*drawn)


def _half(x: float, style: str) -> Markup:
    return element("rect", x=x, y=_TOP, width=210, height=_BOTTOM - _TOP, rx=5, class_=style)


def _other(table: Table, x: float) -> list[Markup]:
    role = "readout" if table.lookups else "lookup"
    if table.partner is None:
        return [_text(x, _TOP + 37, f"no {role}", "tb-soft")]
    drawn = [_text(x, _TOP + 28, f"{role} by", "tb-soft")]
    return [*drawn, _text(x, _TOP + 47, _shortened(table.partner, 22), "tb-name")]


def _stack(x: float, y: float, lines: list[str], anchor: str, first: str = "") -> list[Markup]:
    drawn = [_text(x, y, first, "tb-name", anchor)] if first else []
    top = y + _STEP * len(drawn)
    return drawn + [_text(x, top + _STEP * i, said, "", anchor) for i, said in enumerate(lines)]


def _beside_rafter(upwards: list[str], foot: int) -> list[Markup]:
    """Lines of text outside a rafter, from the lowest up, all at one distance from its slope."""
    side = -1 if foot == _LEFT else 1
    drawn = []
    for i, said in enumerate(upwards):
        y = _TOP - 46 - _STEP * i
        x = foot - side * (_TOP - y) * _SLOPE + side * 14
        drawn.append(_text(x, y, said, "", "end" if side < 0 else "start"))
    return drawn if side < 0 else drawn[::-1]  # as the signal goes


def _text(x: float, y: float, content: str, style: str = "", anchor: str = "middle") -> Markup:
    return element("text", content, x=x, y=y, text_anchor=anchor, class_=style)


def _arrow(x1: float, y1: float, x2: float, y2: float, style: str) -> Markup:
    """A line that ends in a tip; no marker, whose id would clash when two pictures share a page."""
    length = ((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5
    ux, uy = (x2 - x1) / length, (y2 - y1) / length
    bx, by = x2 - 9 * ux, y2 - 9 * uy
    corners = [(x2, y2), (bx - 4 * uy, by + 4 * ux), (bx + 4 * uy, by - 4 * ux)]
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)
    line = element("line", x1=x1, y1=y1, x2=bx, y2=by, class_=f"tb-line{style}")
    return joined(line, element("polygon", points=points, class_=f"tb-tip{style}"))


def _dashed(records: tuple[Lookup, ...] | tuple[Readout, ...]) -> str:
    return "" if not records or any(r.gradient for r in records) else " tb-dash"


def _shortened(name: str, most: int) -> str:
    name, kept = visible(name), (most - 1) // 2
    return name if len(name) <= most else f"{name[:kept]}…{name[-kept:]}"
