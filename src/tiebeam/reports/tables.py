"""What a report says of one table: its rows and its flow, in words."""

from tiebeam.core.facts import Lookup, Readout, Table
from tiebeam.reports.numbers import count, ids, known, number
from tiebeam.reports.pieces import Row, Step, TablePart
from tiebeam.reports.reasons import Reasons
from tiebeam.reports.strings import Spans, joined, name, spans, visible

_STATES = {
    "tied": "one parameter in both roles",
    "aliased": "two parameters on one storage",
    "cut": "one storage, but the gradient of a role does not reach it",
    "copy": "equal values in two storages",
    "drifted": "meant to be one table, but the values have parted",
    "untied": "read in one role alone",
    "unknown": "could not be told",
}


def table_part(table: Table, meta: bool) -> TablePart:
    """Word one table.

    Args:
        table: Its facts.
        meta: Whether the model had shapes without values, which explains what is unknown.

    Returns:
        Its flow and its rows; a note that explains an unknown value stands beside it, the others at the end.
    """
    reasons = Reasons(table, meta)
    rows = [*_identity(table, reasons), *_records(table), *_unknowns(table, reasons)]
    rows += [*_stds(table, reasons), *_predicted(table, reasons)]
    rows += [Row("note", spans(n)) for n in reasons.left()]
    size = f"{count(table.vocab)} × {count(table.width)}"
    return TablePart(table, name(table.name), table.state, size, flow(table), tuple(rows))


def _identity(table: Table, reasons: Reasons) -> list[Row]:
    state = f"{table.state}: {_STATES[table.state]}"
    rows = [
        Row("names", joined(table.names)),
        Row("size", (f"vocab {count(table.vocab)}, width {count(table.width)}, {visible(table.dtype)}",)),
        Row("state", spans(reasons.show("state", None)) if table.state == "unknown" else (state,)),
    ]
    if table.partner is not None:
        distance = [] if table.distance is None else [f", at relative distance {number(table.distance)}"]
        rows.append(Row("partner", (name(table.partner), *distance)))
    if not table.trainable:
        rows.append(Row("trainable", ("no: frozen",)))
    if table.finite is False:
        rows.append(Row("finite", ("no: NaN or infinite entries",)))
    if table.constant:
        rows.append(Row("constant", ("yes: every entry is the same number",)))
    if table.padding_rows:
        rows.append(Row("zero rows", (ids(table.padding_rows),)))
    return rows


def _records(table: Table) -> list[Row]:
    rows = [Row("lookup", _record(r, table, _lookup_facts(r))) for r in table.lookups]
    return rows + [Row("readout", _record(r, table, _readout_facts(r))) for r in table.readouts]


def _record(record: Lookup | Readout, table: Table, facts: list[str]) -> Spans:
    place = name(record.where) if record.where else "the model"
    through = [" through ", name(record.name)] if record.name != table.name else []
    if not record.gradient:
        facts.append("no gradient")
    if record.reparametrized:
        facts.append(f"the table read is reparametrized: {visible(record.reparametrized)}")
    if record.count != 1:
        facts.append(f"{count(record.count)} times")
    return (place, *through, "".join(f", {fact}" for fact in facts))


def _lookup_facts(record: Lookup) -> list[str]:
    facts = [record.kind, f"factor {known(record.factor)}", *_measured("rms", record.rms)]
    return [*facts, "then a norm"] if record.norm_after else facts


def _readout_facts(record: Readout) -> list[str]:
    facts = ["norm"] if record.normalized else []
    facts += [*_measured("hidden rms", record.hidden_rms), f"factor {known(record.factor)}"]
    facts += [f"bias {visible(b)}" for b in record.bias] + [f"low-rank product {visible(d)}" for d in record.delta]
    facts += [*_measured("soft cap", record.soft_cap), *_measured("kappa", record.kappa)]
    return [*facts, *_measured("measured logit std", record.logit_std)]


def _measured(label: str, value: float | None) -> list[str]:
    return [] if value is None else [f"{label} {number(value)}"]


def _unknowns(table: Table, reasons: Reasons) -> list[Row]:
    """Values the flow shows as unknown, with the reason, which has no room there."""
    asked: list[tuple[str, float | None]] = []
    if table.lookups:
        asked.append(("lookup_factor", table.lookup_factor))
    if table.readouts:
        asked += [("readout_factor", table.readout_factor), ("hidden_rms", table.hidden_rms)]
    return [Row(f.replace("_", " "), spans(reasons.show(f, None))) for f, value in asked if value is None]


def _stds(table: Table, reasons: Reasons) -> list[Row]:
    aim = "unit-variance logits" if table.readouts else "unit-variance rows"
    rows = [
        Row("std now", spans(reasons.show("std", table.std))),
        Row("target std", spans(f"{reasons.show('target_std', table.target_std)}, for {aim}")),
        Row("learning-rate ratio", spans(reasons.show("lr_ratio", table.lr_ratio))),
    ]
    if table.fresh is not None:
        spread = "" if table.spread is None else f" (spread {number(table.spread)})"
        rows.append(Row("rows", (("fresh, like independent draws" if table.fresh else "trained") + spread,)))
    return rows


def _predicted(table: Table, reasons: Reasons) -> list[Row]:
    seen, rows = table.predicted, []
    if table.readouts:
        loss = reasons.show("initial_loss", seen.initial_loss, seen.initial_loss_range)
        rows.append(Row("predicted logit std", spans(reasons.show("logit_std", seen.logit_std))))
        rows.append(Row("predicted initial loss", spans(f"{loss}, against ln V = {number(seen.log_vocab)}")))
    if table.tied or seen.own_logit is not None or seen.own_logit_range is not None:
        own = reasons.show("own_logit", seen.own_logit, seen.own_logit_range)
        rows.append(Row("predicted own logit", spans(own)))
    if table.lookups:
        rows.append(Row("predicted lookup rms", spans(reasons.show("lookup_rms", seen.lookup_rms))))
    return rows


def flow(table: Table) -> tuple[Step, ...]:
    """The signal's way through the roles that the table has.

    Example:
        >>> [s.text for s in flow(Table(("wte",), vocab=8, width=2, dtype="float32", state="unknown"))]
        ['table (8 × 2) std unknown']
    """
    itself = Step("table", f"table ({count(table.vocab)} × {count(table.width)}) std {known(table.std)}")
    steps: list[Step] = []
    if table.lookups:
        steps += [Step("ids", "ids"), itself, Step("factor", f"× {known(table.lookup_factor)}")]
        steps += [Step("norm", "norm")] if table.norm_after_lookup else []
    if table.lookups or table.readouts:
        steps.append(Step("network", "network"))
    if table.readouts:
        steps += _readout_steps(table, Step("table", "table") if table.lookups else itself)
    return tuple(steps) or (itself,)


def _readout_steps(table: Table, itself: Step) -> list[Step]:
    norm = "norm, " if any(r.normalized for r in table.readouts) else ""
    steps = [Step("norm", f"{norm}hidden rms {known(table.hidden_rms)}"), itself]
    steps.append(Step("factor", f"× {known(table.readout_factor)}"))
    steps += [Step("bias", "+ bias")] if table.readout_bias else []
    steps += [Step("cap", f"soft cap {number(table.soft_cap)}")] if table.soft_cap is not None else []
    return [*steps, Step("logits", "logits")]
