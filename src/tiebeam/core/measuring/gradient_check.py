"""Whether a backward pass carries both roles' gradients: each role by itself against central differences.

A hand-written backward pass goes wrong by a whole path: the lookup's or the readout's is dropped, or counted twice.
The readout's path is dense and the lookup's sparse, so a check at entries taken at random mostly sees rows that no
lookup reached, and passes (87.5 % of them, where 8 of 64 tokens were read). So rows of both kinds are looked at.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from tiebeam.core.measuring.passes import ROLES, RoleRead, Wanted
from tiebeam.errors import InputError, RangeError
from tiebeam.ir import Graph

Floats = npt.NDArray[np.float64]
Verdict = Literal["kept", "dropped", "doubled", "wrong", "unknown"]

NOISE = 0.1
"""Share of the largest slope by which two step sizes may differ before a row is left undecided."""


SHORTER = (0.25, 0.0625)
"""Shares of a step that are tried in turn on a row that looks wrong."""


class MovableTable(Protocol):
    """A loss as a function of one table, which can be moved in one role alone.

    Attributes:
        std: Root mean square of the table's entries: what a step is measured in.
        held: Rows that the batch looks up.
        step: Half the distance of a difference, in units of `std`.
        eps: Relative rounding of the loss.
    """

    name: str
    vocab: int
    width: int
    std: float
    held: tuple[int, ...]
    step: float
    eps: float

    def gradient(self, row: int) -> Floats:
        """What the backward pass gives for a row, (width,)."""
        ...

    def loss(self, role: str, row: int, move: Floats) -> float:
        """The loss with a row moved by `move` in one role alone."""
        ...


@dataclass(frozen=True, slots=True)
class Probe:
    """One row, in one random direction.

    Attributes:
        held: Whether the batch looks it up.
        got: Slope of the loss by the backward pass.
        lookup, readout: Slope by central differences, the table moved in that role alone.
        noise: By how much the two roles' slopes together change with the step.
        right: Whether `got` is the sum of the two; None where noise hides it.
    """

    row: int
    held: bool
    got: float
    lookup: float
    readout: float
    noise: float
    right: bool | None


@dataclass(frozen=True)
class GradientCheck:
    """What `tiebeam.check_gradients` found.

    Attributes:
        lookup, readout: What became of each role's path: "kept", "dropped", "doubled", "wrong" (neither of these), or
            "unknown" (noise hides it, or no row tells).
        times: How often each path arrives, by a fit to all probes; None where no row tells.
        held: Rows that the batch looks up.
        wrong_rows: Rows of the table whose gradient is wrong, judged by the probes of their kind; None if unknown.
        right_share: Share of rows that look right: what a check at random entries would have seen.
    """

    table: str
    vocab: int
    held: int
    lookup: Verdict
    readout: Verdict
    times: tuple[float | None, float | None]
    wrong_rows: int | None
    probes: tuple[Probe, ...]
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether both paths are kept and every row that was decided is right."""
        return self.lookup == self.readout == "kept" and all(p.right is not False for p in self.probes)

    @property
    def right_share(self) -> float | None:
        return None if self.wrong_rows is None else 1.0 - self.wrong_rows / self.vocab

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {**dataclasses.asdict(self), "ok": self.ok, "right_share": self.right_share}

    def __str__(self) -> str:
        undecided = "unknown" in (self.lookup, self.readout) and all(p.right is not False for p in self.probes)
        said = "is right" if self.ok else "could not be decided" if undecided else "is not right"
        lines = [f"{self.table}: the gradient {said}"]
        for role, verdict, times in zip(ROLES, (self.lookup, self.readout), self.times, strict=True):
            lines.append(
                f"  {role:<7}  {verdict}" + ("" if times is None else f" (arrives {_often(round(times, 4) + 0.0)})")
            )
        if self.wrong_rows is not None:
            lines.append(f"  {self.wrong_rows} of {self.vocab} rows wrong; the batch looks {self.held} up")
        if self.wrong_rows and self.right_share:
            lines.append(f"  {self.right_share:.1%} of the rows look right: a check at random entries could miss it")
        return "\n".join([*lines, *(f"  note: {n}" for n in self.notes)])


