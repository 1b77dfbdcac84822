"""Which row of the old table each row of the new one is, and what the new ones are."""

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from tiebeam.core.initialising.draws import ROWS_PER_BLOCK, draw_block
from tiebeam.core.seeds import checked_seed
from tiebeam.errors import RangeError

How = Literal["covariance", "std", "mean", "zeros"]
"""Drawn with the mean and covariance of the old rows; with the table's std around 0; their mean; zeros."""

Float = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class RowPlan:
    """The rows of a resized table.

    Attributes:
        before: Rows of the old table.
        source: (rows,) int64: which old row each row is, -1 for one that is new.
        parts: New row -> the old rows that it is the mean of (the pieces its token was made of).
        how: What the other new rows are.
        seed: Of their draws.
        padding: From which row on nothing but padding stands.
    """

    before: int
    source: Ids
    parts: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    how: How = "covariance"
    seed: int = 0
    padding: int | None = None

    @property
    def after(self) -> int:
        return len(self.source)

    @property
    def new(self) -> Ids:
        """Rows that are new."""
        return np.flatnonzero(self.source < 0)

    @property
    def drawn(self) -> Ids:
        """New rows that are made of no parts."""
        return np.array([r for r in self.new.tolist() if r not in self.parts], dtype=np.int64)

    @property
    def changes(self) -> bool:
        """Whether any row is another, or in another place."""
        return self.before != self.after or bool((self.source != np.arange(self.after)).any())

    def moved(self, row: int) -> int | None:
        """Where an old row stands now, or None where it is gone."""
        found = np.flatnonzero(self.source == row)
        return int(found[0]) if len(found) else None


def plan_rows(
    before: int,
    vocab: int | None = None,
    *,
    multiple: int | None = None,
    ids: Mapping[int, int] | Sequence[int] | None = None,
    tokens: tuple[Mapping[str, int], Mapping[str, int]] | None = None,
    parts: Mapping[int, Sequence[int]] | None = None,
    rows: How = "covariance",
    seed: int = 0,
) -> RowPlan:
    """Plan the rows of a resized table.

    Args:
        before: Rows now.
        vocab: Rows wanted; None: as many as `ids` or `tokens` speak of, else as many as now.
        multiple: Round up to a multiple of it.
        ids: Where rows come from: of each new id the old one (negative or absent: a new row).
        tokens: The old tokenizer's vocabulary and the new one's, token -> id: a token keeps its row.
        parts: New id -> old ids of the pieces that its token was cut into: it gets the mean of their rows.
        rows: What other new rows are.
        seed: Of their draws.

    Raises:
        RangeError: A number lies outside its bounds, or two ways to say the same are given.

    Example:
        >>> plan_rows(50, 53, multiple=8).source[48:].tolist()
        [48, 49, -1, -1, -1, -1, -1, -1]
        >>> plan_rows(3, tokens=({"a": 0, "b": 1, "c": 2}, {"c": 0, "d": 1})).source.tolist()
        [2, -1]
    """
    if rows not in get_args(How):
        raise RangeError(
            "there are no such rows",
            got=f"rows={rows!r}",
            expected=", ".join(map(repr, get_args(How))),
            hint="rows= says how new rows are made; their number is vocab",
        )
    seed = checked_seed(seed)
    if ids is not None and tokens is not None:
        raise RangeError("ids and tokens both say where rows come from", expected="one of them")
    came, known = _origins(before, ids, tokens)
    wanted = known if vocab is None else _whole("vocab", vocab, least=1)
    if wanted < 1:
        raise RangeError("no id is spoken of", got="an empty mapping", expected="at least one new id, or vocab=")
    step = 1 if multiple is None else _whole("multiple", multiple, least=1)
    after = math.ceil(wanted / step) * step
    if came is None:
        source = np.where(np.arange(after) < before, np.arange(after), -1)
    else:
        if outside := sorted(n for n in came if n >= wanted):
            raise RangeError(
                "an id lies beyond the new vocabulary", got=str(outside[:5]), expected=f"0 to {wanted - 1}"
            )
        source = np.full(after, -1)
        for new, old in came.items():
            source[new] = old
    return RowPlan(before, source.astype(np.int64), _parts(parts, source, before), rows, seed,
                   wanted if after > wanted else None)  # fmt: skip


