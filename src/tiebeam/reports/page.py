"""Lines of a fixed width in a given encoding, by rich; no boxes, so that they read the same in a pipe."""

import codecs
import io

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

_ASCII = {"→": "->", "×": "x"}


class Page:
    """Collects laid-out lines.

    Args:
        width: Columns that no line of prose exceeds.
        color: Whether styles become ANSI codes.
        encoding: What the lines must be encodable in; unknown ones count as ASCII.
        folds_code: Whether lines of code are broken at `width` too.
    """

    def __init__(self, *, width: int, color: bool, encoding: str, folds_code: bool) -> None:
        self.width = width
        self._folds_code = folds_code
        self._codec = _known(encoding)
        self._spelt = not _encodes(self._codec, "".join(_ASCII))
        self._buffer = io.StringIO()
        self._console = Console(
            file=self._buffer,
            width=width,
            color_system="standard" if color else None,
            force_terminal=color,
            force_jupyter=False,
            no_color=not color,
            legacy_windows=False,
        )

    def text(self, content: str, style: str = "") -> Text:
        """Content as the encoding can carry it: spelt out before layout, which makes it longer."""
        if self._spelt:
            for glyph, spelling in _ASCII.items():
                content = content.replace(glyph, spelling)
        return Text(content.encode(self._codec, "backslashreplace").decode(self._codec), style=style)

    def line(self, *pieces: Text, indent: int = 0, lead: Text | None = None) -> None:
        """One paragraph, wrapped and indented; `lead` stands in the indent of its first line."""
        paragraph = Text().join(pieces).wrap(self._console, self.width - indent, overflow="fold")
        for i, line in enumerate(paragraph):
            margin = lead.copy() if lead is not None and i == 0 else Text(" " * indent)
            line.rstrip()
            self._emit(margin.append_text(line))

    def chain(self, *links: Text, indent: int = 0, lead: Text | None = None) -> None:
        """One paragraph that breaks between its links, never inside one that fits."""
        room, broken, used = self.width - indent, Text(), 0
        for link in links:
            size = cell_len(link.plain)
            separator = "" if not used else " " if used + 1 + size <= room else "\n"
            broken.append(separator).append_text(link)
            used = used + 1 + size if separator == " " else size
        self.line(broken, indent=indent, lead=lead)

    def code(self, program: str, indent: int) -> None:
        """Lines of code."""
        for each in program.split("\n"):
            shown = self.text(each.expandtabs(4), "cyan")
            if self._folds_code:
                self.line(shown, indent=indent)
            else:
                self._emit(Text(" " * indent).append_text(shown))

    def gap(self) -> None:
        """An empty line."""
        self._buffer.write("\n")

    def finish(self) -> str:
        """All lines, without trailing blanks."""
        return "\n".join(line.rstrip() for line in self._buffer.getvalue().rstrip("\n").split("\n"))

    def _emit(self, line: Text) -> None:
        self._console.print(line, soft_wrap=True, highlight=False)


def _known(encoding: str) -> str:
    try:
        return codecs.lookup(encoding).name
    except LookupError:
        return "ascii"


def _encodes(encoding: str, text: str) -> bool:
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True