def _often(times: float) -> str:
    return "once" if times == 1.0 else f"{times:g} times"


def reads_in_both(asked: Wanted, graph: Graph) -> list[RoleRead]:
    """The reads of the one table that is looked up and read out, through one parameter.

    Raises:
        InputError: There is none.
    """
    looked_up, read_out = asked.main
    reads = [r for r in asked.reads if r.table == looked_up]
    leaves = {r.leaf for r in reads}
    if looked_up is not None and looked_up == read_out and len(leaves) == 1:
        return reads
    names = {v.leaf.key: v.leaf.name for v in graph.values if v.leaf is not None}
    apart = [next((names[r.leaf] for r in asked.reads if r.table == i), None) for i in asked.main]
    if looked_up != read_out and None not in apart:
        raise InputError(
            "no table is read in both roles: the model is untied",
            got=f"{apart[0]!r} is looked up and {apart[1]!r} read out, each with the gradient of one role",
            expected="a tied model",
            hint="tiebeam.tie ties it; tiebeam.measure tells the gradients of an untied one",
        )
    raise InputError(
        "no table is read in both roles through one parameter",
        got=f"{len(leaves)} parameters" if len(leaves) > 1 else "no lookup" if looked_up is None else "no readout",
        expected="one parameter that is looked up and read out",
        hint="tiebeam.inspect(model, inputs) says what is read where",
    )


def check(
    table: MovableTable, *, rows: int = 4, seed: int = 0, tolerance: float = 1e-3, notes: Sequence[str] = ()
) -> GradientCheck:
    """Compare a backward pass with central differences.

    Args:
        table: To be moved.
        rows: How many rows of each kind, those looked up and those not, are looked at.
        seed: Of the choice of rows and directions.
        tolerance: Relative error up to which a slope is right.
        notes: Said with the result.

    Raises:
        RangeError: `rows` is below 1.
        InputError: The batch looks up no row.

    Source: the product rule; central differences err by `step**2` and by rounding over `step`.
    """
    if rows < 1:
        raise RangeError("a check needs rows", got=f"rows={rows}", expected="1 or more", hint="leave rows= out for 4")
    if not table.held:
        raise InputError(f"the batch looks up no row of {table.name!r}", expected="at least one token")
    rng = np.random.default_rng(seed)
    held = frozenset(table.held)
    chosen = [*_some(rng, sorted(held), rows), *_some(rng, [r for r in range(table.vocab) if r not in held], rows)]
    probes = [_probe(table, r, r in held, rng.standard_normal(table.width), tolerance) for r in chosen]
    fit = _fit(probes, tolerance)
    verdicts = [_verdict(t, off, fit.explained, tolerance) for t, off in zip(fit.times, fit.off, strict=True)]
    return GradientCheck(
        table=table.name,
        vocab=table.vocab,
        held=len(held),
        lookup=verdicts[0],
        readout=verdicts[1],
        times=fit.times,
        wrong_rows=_wrong_rows(probes, len(held), table.vocab),
        probes=tuple(probes),
        notes=tuple(notes),
    )


def _some(rng: np.random.Generator, rows: Sequence[int], count: int) -> list[int]:
    return [int(r) for r in rng.choice(rows, min(count, len(rows)), replace=False)] if rows else []


def _probe(table: MovableTable, row: int, held: bool, direction: Floats, tolerance: float) -> Probe:
    """One row; where it looks wrong, once more with shorter steps, for a kink within a step bends the difference."""
    found = _look(table, row, held, direction, tolerance, 1.0)
    for factor in SHORTER:
        if found.right is not False:
            break
        closer = _look(table, row, held, direction, tolerance, factor)
        if closer.right is None:  # rounding hides it at such a step
            break
        found = closer
    return found


