"""The init plan: which table gets which std, and how the next round follows from what was measured."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from types import MappingProxyType
from typing import Literal

from tiebeam.core.facts import Table
from tiebeam.core.initialising import moments
from tiebeam.errors import RangeError

Mode = Literal["auto", "analytic", "empirical"]
MODES: tuple[Mode, ...] = ("auto", "analytic", "empirical")
ROUNDS = 8
SETTLED = 0.02  # relative distance of the measured logit std from 1


@dataclass(frozen=True, slots=True)
class TablePlan:
    """What is to be done to one table.

    Attributes:
        ordinal: Order of first use among the report's tables: what draws are keyed by.
        mode: How the std is found.
        std: Std to write first. It depends on the structure alone, never on the present values: writing
            twice equals writing once.
        linear: The logit std is proportional to the table's std, so that one measurement settles it.
        measurable: An analytic plan goes by the logits where they contradict it.
    """

    table: Table
    ordinal: int
    mode: Literal["analytic", "empirical"]
    std: float
    linear: bool
    biases: tuple[str, ...]
    measurable: bool = False


def plan_init(
    tables: Sequence[Table], mode: Mode, *, meta: bool = False, unseen: Mapping[str, str] = MappingProxyType({})
) -> tuple[TablePlan, ...]:
    """A plan for every table that has a role to be set for.

    An extra lookup beside a tied table (a per-layer table, a gate that starts at zero) is left alone; so is what
    `could_be_a_layer`, `could_be_a_classifier` or `is_an_adapter`, and a lookup alone that could be read out unseen.

    Args:
        unseen: By table name what could be a readout of it: at a lookup's std its logits would be sqrt(width).

    Raises:
        RangeError: An unknown mode; or "analytic" (or meta) where the structure does not tell the std.
    """
    if mode not in MODES:
        close = get_close_matches(str(mode), MODES, 1)
        raise RangeError(
            "mode is unknown",
            got=repr(mode),
            expected="'auto', 'analytic' or 'empirical'",
            hint=f"did you mean {close[0]!r}?" if close else "leave it out: 'auto' takes the way that the model allows",
        )
    tied = any(t.lookups and t.readouts for t in tables)
    plans = []
    for ordinal, t in enumerate(tables):
        if t.vocab == 0 or t.width == 0 or could_be_a_layer(t) or _silent_gate(t) or (tied and not t.readouts):
            continue
        if (t.name in unseen and not t.readouts) or could_be_a_classifier(t, tables) or is_an_adapter(t, tables):
            continue
        known = _structural(t)
        if known is None and (mode == "analytic" or meta):
            raise RangeError(
                f"the std of table {t.name!r} does not follow from the structure alone",
                got="; ".join(t.notes)
                or "no normalisation before the readout, so the hidden state depends on the table",
                expected="known factors, and a normalisation before the readout",
                hint="use mode='empirical' on real tensors, which measures it",
            )
        chosen: Literal["analytic", "empirical"] = (
            "analytic" if known is not None and mode != "empirical" else "empirical"
        )
        plans.append(
            TablePlan(
                table=t,
                ordinal=ordinal,
                mode=chosen,
                std=_start(t, known),
                linear=all(r.normalized for r in t.readouts),
                biases=tuple(dict.fromkeys(b for r in t.readouts for b in r.bias)),
                measurable=mode == "auto",
            )
        )
    return tuple(plans)


def could_be_a_layer(t: Table) -> bool:
    """A square matrix that is only multiplied: a head of a byte-level model, or the last layer of a body."""
    return t.vocab == t.width and not t.lookups


def could_be_a_classifier(t: Table, tables: Sequence[Table]) -> bool:
    """A matrix that is only multiplied, over another number of outputs than any lookup has tokens."""
    known = [other.vocab for other in tables if other.lookups]
    apart = all(abs(t.vocab - v) > max(8, 0.02 * max(t.vocab, v)) for v in known)
    return not t.lookups and bool(known) and apart


def is_an_adapter(t: Table, tables: Sequence[Table]) -> bool:
    """A matrix behind another, whose product, added to another table's logits, is zero as yet: so an adapter starts.

    Where it is not, a second head that reads a deeper hidden state looks the same.
    """
    silent = t.std == 0 or t.hidden_rms == 0
    behind = any(n in r.delta for other in tables for r in other.readouts for n in t.names)
    return silent and behind and not t.lookups


def _structural(t: Table) -> float | None:
    """The std that the structure gives for a hidden state of size 1; None where it does not give one.

    Behind a normalisation the hidden state's size does not depend on the table's. Gains can make it other than
    1: that is measured on the table as drawn, never on the present one, so that twice equals once.
    """
    if not t.readouts:
        return moments.target_std_lookup(t.lookup_factor) if t.lookup_factor else None
    if not t.readout_factor or not all(r.normalized for r in t.readouts):
        return None
    if t.hidden_rms is None:
        return None
    return moments.target_std_readout(t.readout_factor, 1.0, t.terms)


def _start(t: Table, known: float | None) -> float:
    if known is not None:
        return known
    if not t.readouts:
        return 1.0
    factor = abs(t.readout_factor) if t.readout_factor else 1.0
    return 1.0 / (factor * math.sqrt(t.terms))


def contradiction(table: Table, std: float, zero_rows: int = 0) -> str:
    """Why the logits as measured are not those that factor, hidden state and std give, or "".

    Independent draws of V rows leave their std uncertain by 1/sqrt(2V) of itself (three times that is allowed), and
    the own token, one logit in V, adds kappa**2 * width to V variances. Where kappa was not measured (a batch of one
    token) it may be anything up to 1.

    Args:
        table: As looked at after `std` was written.
        zero_rows: Rows that were left at zero: their logits are 0, and count among the others'.
    """
    seen = [r.logit_std for r in table.readouts if r.logit_std is not None]
    if not seen or not table.readout_factor or not table.hidden_rms or not math.isfinite(table.hidden_rms):
        return ""
    formula = moments.logit_std(table.readout_factor, table.hidden_rms, std, table.terms)
    measured = math.sqrt(sum(x * x for x in seen) / len(seen))
    kappas = [1.0 if r.kappa is None else r.kappa for r in table.readouts] if table.lookups else []
    own = max((k * k for k in kappas), default=0.0) * table.width / table.vocab
    chance = SETTLED + 3.0 / math.sqrt(2.0 * table.vocab)
    drawn = math.sqrt(max(0.0, 1.0 - zero_rows / table.vocab))
    if formula * (drawn - chance) <= measured <= formula * (math.sqrt(1.0 + own) + chance):
        return ""
    return f"the hidden state, the factor and the std give {formula:.4g}, and the logits have a std of {measured:.4g}"


def next_std(plan: TablePlan, std: float, table: Table) -> tuple[float, float | None]:
    """Std of the next round and the logit std it follows from (None where nothing was measured).

    Args:
        std: What was written.
        table: The table as looked at afterwards.

    Source: undamped rounds `std /= s` alternate for ever where the hidden state grows with the table (s goes as
    std**2); the square root halves the exponent and converges.
    """
    s = measured_logit_std(plan, std, table)
    if s is None or not math.isfinite(s) or s <= 0:
        return std, None
    return std / (s if plan.linear else math.sqrt(s)), s


def _silent_gate(t: Table) -> bool:
    """An extra lookup that starts at zero: an adapter's factor, a gate."""
    return t.std == 0 and not t.readouts and t.partner is None


def has_no_effect(before: tuple[float, float], after: tuple[float, float]) -> bool:
    """Whether the logit std did not follow the table's: the model normalises the table itself.

    Args:
        before, after: (std written, logit std measured) of two rounds.
    """
    (a, s), (b, t) = before, after
    return abs(math.log(t / s)) < 0.25 * abs(math.log(b / a))


def measured_logit_std(plan: TablePlan, std: float, table: Table) -> float | None:
    """Logit std after writing `std`.

    Analytic plans take it from the measured hidden state by the formula; empirical ones from the logits.
    """
    seen = [r.logit_std for r in table.readouts if r.logit_std is not None]
    if plan.mode == "empirical" and seen:
        return math.sqrt(sum(x * x for x in seen) / len(seen))
    if table.readout_factor and table.hidden_rms and math.isfinite(table.hidden_rms):
        return moments.logit_std(table.readout_factor, table.hidden_rms, std, table.terms)
    return math.sqrt(sum(x * x for x in seen) / len(seen)) if seen else None
