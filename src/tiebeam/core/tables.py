"""Facts of each table: what its records agree on, what the weights say, what follows from both."""

import math
from collections.abc import Callable, Sequence

from tiebeam.core.facts import Lookup, Predicted, Readout, Table
from tiebeam.core.initialising import moments
from tiebeam.core.initialising.predict import predict
from tiebeam.core.reading.records import Use, root_mean_square
from tiebeam.core.statistics import TableStatistics, Weights
from tiebeam.core.ties import Group, group_uses, judge

FRESH_SPREAD = 1.4  # independent draws give 1.0 or less, trained tables 1.9 and 3.9
FRESH_ROWS = 256  # rows below which the spread says nothing


def build_tables(
    uses: Sequence[Use],
    weights: Weights,
    declares: Callable[[str, str], bool],
    *,
    meta: bool,
    repeats: float | None = None,
) -> tuple[Table, ...]:
    """One `Table` for each vocabulary table.

    Args:
        declares: Whether a tie of two parameter paths was asked for.
        repeats: Share of targets that repeat their input token.
    """
    groups = group_uses(uses)

    def compare(a: Group, b: Group) -> object:
        return weights.distance(a.leaves[0], a.vocab_axis, b.leaves[0], b.vocab_axis)

    judge(groups, compare, declares, meta=meta)  # type: ignore[arg-type]
    return tuple(_table(g, weights, repeats) for g in groups)


def _table(group: Group, weights: Weights, repeats: float | None) -> Table:
    vocab, width = group.shape
    leaf = group.leaves[0]
    stats = weights.statistics(leaf, group.vocab_axis)
    lookups = tuple(u.fact for u in group.lookups if isinstance(u.fact, Lookup))
    readouts = tuple(u.fact for u in group.readouts if isinstance(u.fact, Readout))
    notes = list(group.notes)
    lookup_factor = _agreed("lookup", [f.factor for f in lookups], [f.notes for f in lookups], notes)
    readout_factor = _agreed("readout", [f.factor for f in readouts], [f.notes for f in readouts], notes)
    caps = {f.soft_cap for f in readouts}
    cap = caps.pop() if len(caps) == 1 else None
    hidden_rms = root_mean_square([f.hidden_rms for f in readouts])
    terms = width + max((f.beside for f in readouts), default=0)  # their stds are one, so that all is one product
    target, ratio = _targets(readouts, lookup_factor, readout_factor, hidden_rms, terms)
    tied = bool(lookups and readouts)
    kappa = next((f.kappa for f in readouts if f.kappa is not None), None) if tied else 0.0
    if not tied and group.state == "copy":
        kappa = None  # equal rows stand at the other end too: between none of the own token and all of it
    return Table(
        names=group.names,
        vocab=vocab,
        width=width,
        dtype=group.uses[0].read.source.dtype,
        state=group.state,
        lookups=lookups,
        readouts=readouts,
        lookup_factor=lookup_factor,
        readout_factor=readout_factor,
        soft_cap=cap,
        readout_bias=any(f.bias for f in readouts),
        norm_after_lookup=bool(lookups) and all(f.norm_after for f in lookups),
        hidden_rms=hidden_rms,
        std=stats.std,
        target_std=target,
        lr_ratio=ratio,
        fresh=_fresh(stats, vocab),
        spread=stats.spread,
        finite=stats.finite,
        constant=stats.constant,
        trainable=any(one.trainable for one in group.leaves),
        vocab_axis=group.vocab_axis,
        partner=None if group.partner is None else group.partner.names[0],
        distance=group.distance,
        padding_rows=stats.zero_rows if stats.zero_count <= len(stats.zero_rows) < vocab else (),
        predicted=_predicted(vocab, terms, stats, lookup_factor, readout_factor, hidden_rms, kappa, repeats, cap),
        notes=tuple(dict.fromkeys(notes)),
    )


def _agreed(role: str, factors: list[float | None], reasons: list[tuple[str, ...]], notes: list[str]) -> float | None:
    """The factor that all records of a role share; otherwise None, with the reason in `notes`."""
    if not factors:
        return None
    if any(f is None for f in factors):
        why = next((r for r in reasons if r), ("unknown",))
        notes.append(f"{role}_factor is not known: {why[-1]}")
        return None
    known = [f for f in factors if f is not None]
    if any(not math.isclose(f, known[0], rel_tol=1e-9) for f in known):
        values = ", ".join(dict.fromkeys(f"{f:.6g}" for f in known))
        notes.append(f"{role}_factor differs between uses: {values}")
        return None
    return known[0]


def _targets(
    readouts: tuple[Readout, ...], lookup: float | None, readout: float | None, rms: float | None, terms: int
) -> tuple[float | None, float | None]:
    """Target std and learning-rate ratio, where the facts allow."""
    if readouts:
        if not readout or not rms or not math.isfinite(readout * rms) or terms == 0:
            return None, None
        return moments.target_std_readout(readout, rms, terms), moments.lr_ratio(readout, rms)
    if not lookup or not math.isfinite(lookup):
        return None, 1.0
    return moments.target_std_lookup(lookup), 1.0


def _fresh(stats: TableStatistics, vocab: int) -> bool | None:
    if stats.spread is None or vocab < FRESH_ROWS:
        return None
    return stats.spread <= FRESH_SPREAD


def _predicted(
    vocab: int,
    terms: int,
    stats: TableStatistics,
    lookup: float | None,
    readout: float | None,
    rms: float | None,
    kappa: float | None,
    repeats: float | None,
    soft_cap: float | None,
) -> Predicted:
    return predict(
        vocab=vocab,
        width=terms,
        std=stats.std,
        lookup_factor=lookup or None,
        readout_factor=readout or None,
        hidden_rms=rms or None,
        kappa=kappa,
        pi=repeats,
        soft_cap=soft_cap,
    )