def _origins(
    before: int,
    ids: Mapping[int, int] | Sequence[int] | None,
    tokens: tuple[Mapping[str, int], Mapping[str, int]] | None,
) -> tuple[dict[int, int] | None, int]:
    """Old id by new id, and how many ids that speaks of."""
    if tokens is not None:
        ids = _by_token(tokens)
    if ids is None:
        return None, before
    held = ids.items() if isinstance(ids, Mapping) else enumerate(_several("ids", ids))
    pairs = {_whole("a new id", n, least=0): _whole("an old id", o) for n, o in held}
    if outside := sorted({o for o in pairs.values() if o >= before}):
        raise RangeError("an old id lies beyond the table", got=str(outside[:5]), expected=f"0 to {before - 1}")
    return {n: o for n, o in pairs.items() if o >= 0}, max(pairs, default=-1) + 1


def _by_token(tokens: tuple[Mapping[str, int], Mapping[str, int]]) -> dict[int, int]:
    given: Sequence[Any] = tokens
    if len(given) != 2 or not all(isinstance(one, Mapping) for one in given):
        raise RangeError(
            "tokens are two vocabularies", got=f"{len(given)} of them", expected="(old, new), each token -> id"
        )
    old, new = tokens
    for name, one in (("old", old), ("new", new)):
        if len(set(one.values())) != len(one):
            raise RangeError(f"two tokens of the {name} vocabulary have one id", expected="token -> id, each once")
    return {i: old.get(token, -1) for token, i in new.items()}


def _parts(parts: Mapping[int, Sequence[int]] | None, source: Ids, before: int) -> dict[int, tuple[int, ...]]:
    if parts is not None and not isinstance(parts, Mapping):
        raise RangeError("parts are a mapping", got=f"a {type(parts).__name__}", expected="new id -> old ids")
    found: dict[int, tuple[int, ...]] = {}
    for key, value in (parts or {}).items():
        new = _whole("a new id", key, least=0)
        if new >= len(source) or source[new] >= 0:
            raise RangeError(
                "parts are given for a row that is not new", got=f"row {new}", expected="an id without an old row"
            )
        pieces = tuple(_whole("a part", p, least=0) for p in _several(f"the parts of row {new}", value))
        if not pieces or any(p >= before for p in pieces):
            raise RangeError(
                f"the parts of row {new} are no rows of the old table",
                got=str(list(pieces)),
                expected=f"at least one id, each 0 to {before - 1}",
            )
        found[new] = pieces
    return found


def _several(what: str, value: Any) -> list[Any]:
    try:
        return list(value)
    except TypeError as error:
        raise RangeError(f"{what} are several", got=repr(value), expected="a sequence of whole numbers") from error


def _whole(what: str, value: Any, *, least: int | None = None) -> int:
    """A whole number, of any library's kind."""
    try:
        number = None if isinstance(value, bool | np.bool_) else operator.index(value)
    except TypeError:
        number = None
    if number is None or (least is not None and number < least):
        raise RangeError(
            f"{what} is out of range",
            got=repr(value),
            expected="an integer" if least is None else f"an integer of {least} or above",
        )
    return number


class Moments:
    """Mean and covariance of rows, taken in block by block. Rows of zeros (padding) do not count, nor broken ones.

    Example:
        >>> seen = Moments(2, covariance=True)
        >>> seen.take(np.array([[1.0, 0.0], [3.0, 0.0], [0.0, 0.0]]))
        >>> seen.count, seen.mean.tolist(), seen.covariance().tolist()
        (2, [2.0, 0.0], [[1.0, 0.0], [0.0, 0.0]])
    """

    def __init__(self, width: int, *, covariance: bool) -> None:
        self.count = 0
        self._sum = np.zeros(width)
        self._squares = 0.0
        self._products = np.zeros((width, width)) if covariance else None

    def take(self, rows: npt.NDArray[np.floating[Any]]) -> None:
        """Take in rows of shape `(n, width)`."""
        kept = np.asarray(rows, dtype=np.float64)
        kept = kept[(kept != 0).any(axis=1) & np.isfinite(kept).all(axis=1)]
        self.count += len(kept)
        self._sum += kept.sum(axis=0)
        self._squares += float((kept * kept).sum())
        if self._products is not None:
            self._products += kept.T @ kept

    @property
    def mean(self) -> Float:
        return self._sum / max(self.count, 1)

    @property
    def std(self) -> float:
        """Root mean square of the entries."""
        return math.sqrt(self._squares / max(self.count * len(self._sum), 1))

    def covariance(self) -> Float:
        """Population covariance of the rows, `(width, width)`."""
        if self._products is None:
            raise RangeError("the covariance was not asked for", expected="Moments(width, covariance=True)")
        return self._products / max(self.count, 1) - np.outer(self.mean, self.mean)

    def root(self) -> Float:
        """A matrix A with A.T @ A the covariance; fewer rows than columns make it singular, which is no harm."""
        values, vectors = np.linalg.eigh(self.covariance())
        return np.asarray((vectors * np.sqrt(np.maximum(values, 0.0))).T)


