"""What a file's tensors become in a model whose names may be tied otherwise: decided before anything is read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from tiebeam.errors import ShapeError, TieError

OnFileConflict = Literal["error", "embedding", "readout", "mean", "untie"]
"""The model has one table where the file has two that differ: refuse; whose values count; or give the model two."""

OnMissing = Literal["error", "tie", "copy"]
"""The model has two tables where the file has one: refuse; make them one; or load it twice."""

POLICIES = {"on_conflict": get_args(OnFileConflict), "on_missing": get_args(OnMissing)}

Shape = tuple[int, ...]


@dataclass(frozen=True)
class LoadPlan:
    """What goes where.

    Attributes:
        stored: By the first name of each tensor of the model, the names in the file that hold it: several of one tied
            table are to be compared.
        missing: By a name of the model, the stored name whose tensor it is one with elsewhere.
        redundant: Names in the file that the model has none of, with a stored name of the same shape that may be equal.
    """

    stored: Mapping[str, tuple[str, ...]]
    missing: Mapping[str, str] = field(default_factory=dict)
    redundant: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Loaded:
    """What loading did to ties.

    Attributes:
        tied: Names that were made one with another.
        parted: Names that were given a tensor of their own.
    """

    tied: tuple[str, ...] = ()
    parted: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def plan_load(
    shapes: Mapping[str, Shape],
    groups: Sequence[Sequence[str]],
    file: Mapping[str, Shape],
    aliases: Mapping[str, str],
    declared: Sequence[Sequence[str]] = (),
) -> LoadPlan:
    """Plan how a file is loaded.

    Args:
        shapes: Of every tensor of the model's state, by name, tied ones under each of their names.
        groups: Names of the model that are one tensor.
        file: Shapes in the file.
        aliases: Names that the file's metadata says stand for a stored one.
        declared: Names that config and class call one.

    Raises:
        ShapeError: A tensor has another shape than its place.
        TieError: The file lacks a tensor, or holds one that the model has no place for.

    Example:
        >>> both = {"embed": (9, 4), "head": (9, 4)}
        >>> plan_load(both, [("embed", "head")], {"embed": (9, 4)}, {"head": "embed"}).stored
        {'embed': ('embed',)}
        >>> plan_load(both, [], {"embed": (9, 4)}, {"head": "embed"}).missing
        {'head': 'embed'}
    """
    for name, shape in shapes.items():
        if name in file and tuple(file[name]) != tuple(shape):
            raise ShapeError(
                f"{name!r} does not fit",
                got=f"{tuple(file[name])} in the file",
                expected=f"{tuple(shape)}, as the model has it",
                hint="resize the model first: tiebeam.resize(model, vocab)" if len(shape) == 2 else "",
            )
    home = {n: tuple(g) for g in groups for n in g if n in shapes}
    stored: dict[str, tuple[str, ...]] = {}
    missing: dict[str, str] = {}
    lacking: list[str] = []
    for name in shapes:
        names = home.get(name, (name,))
        first = next(n for n in names if n in shapes)
        if first in stored or first != name:
            continue
        there = tuple(n for n in names if n in file)
        partner = next((p for n in names if (p := _partner(n, file, aliases, declared))), None)
        if there:
            stored[name] = there
        elif partner is not None and tuple(file[partner]) == tuple(shapes[name]):
            missing[name] = partner
        else:
            lacking.append(name)
    if lacking:
        more = f" and {len(lacking) - 5} more" if len(lacking) > 5 else ""
        wrapped = all(any(name.endswith(f".{n}") for n in (*file, *aliases)) for name in lacking)
        raise TieError(
            f"the file lacks {', '.join(map(repr, lacking[:5]))}{more}",
            got=f"{len(file)} tensors",
            expected="every tensor of the model, or a word in the file or the model on which one stands for it",
            hint="the model is wrapped, the file is not: load into the module inside"
            if wrapped
            else "tie the model first where the table is meant: tiebeam.tie(model, ...)",
        )
    extra = [n for n in file if n not in shapes]
    redundant = {n: tuple(s for s in file if s in shapes and tuple(file[s]) == tuple(file[n])) for n in extra}
    return LoadPlan(stored, missing, redundant)


def _partner(
    name: str, file: Mapping[str, Shape], aliases: Mapping[str, str], declared: Sequence[Sequence[str]]
) -> str | None:
    if aliases.get(name) in file:
        return aliases[name]
    return next((n for group in declared if name in group for n in group if n in file), None)
