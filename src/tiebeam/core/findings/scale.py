"""Findings on numbers: std, factors, what training would see first. They speak of fresh tables only."""

import math
from collections.abc import Iterator
from dataclasses import replace

from tiebeam.core.facts import Table
from tiebeam.core.finding import Finding
from tiebeam.core.findings.context import Context

LOGITS_WARNING, LOGITS_ERROR, LOGITS_SMALL = 2.0, 4.0, 0.25
LOOKUP_SMALL = 0.1
ROUNDED = 2.0**-7  # bfloat16 rounds by up to 2**-9; two roundings and a product stay below this


def scale_findings(c: Context) -> Iterator[Finding]:
    """Findings of every table's numbers."""
    for table in c.tables:
        if table.vocab == 0:
            yield Finding(
                "empty-table", "warning", table.name, "the table has no rows: there is no token to look up or predict",
                hint="set the vocabulary size before building the model",
            )  # fmt: skip
            continue
        if table.finite is False:
            yield Finding(
                "non-finite", "error", table.name, "the table holds NaN or infinity: so will the "
                "rows and logits made with them",
                fix=c.fixes.initialize(), hint="load it again, or initialise it",
            )  # fmt: skip
            continue
        gate = table.std == 0 and not table.readouts  # zero on purpose: an extra lookup that starts silent
        if table.hidden_rms is not None and not math.isfinite(table.hidden_rms):
            yield Finding(
                "non-finite", "error", table.name,
                "the hidden state that enters the readout is not finite, though the table is: every logit will be NaN "
                "or infinity",
                hint="look for the first module whose output is not finite",
            )  # fmt: skip
        if table.constant and table.vocab > 1 and table.width > 1 and not gate:
            yield Finding(
                "constant-rows", "warning", table.name,
                f"every entry is {table.std or 0.0:.6g} in size: rows cannot be told apart, and both roles "
                "see one token",
                fix=c.fixes.initialize(), hint="load it again, or initialise it",
            )  # fmt: skip
            continue
        yield from _logits(c, table)
        yield from _lookup(c, table)
        yield from _factors(table)
        if c.body_dtype is not None and table.dtype != c.body_dtype:
            yield Finding(
                "dtype-mixed",
                "info",
                table.name,
                f"the table is {table.dtype}, the model is {c.body_dtype} elsewhere",
            )


def _first_loss(t: Table) -> str:
    p = t.predicted
    if p.initial_loss is not None:
        return f", so the first loss is about {p.initial_loss:.4g} where ln V is {p.log_vocab:.1f}"
    if p.initial_loss_range is not None:
        low, high = p.initial_loss_range
        return f", so the first loss is between {low:.4g} and {high:.4g} where ln V is {p.log_vocab:.1f}"
    return ""


def _logits(c: Context, t: Table) -> Iterator[Finding]:
    s = t.predicted.logit_std
    if s is None or not t.readouts or t.fresh is False:
        return
    if t.fresh is None and s > LOGITS_WARNING:
        found = Finding(
            "scale-unsure", "info", t.name,
            f"std {t.std:.4g} gives logits of std {s:.3g}, where a fresh table wants {t.target_std:.4g}; from "
            f"{t.vocab} rows it cannot be told whether this one is fresh or trained",
            hint="if it is fresh: tiebeam.initialize(model, inputs)",
        )  # fmt: skip
        yield replace(found, hint=f"if it is fresh: {_TIE_FIRST}") if _is_copy(c, t) else found
        return
    if t.fresh is None:
        return
    if s > LOGITS_WARNING:
        first = _first_loss(t)
        found = Finding(
            "init-scale", "error" if s > LOGITS_ERROR else "warning", t.name,
            f"std {t.std:.4g} gives logits of std {s:.3g}{first}; the readout wants {t.target_std:.4g}",
            fix=c.fixes.initialize(),
        )  # fmt: skip
        yield replace(found, fix=_tied_and_drawn(c, t), hint=_TIE_FIRST) if _is_copy(c, t) else found
    elif s < LOGITS_SMALL:
        yield Finding(
            "logits-small", "info", t.name,
            f"std {t.std:.4g} gives logits of std {s:.3g}: the readout starts nearly uniform",
        )  # fmt: skip
    own = t.predicted.own_logit
    if own is not None and t.tied and own > s * math.sqrt(2 * t.predicted.log_vocab):
        yield Finding(
            "own-token", "info", t.name,
            f"the logit of the token just read starts at {own:.3g}, above all others: the model first predicts its own "
            "input. That is usual for tied tables and soon unlearned",
        )  # fmt: skip