def new_rows(plan: RowPlan, seen: Moments, ordinal: int) -> Iterable[tuple[Ids, Float]]:
    """What the rows without parts are, a block at a time.

    A row's draw is keyed by its own place, as `core.draws` has it: a larger vocabulary keeps the rows of a smaller one,
    and rows of "std" are those that `initialize` would draw.

    Args:
        plan: Which rows.
        seen: Moments of the old rows.
        ordinal: Which table.

    Yields:
        Rows, and their entries, `(rows, width)`.
    """
    width = len(seen.mean)
    shape_of = plan.drawn
    root = seen.root() if plan.how == "covariance" and len(shape_of) else None
    for block in np.unique(shape_of // ROWS_PER_BLOCK).tolist():
        here = shape_of[shape_of // ROWS_PER_BLOCK == block]
        if plan.how in ("zeros", "mean"):
            yield here, np.broadcast_to(seen.mean if plan.how == "mean" else np.zeros(width), (len(here), width))
            continue
        drawn = draw_block(plan.seed, "table", ordinal, block, ROWS_PER_BLOCK, width, 1.0)
        normal = drawn[here - block * ROWS_PER_BLOCK].astype(np.float64)
        yield here, normal * seen.std if root is None else seen.mean + normal @ root


def resized(old: npt.NDArray[Any], axis: int, plan: RowPlan, ordinal: int | None) -> npt.NDArray[Any]:
    """An array with other rows: kept ones bit by bit, the others by the plan.

    Args:
        old: Any floats, any number of axes.
        axis: Of its rows.
        plan: Which rows.
        ordinal: Which table, for its draws; None: a bias, whose new entries are the mean of the finite others.

    Example:
        >>> resized(np.ones((2, 3), np.float32), 0, plan_rows(2, 3, rows="mean"), 0).tolist()[2]
        [1.0, 1.0, 1.0]
    """
    made = kept_rows(old, axis, plan)
    into = np.moveaxis(made, axis, 0).reshape(plan.after, -1)
    rows = np.moveaxis(old, axis, 0).reshape(plan.before, -1)
    for new, pieces in plan.parts.items():
        into[new] = rows[list(pieces)].astype(np.float64).mean(0)
    if ordinal is None:
        wide = rows.astype(np.float64)
        finite = wide[np.isfinite(wide).all(axis=1)]
        into[plan.drawn] = 0.0 if plan.how == "zeros" or not len(finite) else finite.mean(0)
    elif len(plan.drawn):
        seen = Moments(rows.shape[1], covariance=plan.how == "covariance")
        step = max(1, (1 << 20) // max(1, rows.shape[1]))
        for start in range(0, plan.before, step):
            seen.take(rows[start : start + step].astype(np.float64))
        for where, entries in new_rows(plan, seen, ordinal):
            into[where] = entries
    shape = np.moveaxis(made, axis, 0).shape
    return np.ascontiguousarray(np.moveaxis(into.reshape(shape), 0, axis))


def kept_rows(old: npt.NDArray[Any], axis: int, plan: RowPlan) -> npt.NDArray[Any]:
    """The rows that are kept, each in its new place, and zeros in the others."""
    shape = list(old.shape)
    shape[axis] = plan.after
    made = np.zeros(shape, old.dtype)
    kept = np.flatnonzero(plan.source >= 0)
    np.moveaxis(made, axis, 0)[kept] = np.moveaxis(old, axis, 0)[plan.source[kept]]
    return made
