"""HTML as a tree, read by the standard library and refused where a tag is left open or closed twice."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = ("meta", "wbr")


@dataclass
class Node:
    """An element with its attributes, its children and its texts in order."""

    tag: str
    attributes: dict[str, str | None]
    children: list["Node | str"] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(c if isinstance(c, str) else c.text for c in self.children)

    def walk(self) -> Iterator["Node"]:
        yield self
        for child in self.children:
            if isinstance(child, Node):
                yield from child.walk()

    def all(self, tag: str, style: str = "") -> list["Node"]:
        """Every element of that tag, and of that class where one is given."""
        found = [n for n in self.walk() if n.tag == tag]
        return [n for n in found if not style or style in (n.attributes.get("class") or "").split()]


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open = [Node("", {})]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(dict(attrs)) == len(attrs), f"<{tag}> has an attribute twice"
        node = Node(tag, dict(attrs))
        self.open[-1].children.append(node)
        if tag not in VOID:
            self.open.append(node)

    def handle_endtag(self, tag: str) -> None:
        assert self.open[-1].tag == tag, f"</{tag}> closes <{self.open[-1].tag}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.open[-1].children.append(data)


def tree(html: str) -> Node:
    """Read a document or a fragment."""
    reader = _Reader()
    reader.feed(html)
    reader.close()
    assert len(reader.open) == 1, f"<{reader.open[-1].tag}> is never closed"
    return reader.open[0]


def rows(node: Node) -> dict[str, str]:
    """The labelled rows of every table in an element; of a repeated label the first."""
    found: dict[str, str] = {}
    for line in node.all("tr"):
        cells = [c for c in line.children if isinstance(c, Node)]
        if [c.tag for c in cells] == ["th", "td"]:
            found.setdefault(cells[0].text, cells[1].text)
    return found