def _look(table: MovableTable, row: int, held: bool, direction: Floats, tolerance: float, factor: float) -> Probe:
    got = float(table.gradient(row) @ direction)
    (lookup, off_lookup), (readout, off_readout) = (_slope(table, role, row, direction, factor) for role in ROLES)
    noise = off_lookup + off_readout
    size = max(abs(got), abs(lookup), abs(readout), abs(lookup + readout))
    right: bool | None = abs(got - lookup - readout) <= tolerance * size + 2 * noise
    if noise > NOISE * size:
        right = None
    return Probe(row, held, got, lookup, readout, noise, right)


def _slope(table: MovableTable, role: str, row: int, direction: Floats, factor: float) -> tuple[float, float]:
    """Slope of the loss, extrapolated from two steps, and by how much it may be off."""
    near, far = (_difference(table, role, row, direction, times * factor) for times in (1.0, 2.0))
    slope = (4 * near[0] - far[0]) / 3  # the error of order step**2 goes out
    # What is left of a smooth loss is far less; where a kink is suspected, the two steps err by as much as they differ.
    off = 0.3 * abs(slope - near[0]) if factor == 1.0 else abs(far[0] - near[0])
    return slope, off + near[1]


def _difference(table: MovableTable, role: str, row: int, direction: Floats, factor: float) -> tuple[float, float]:
    """Central difference, and what rounding of the loss may have added."""
    step = factor * table.step * table.std
    above, below = table.loss(role, row, step * direction), table.loss(role, row, -step * direction)
    return (above - below) / (2 * step), table.eps * max(abs(above), abs(below)) / (2 * step)


@dataclass(frozen=True, slots=True)
class _Fit:
    """How often each path arrives: the two numbers that explain every slope best.

    Attributes:
        off: By how much each may be off.
        explained: Whether they account for every row, up to noise.
    """

    times: tuple[float | None, float | None]
    off: tuple[float, float]
    explained: bool


def _fit(probes: Sequence[Probe], tolerance: float) -> _Fit:
    slopes = np.array([[p.lookup, p.readout] for p in probes])
    got = np.array([p.got for p in probes])
    doubt = np.array([p.noise + tolerance * max(abs(p.got), abs(p.lookup), abs(p.readout)) for p in probes])
    sharp = doubt > 0  # a row that nothing reaches says nothing
    weighted, seen = slopes[sharp] / doubt[sharp, None], got[sharp] / doubt[sharp]
    columns = [i for i in (0, 1) if (np.abs(weighted[:, i]) > 1).any()]
    times: list[float | None] = [None, None]
    off = [math.inf, math.inf]
    kept = weighted[:, columns]
    if columns and np.linalg.matrix_rank(kept) == len(columns):
        found = np.linalg.lstsq(kept, seen, rcond=None)[0]
        spread = np.sqrt(np.diag(np.linalg.inv(kept.T @ kept)))
        for i, t, o in zip(columns, found, spread, strict=True):
            times[i], off[i] = float(t), float(o)
    rest = seen - weighted @ np.array([t or 0.0 for t in times])
    return _Fit((times[0], times[1]), (off[0], off[1]), bool((np.abs(rest) <= 4).all()))


def _verdict(times: float | None, off: float, explained: bool, tolerance: float) -> Verdict:
    if times is None or off > NOISE:
        return "unknown"
    named: dict[float, Verdict] = {1.0: "kept", 0.0: "dropped", 2.0: "doubled"}
    nearest = min(named, key=lambda number: abs(times - number))
    return named[nearest] if explained and abs(times - nearest) <= 4 * off + 10 * tolerance else "wrong"


def _wrong_rows(probes: Sequence[Probe], held: int, vocab: int) -> int | None:
    """Rows of a kind are wrong where a probe of that kind is."""
    wrong = 0
    for kind, count in ((True, held), (False, vocab - held)):
        seen = [p.right for p in probes if p.held is kind]
        if count and (not seen or all(right is None for right in seen)):
            return None
        wrong += count if any(right is False for right in seen) else 0
    return wrong
