"""What few bits do to each role of a table by itself, and whether one quantised table can serve both.

Tied, one table must satisfy both roles, and they do not suffer alike: the readout's error goes straight into the
logits, the lookup's through the network. So each is rounded alone, the other left as it is, and the next-token
distributions are compared.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from tiebeam.core.measuring.passes import ROLES, Role
from tiebeam.core.measuring.quantise import Rows, bits_each, quantised
from tiebeam.core.tables import FRESH_ROWS, FRESH_SPREAD
from tiebeam.errors import InputError, RangeError

Where = Literal["lookup", "readout", "both"]
Verdict = Literal["shared", "mixed", "untied", "as it is"]

PLACES: tuple[Where, ...] = ("lookup", "readout", "both")

CHUNK = 2**22
"""Logits compared at a time."""


class QuantisableTable(Protocol):
    """A model whose table can be another one in one role alone.

    Attributes:
        names: Of the table that each role reads.
        tied: Whether both read one.
        dtype: Of the table, as it is.
        held: Rows that the batch looks up.
    """

    names: dict[Role, str]
    tied: bool
    dtype: str
    held: tuple[int, ...]

    def rows(self, role: Role) -> Rows:
        """The table that a role reads, (vocab, width), float32."""
        ...

    def logits(self, instead: Mapping[Role, Rows]) -> npt.NDArray[np.float32]:
        """Logits of the batch, (positions, vocab), with other rows in some roles; none: as the model is."""
        ...


@dataclass(frozen=True, slots=True)
class Effect:
    """What one way of rounding does.

    Attributes:
        role: Which role read rounded rows: one, or both.
        bits: Of each entry.
        group: Entries that share a scale; None: the row.
        row_error: Norm of the rows' error over that of the rows: of those looked up, or of all that are read out.
        logit_error: Root mean square change of the logits about each position's mean. Unit: nats.
        kl: Mean Kullback-Leibler divergence of the next-token distributions from those of the model. Unit: nats.
        top1: Share of positions whose likeliest token stays.
    """

    role: Where
    bits: int
    group: int | None
    row_error: float
    logit_error: float
    kl: float
    top1: float


@dataclass(frozen=True)
class Sensitivity:
    """What `tiebeam.sensitivity` found.

    Attributes:
        tied: Whether both roles read one table now.
        effects: By role, bits and group.
        tolerance: The divergence up to which a rounding is taken. Unit: nats.
        bits: Fewest bits at which each role, the other left alone, stays within it; None: at none that was tried.
        group: The grouping that `bits` and the advice speak of.
        advice: "shared": one quantised table for both. "mixed": one table, and a second copy for the readout at fewer
            bits where speed counts. "untied": each role its own. "as it is": do not quantise.
        positions: Compared.
    """

    model: str
    table: str
    vocab: int
    width: int
    tied: bool
    dtype: str
    tolerance: float
    positions: int
    effects: tuple[Effect, ...]
    bits: Mapping[Role, int | None]
    group: int | None
    advice: Verdict
    reason: str
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return dataclasses.asdict(self)

    def effect(self, role: Where, bits: int, group: int | None = None) -> Effect:
        """One of the effects.

        Raises:
            RangeError: It was not measured.
        """
        for found in self.effects:
            if (found.role, found.bits, found.group) == (role, bits, group):
                return found
        raise RangeError("an effect that was measured", got=f"{role}, {bits} bits, group {group}")

    def __str__(self) -> str:
        head = [f"{self.table} ({self.vocab:,} x {self.width:,}, {self.dtype}): {self.advice}", f"  {self.reason}"]
        lines = [f"  {'role':<8}{'bits':>5}{'scales':>10}{'rows':>10}{'logits':>10}{'kl':>11}{'top-1':>8}"]
        lines += [
            f"  {e.role:<8}{e.bits:>5}{'row' if e.group is None else f'{e.group} each':>10}{e.row_error:>10.2%}"
            f"{e.logit_error:>10.4f}{e.kl:>11.2e}{e.top1:>8.1%}"
            for e in self.effects
        ]
        return "\n".join([*head, *lines, *(f"  note: {n}" for n in self.notes)])


def measure_sensitivity(
    model: str,
    table: QuantisableTable,
    *,
    bits: Sequence[int] = (8, 6, 4),
    group: int | None = 32,
    tolerance: float = 0.01,
    mask: npt.NDArray[np.bool_] | None = None,
    notes: tuple[str, ...] = (),
) -> Sensitivity:
    """Round a table in each role, and in both, and compare.

    Args:
        model: Its name.
        table: To be rounded.
        bits: What is tried.
        group: Entries that share a scale, tried beside whole rows; None: whole rows alone.
        tolerance: Divergence up to which a rounding is taken. Unit: nats.
        mask: Positions that count, (positions,).
        notes: Said with the result.

    Raises:
        RangeError: No bits, or a tolerance that is not above 0.
        InputError: The model's own logits are not finite.
    """
    if not isinstance(bits, Iterable):
        raise RangeError("bits are tried one by one", got=f"bits={bits!r}", expected="several", hint=f"bits=({bits},)")
    if not bits or not tolerance > 0:
        raise RangeError("what to try", got=f"bits {tuple(bits)}, tolerance {tolerance}", expected="bits, above 0")
    held = {role: table.rows(role) for role in ROLES}
    base = _counted(table.logits({}), mask)
    if not np.isfinite(base).all():  # a divergence that is no number would count as none
        raise InputError(
            "there is nothing to compare rounded logits with",
            got="logits that are not finite",
            expected="finite logits at every position that counts",
            hint="look for broken rows: tiebeam.inspect(model, inputs)",
        )
    groups = (None,) if group is None else (None, group)
    effects: list[Effect] = []
    for each in groups:
        for b in sorted(set(bits), reverse=True):
            rounded = _rounded(held, b, each, tied=table.tied)
            errors = _row_errors(table, held, rounded)
            for role in PLACES:
                instead = rounded if role == "both" else {role: rounded[role]}
                logits = _counted(table.logits(instead), mask)
                effects.append(Effect(role, b, each, errors[role], *compare(base, logits)))
    # Grouped scales are what kernels have where they have them at all, and lose less: the advice speaks of those.
    fewest = {role: _fewest(effects, role, group, tolerance) for role in PLACES}
    advice, reason = _advise(fewest, table, held["readout"].shape[1], group, tolerance)
    vocab, width = held["readout"].shape
    return Sensitivity(
        model=model,
        table=table.names["readout"],
        vocab=vocab,
        width=width,
        tied=table.tied,
        dtype=table.dtype,
        tolerance=tolerance,
        positions=len(base),
        effects=tuple(effects),
        bits={role: fewest[role] for role in ROLES},
        group=group,
        advice=advice,
        reason=reason,
        notes=(*notes, *_fresh(held["readout"])),
    )


def _rounded(held: Mapping[Role, Rows], bits: int, group: int | None, *, tied: bool) -> dict[Role, Rows]:
    """Each role's rows, rounded: once, where they are one table's."""
    if tied:
        return dict.fromkeys(ROLES, quantised(held["lookup"], bits, group))
    return {role: quantised(held[role], bits, group) for role in ROLES}


def _fresh(rows: Rows) -> tuple[str, ...]:
    """A warning where rows look like independent draws: what rounding does to them says little of trained ones."""
    norms = np.linalg.norm(rows, axis=1)
    norms = norms[norms > 0]
    if len(norms) < FRESH_ROWS or not norms.mean():
        return ()
    spread = float(norms.std() / norms.mean()) * (2 * rows.shape[1]) ** 0.5
    return ("the rows look freshly drawn: a trained model suffers otherwise",) if spread <= FRESH_SPREAD else ()


def compare(base: npt.NDArray[np.float32], other: npt.NDArray[np.float32]) -> tuple[float, float, float]:
    """Logit error, divergence and top-1 agreement of two sets of logits, (positions, vocab); see `Effect`.

    Example:
        >>> z = np.log(np.array([[0.5, 0.5], [0.9, 0.1]], np.float32))
        >>> error, kl, top1 = compare(z, z + np.float32(3))  # a shift of all logits changes no probability
        >>> round(error, 6), round(abs(kl), 6), top1
        (0.0, 0.0, 1.0)
    """
    positions, vocab = base.shape
    step = max(1, CHUNK // max(1, vocab))
    squares = divergence = 0.0
    same = 0
    for start in range(0, positions, step):
        a, b = (z[start : start + step].astype(np.float64) for z in (base, other))
        off = b - a
        squares += float(((off - off.mean(axis=1, keepdims=True)) ** 2).sum())
        same += int((a.argmax(axis=1) == b.argmax(axis=1)).sum())
        log_p, log_q = _log_softmax(a), _log_softmax(b)
        divergence += float((np.exp(log_p) * (log_p - log_q)).sum())
    return (squares / (positions * vocab)) ** 0.5, max(0.0, divergence / positions), same / positions


def _log_softmax(z: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    z = z - z.max(axis=1, keepdims=True)
    found: npt.NDArray[np.float64] = z - np.log(np.exp(z).sum(axis=1, keepdims=True))
    return found


def _counted(logits: npt.NDArray[np.float32], mask: npt.NDArray[np.bool_] | None) -> npt.NDArray[np.float32]:
    return logits if mask is None or len(mask) != len(logits) or not mask.any() else logits[mask]


def _row_errors(table: QuantisableTable, held: Mapping[Role, Rows], rounded: Mapping[Role, Rows]) -> dict[Where, float]:
    read = list(table.held)
    looked_up = _relative(held["lookup"][read], rounded["lookup"][read])
    all_rows = _relative(held["readout"], rounded["readout"])
    return {"lookup": looked_up, "readout": all_rows, "both": all_rows}


def _relative(rows: Rows, rounded: Rows) -> float:
    norm = float(np.linalg.norm(rows))
    return float(np.linalg.norm(rounded - rows)) / norm if norm else 0.0


def _fewest(effects: Sequence[Effect], role: Where, group: int | None, tolerance: float) -> int | None:
    """Fewest bits from which on, upwards, a role stays within the tolerance."""
    found = None
    for e in sorted((e for e in effects if e.role == role and e.group == group), key=lambda e: -e.bits):
        if not e.kl <= tolerance:
            break
        found = e.bits
    return found


def _advise(
    fewest: Mapping[Where, int | None], table: QuantisableTable, width: int, group: int | None, tolerance: float
) -> tuple[Verdict, str]:
    lookup, readout, both = fewest["lookup"], fewest["readout"], fewest["both"]
    within = f"within {tolerance:g} nats"
    said = {r: f"{b} bits" if b else "its own precision" for r, b in (("lookup", lookup), ("readout", readout))}
    needs = f"{within} the lookup needs {said['lookup']} and the readout {said['readout']}"
    if lookup is None and readout is None:
        return "as it is", f"neither role stays {within} at the bits that were tried"
    if not table.tied:
        return "untied", f"{needs}: there are two tables, so each can have its own"
    if both is None:
        return (
            "untied",
            f"{needs}, and one table cannot have both at the bits that were tried: keep it, or untie (two tables, the "
            "config's flag false) and quantise one",
        )
    cost = bits_each(both, width, group)
    one = f"one table at {both} bits ({cost:g} an entry with its scales) serves both {within}"
    if lookup is not None and readout is not None and readout < lookup:
        more = bits_each(readout, width, group)
        return (
            "mixed",
            f"{one} and is the smallest; the readout would do with {readout}: a second copy for it alone takes "
            f"{more:g} bits an entry more, and each token then reads {more / cost:.0%} as much",
        )
    apart = "" if lookup == readout == both else f"; {needs}, and two tables would be larger"
    return "shared", one + apart
