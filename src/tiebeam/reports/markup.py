"""HTML and SVG elements as strings: every text and attribute passes through the escaping here."""

import html

from tiebeam.reports.strings import Code, Spans, visible


class Markup(str):
    """Text that already is markup; only this module and the calls that join it make one."""

    __slots__ = ()


def element(tag: str, *children: str, **attributes: str | float) -> Markup:
    """One element; children that are not `Markup` are escaped, as are attributes.

    Args:
        tag: Name of the element, ours.
        children: Markup or plain text.
        attributes: Python spelling: `class_`, and `_` for `-`. An empty string drops the attribute.

    Example:
        >>> element("p", "a < b", class_="note")
        '<p class="note">a &lt; b</p>'
    """
    inner = joined(*children)
    written = "".join(f' {_attribute(k)}="{escape(_plain(v))}"' for k, v in attributes.items() if v != "")
    return Markup(f"<{tag}{written}>{inner}</{tag}>")


def joined(*children: str) -> Markup:
    """Markup and text, one after the other."""
    return Markup("".join(c if isinstance(c, Markup) else escape(c) for c in children))


def phrase(spans: Spans) -> Markup:
    """Prose with its code spans; a long parameter path may break after a dot."""
    return joined(*(element("code", *_breakable(s)) if isinstance(s, Code) else s for s in spans))


def escape(text: str) -> str:
    """Text that cannot leave its place, be it content or a quoted attribute."""
    return html.escape(visible(text, keep="\n\t"), quote=True)


def _breakable(path: str) -> list[str]:
    pieces: list[str] = []
    for part in path.split("."):
        pieces += [".", Markup("<wbr>"), part] if pieces else [part]
    return pieces


def _attribute(keyword: str) -> str:
    if keyword == "viewBox":
        return keyword
    return keyword.removesuffix("_").replace("_", "-")


def _plain(value: str | float) -> str:
    return value if isinstance(value, str) else f"{round(value, 2):g}"