_TIE_FIRST = "tie it first, then tiebeam.initialize(model, inputs), which refuses copies: it would part them for good"


def _is_copy(c: Context, t: Table) -> bool:
    """Whether a draw would turn two tables that were meant to be one into two unrelated ones."""
    return t.state == "copy" and not t.constant and not c.untied_on_purpose


def _tied_and_drawn(c: Context, t: Table) -> str:
    """Code that makes a copy one with its partner and then draws it, where there is such code."""
    partner = c.partner(t)
    alike = partner is not None and (partner.vocab, partner.vocab_axis) == (t.vocab, t.vocab_axis)
    tie = c.fixes.tie(partner.name, t.name) if partner is not None and alike else ""
    return f"{tie}\n{c.fixes.initialize()}" if tie else ""


def _lookup(c: Context, t: Table) -> Iterator[Finding]:
    rms = t.predicted.lookup_rms
    if rms is None or rms >= LOOKUP_SMALL or rms == 0 or t.norm_after_lookup or t.std is None or t.fresh is False:
        return
    small = f"looked-up rows enter the network with a root mean square of {rms:.3g}, where layers expect about 1"
    if not t.readouts:
        yield Finding(
            "lookup-small", "info", t.name, f"{small}; a table that is a lookup alone wants {t.target_std or 1.0:.4g}",
            fix=c.fixes.initialize() if t.state == "untied" else "", hint="draw it at that std",
        )  # fmt: skip
        return
    root = math.sqrt(t.width)
    places = {u.where for u in t.lookups}
    fix = c.fixes.scale_lookup(places.pop(), root) if len(places) == 1 else ""
    if fix and rms * root < LOOKUP_SMALL:
        fix += "\n" + c.fixes.initialize()
    yield Finding(
        "lookup-small", "info", t.name,
        f"{small}; multiplying them by sqrt(width) = {root:.4g} serves both roles. The model then first predicts its "
        "own input: the first loss is higher for some tens of steps",
        fix=fix, hint="multiply the looked-up rows by sqrt(width) in forward",
    )  # fmt: skip


def _factors(t: Table) -> Iterator[Finding]:
    if t.readout_factor is not None and (t.readout_factor == 0 or not math.isfinite(t.readout_factor)):
        yield Finding(
            "dead-logits", "error", t.name,
            f"the readout factor is {t.readout_factor:g}: no logit depends on the input",
            hint="look for a multiplication by 0, or by a number that its dtype cannot hold",
        )  # fmt: skip
    for note in t.notes:
        if note.startswith(("lookup_factor", "readout_factor")):
            yield Finding("factor-unknown", "info", t.name, f"{note}; mode='empirical' measures what it does")
    for role, factor in (("lookup", t.lookup_factor), ("readout", t.readout_factor)):
        if factor is None or t.width < 2:
            continue
        for exact, name in ((math.sqrt(t.width), "sqrt(width)"), (1 / math.sqrt(t.width), "1/sqrt(width)")):
            off = abs(abs(factor) / exact - 1)
            if 1e-6 < off < ROUNDED:
                yield Finding(
                    "rounded-factor", "info", t.name,
                    f"the {role} factor {factor:.6g} is {name} = {exact:.6g} rounded by {off:.2g}: a port that does "
                    "not round differs from it",
                )  # fmt: skip
