"""What an experiment shows: tables of numbers, with the source's figures beside ours, and lines to draw."""

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from tiebeam.reports.numbers import number

Cell = str | float | int | None
Key = TypeVar("Key", bound=Hashable)
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Spread:
    """Figures that differ in the seed alone: their mean, and how far it can be trusted.

    Attributes:
        mean: Of all.
        half: Half the width of the 95 % interval of the mean (Student's t); None of one figure.
        count: How many there are.

    Example:
        >>> str(Spread.of([1.0, 2.0, 3.0])), str(Spread.of([2.0]))
        ('2 ± 2.5', '2')
    """

    mean: float
    half: float | None
    count: int

    @classmethod
    def of(cls, values: Iterable[float]) -> "Spread":
        """Sum up some figures; NaN among them makes the mean NaN."""
        found = list(values)
        count = len(found)
        mean = sum(found) / count if found else math.nan
        if count < 2 or not math.isfinite(mean):
            return cls(mean, None, count)
        spread = math.sqrt(sum((v - mean) ** 2 for v in found) / (count - 1))
        return cls(mean, _student(count - 1) * spread / math.sqrt(count), count)

    def __str__(self) -> str:
        return shown(self.mean) + ("" if self.half is None else f" ± {self.half:.2g}")


_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""Two-sided 95 % quantiles of Student's t with 1 to 10 degrees of freedom."""


def _student(freedom: int) -> float:
    return _STUDENT[freedom - 1] if freedom <= len(_STUDENT) else 1.96 + 2.5 / freedom


@dataclass(frozen=True, slots=True)
class Table:
    """One table.

    Attributes:
        title: What it shows.
        columns: Headings.
        rows: Cells; each row as long as `columns`.
        notes: What has to be said of it.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell | Spread, ...], ...]
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"a row of {len(row)} cells in a table of {len(self.columns)} columns: {row}")

    def written(self) -> list[tuple[str, ...]]:
        """Heading and rows as text."""
        return [self.columns, *(tuple(written(cell) for cell in row) for row in self.rows)]

    def to_dict(self) -> dict[str, Any]:
        """Plain data; a `Spread` is its mean, half interval and count."""
        return {
            "title": self.title,
            "columns": list(self.columns),
            "rows": [[_plain(cell) for cell in row] for row in self.rows],
            "notes": list(self.notes),
        }

    def to_markdown(self) -> str:
        r"""Write it as Markdown.

        Example:
            >>> print(Table("t", ("a", "b"), (("x|y", 1.5),)).to_markdown())
            **t**
            <BLANKLINE>
            | a | b |
            |---|---:|
            | x\|y | 1.5 |
        """
        head, *body = ([c.replace("|", "\\|") for c in row] for row in self.written())
        lines = [f"**{self.title}**", "", _line(head), "|---|" + "---:|" * (len(head) - 1), *map(_line, body)]
        return "\n".join([*lines, *(f"\n{note}" for note in self.notes)])


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a figure: points (x, y), and how far each y may be off."""

    label: str
    points: tuple[tuple[float, float], ...]
    halves: tuple[float | None, ...] = ()
    dashed: bool = False


def mean_line(label: str, series: Iterable[Sequence[tuple[int, float]]], *, dashed: bool = False) -> Line:
    """The mean of several series, with its intervals, at the steps that all of them have.

    Example:
        >>> mean_line("x", [[(0, 1.0), (1, 2.0)], [(0, 3.0)]]).points
        ((0.0, 2.0),)
    """
    found = [dict(each) for each in series]
    steps = sorted(set.intersection(*(set(each) for each in found)))
    spreads = [Spread.of(each[step] for each in found) for step in steps]
    points = tuple((float(step), spread.mean) for step, spread in zip(steps, spreads, strict=True))
    return Line(label, points, tuple(spread.half for spread in spreads), dashed)


@dataclass(frozen=True, slots=True)
class Figure:
    """A picture to be drawn: what, its axes, its lines."""

    name: str
    title: str
    x: str
    y: str
    lines: tuple[Line, ...]
    log_x: bool = False
    log_y: bool = False


def written(cell: Cell | Spread) -> str:
    """A cell as text: "-" where there is nothing.

    Example:
        >>> written(None), written(0.25), written(8192), written("x")
        ('-', '0.25', '8,192', 'x')
    """
    if cell is None:
        return "-"
    if isinstance(cell, int):
        return f"{cell:,}"
    return shown(cell) if isinstance(cell, float) else str(cell)


def shown(value: float) -> str:
    """A number with four digits; one that is not finite says so."""
    return number(value) if math.isfinite(value) else "diverged" if math.isnan(value) else str(value)


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Items by key, keys in the order in which they first came.

    Example:
        >>> grouped("abcab", str.upper)
        {'A': ['a', 'a'], 'B': ['b', 'b'], 'C': ['c']}
    """
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def ratio(ours: float | None, theirs: float | None) -> float | None:
    """How many times as large as theirs ours is; None where either is missing or theirs is 0."""
    return None if ours is None or not theirs else ours / theirs


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _plain(cell: Cell | Spread) -> Any:
    if isinstance(cell, Spread):
        kept: Mapping[str, Any] = {"mean": cell.mean, "half": cell.half, "count": cell.count}
        return dict(kept)
    return cell
