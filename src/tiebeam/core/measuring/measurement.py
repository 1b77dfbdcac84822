"""What one forward and backward pass showed of a table with two roles."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from tiebeam.core.facts import Lookup, Predicted, Readout, Table
from tiebeam.core.measuring.passes import ROLES, Drift, Passed, Role, Sent, Wanted
from tiebeam.core.measuring.spectrum import Spectrum, spectrum
from tiebeam.core.reading.records import root_mean_square

SCHEMA_VERSION = 1
"""Of `Measurement.to_dict`."""

UNACCOUNTED = 1e-5
"""Share of a gradient above which a split is said to be incomplete: float32 sums in another order stay below."""


@dataclass(frozen=True, slots=True)
class RoleGradient:
    """What one role sends to a table.

    Attributes:
        table: The table's name.
        grad_norm: Frobenius norm of the gradient; None where it could not be told apart (see the notes).
        rows: Rows that it reaches, of `vocab`.
        grad: The gradient, (vocab, width), of the framework's own kind, where it was asked for.
    """

    table: str
    vocab: int
    grad_norm: float | None
    rows: int | None
    grad: Any = None

    def to_dict(self) -> dict[str, Any]:
        """Plain data, without the gradient itself."""
        return {"table": self.table, "vocab": self.vocab, "grad_norm": self.grad_norm, "rows": self.rows}


@dataclass(frozen=True, slots=True)
class TableGradient:
    """Gradients of one table.

    Attributes:
        roles: By role; only those that the table has.
        role_cosine: Cosine of the two roles' gradients, or None.
        unaccounted: Share of the gradient that no role accounts for; 0.0 is an exact split; None: no gradient.
        spectrum: Of the table's values, where it was asked for.
        drift: Since the earlier values that were given.
        silent_rows: Rows that got no gradient so far, by the state of the optimizer that was given.
    """

    name: str
    state: str
    roles: Mapping[Role, RoleGradient]
    role_cosine: float | None = None
    unaccounted: float | None = None
    spectrum: Spectrum | None = None
    drift: Drift | None = None
    silent_rows: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "name": self.name,
            "state": self.state,
            "roles": {k: v.to_dict() for k, v in self.roles.items()},
            "role_cosine": self.role_cosine,
            "unaccounted": self.unaccounted,
            "spectrum": None if self.spectrum is None else dataclasses.asdict(self.spectrum),
            "drift": None if self.drift is None else dataclasses.asdict(self.drift),
            "silent_rows": self.silent_rows,
        }


@dataclass(frozen=True)
class Measurement:
    """What `tiebeam.measure` found. What could not be measured is None, with the reason in `notes`.

    Attributes:
        initial_loss: The loss of the pass. Unit: nats, where it is a cross entropy.
        loss: The same number, by the name that records and printouts give it.
        targets: Where the right tokens came from.
        log_vocab: ln of the vocabulary, the loss of uniform logits.
        logit_std: Std of the logits before a soft cap.
        hidden_rms: Root mean square where the walk back from the readout ends.
        lookup_rms: Root mean square of the rows after their factor.
        kappa: Mean cosine of the stream that enters the readout's normalisation with the row looked up.
        own_logit: Mean logit of the token just read.
        own_rank: Its mean rank among the logits, 1 being first; (vocab + 1) / 2 by chance.
        roles: The main table's gradients by role: of a tied table, or of a table read out and the one looked up.
        role_ratio: Norm of the lookup's gradient over the readout's.
        role_cosine: Cosine of the two, where they go to one table.
        tables: Gradients of every table.
        repeats: Share of positions whose next token is the same token.
        predicted: What the formulas of `core.moments` say of the main table.
    """

    model: str
    framework: str
    initial_loss: float
    targets: str
    log_vocab: float | None
    vocab: int | None
    logit_std: float | None
    hidden_rms: float | None
    lookup_rms: float | None
    kappa: float | None
    own_logit: float | None
    own_rank: float | None
    roles: Mapping[Role, RoleGradient]
    role_ratio: float | None
    role_cosine: float | None
    tables: tuple[TableGradient, ...] = ()
    repeats: float | None = None
    predicted: Predicted = field(default_factory=lambda: Predicted(math.nan))
    notes: tuple[str, ...] = ()

    renderers: ClassVar[dict[str, Callable[[Measurement], str]]] = {}

    @property
    def loss(self) -> float:
        """The loss of the pass: `initial_loss`."""
        return self.initial_loss

    @property
    def chance_rank(self) -> float | None:
        """The own token's mean rank among random logits."""
        return None if self.vocab is None else (self.vocab + 1) / 2

    def to_dict(self) -> dict[str, Any]:
        """Plain data, without gradients themselves. `schema` rises when a field changes its meaning."""
        mapped: dict[str, Any] = {
            "schema": SCHEMA_VERSION,
            "roles": {k: v.to_dict() for k, v in self.roles.items()},
            "chance_rank": self.chance_rank,
        }
        mapped |= {"tables": [t.to_dict() for t in self.tables], "predicted": dataclasses.asdict(self.predicted)}
        plain = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in mapped}
        return {**plain, **mapped, "notes": list(self.notes)}

    def to_markdown(self) -> str:
        return self.renderers["markdown"](self)

    def to_html(self) -> str:
        return self.renderers["html"](self)

    def to_json(self) -> str:
        return self.renderers["json"](self)

    def __str__(self) -> str:
        found = figures(self)
        wide = max(len(name) for name, _ in found)
        lines = [f"{self.model} ({self.framework})", *(f"  {name:<{wide}}  {value}" for name, value in found)]
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])


def assemble(
    model: str,
    framework: str,
    tables: tuple[Table, ...],
    asked: Wanted,
    passed: Passed,
    notes: tuple[str, ...] = (),
    repeats: float | None = None,
) -> Measurement:
    """Put together what was measured.

    Args:
        tables: In the order that `asked` counts in.
        passed: The backend's answer.
        notes: More to be said.
        repeats: Share of positions whose next token is the same token.
    """
    looked_up, read_out = (None if i is None else tables[i] for i in asked.main)
    gradients = tuple(_gradients(i, t, passed) for i, t in enumerate(tables))
    roles: dict[Role, RoleGradient] = {}
    for role, i in zip(ROLES, asked.main, strict=True):
        if i is not None and role in gradients[i].roles:
            roles[role] = gradients[i].roles[role]
    one = asked.main[0] if asked.main[0] == asked.main[1] else None
    predicted = read_out or looked_up
    return Measurement(
        model=model,
        framework=framework,
        initial_loss=passed.loss,
        targets=passed.targets,
        vocab=None if read_out is None else read_out.vocab,
        log_vocab=None if read_out is None else math.log(read_out.vocab),
        logit_std=None if read_out is None else root_mean_square([r.logit_std for r in read_out.readouts]),
        hidden_rms=None if read_out is None else read_out.hidden_rms,
        lookup_rms=None if looked_up is None else root_mean_square([r.rms for r in looked_up.lookups]),
        kappa=None if read_out is None else next((r.kappa for r in read_out.readouts if r.kappa is not None), None),
        own_logit=passed.own_logit,
        own_rank=passed.own_rank,
        roles=roles,
        role_ratio=_ratio(roles),
        role_cosine=None if one is None else gradients[one].role_cosine,
        tables=gradients,
        repeats=repeats,
        predicted=Predicted(math.nan) if predicted is None else predicted.predicted,
        notes=tuple(dict.fromkeys((*passed.notes, *_said(tables, gradients), *notes))),
    )


def _gradients(index: int, table: Table, passed: Passed) -> TableGradient:
    roles: dict[Role, RoleGradient] = {}
    facts: dict[Role, tuple[Lookup | Readout, ...]] = {"lookup": table.lookups, "readout": table.readouts}
    for role in ROLES:
        if facts[role]:
            cut = table.trainable and not any(f.gradient for f in facts[role])
            sent = Sent(0.0, 0) if cut else passed.sent.get((index, role))
            known = (None, None, None) if sent is None else (sent.norm, sent.rows, sent.grad)
            roles[role] = RoleGradient(table.name, table.vocab, *known)
    gram = passed.grams.get(index)
    return TableGradient(
        name=table.name,
        state=table.state,
        roles=roles,
        role_cosine=passed.cosine.get(index),
        unaccounted=passed.unaccounted.get(index),
        spectrum=None if gram is None else spectrum(gram),
        drift=passed.drift.get(index),
        silent_rows=passed.silent.get(index),
    )


def _ratio(roles: Mapping[Role, RoleGradient]) -> float | None:
    lookup, readout = (roles[r].grad_norm if r in roles else None for r in ROLES)
    return None if lookup is None or not readout else lookup / readout


def _said(tables: tuple[Table, ...], gradients: tuple[TableGradient, ...]) -> list[str]:
    """Why a gradient is missing, or is not all there."""
    notes = []
    for table, found in zip(tables, gradients, strict=True):
        if not table.trainable:
            notes.append(f"{table.name!r} is frozen: it gets no gradient")
        cut = {f.where: "lookup" if isinstance(f, Lookup) else "readout" for f in _uses(table) if not f.gradient}
        notes += [
            f"{table.name!r}: no gradient comes back from the {role} in {where or 'the model'!r}"
            for where, role in cut.items()
        ]
        overflowing = [r for r, g in found.roles.items() if g.grad_norm is not None and not math.isfinite(g.grad_norm)]
        notes += [f"{table.name!r}: the gradient that its {role} sends is not finite" for role in overflowing]
        if not overflowing and found.unaccounted is not None and not found.unaccounted <= UNACCOUNTED:
            notes.append(
                f"{table.name!r}: {found.unaccounted:.2g} of its gradient's norm comes in ways that are no lookup and "
                "no readout, or could not be told apart"
            )
    return notes


def _uses(table: Table) -> tuple[Lookup | Readout, ...]:
    return (*table.lookups, *table.readouts)


def figures(m: Measurement) -> list[tuple[str, str]]:
    """What was measured, as labels and what is said of them."""

    def show(value: float | None, unit: str = "") -> str:
        return "unknown" if value is None else f"{value:{',.0f' if 1e4 <= abs(value) < 1e9 else '.4g'}}{unit}"

    found = [
        ("loss", f"{show(m.initial_loss)} ({m.targets}; uniform logits have {show(m.log_vocab)})"),
        ("logit std", show(m.logit_std)),
        ("hidden rms", show(m.hidden_rms)),
        ("lookup rms", show(m.lookup_rms)),
        ("kappa", show(m.kappa)),
        ("own logit", show(m.own_logit)),
        ("own rank", f"{show(m.own_rank)} (chance is {show(m.chance_rank)})"),
    ]
    found += [
        (f"{role} gradient", f"{show(g.grad_norm)} on {'unknown' if g.rows is None else g.rows} of {g.vocab} rows")
        for role, g in m.roles.items()
    ]
    found += [("lookup / readout", show(m.role_ratio)), ("cosine of the two", show(m.role_cosine))]
    for t in m.tables:
        if t.spectrum is not None:
            found.append((f"rank of {t.name}", f"{show(t.spectrum.effective_rank)} of {len(t.spectrum.values)}"))
        if t.drift is not None:
            along = f"along the readout's descent {show(t.drift.readout)}, the lookup's {show(t.drift.lookup)}"
            found.append((f"drift of {t.name}", f"{show(t.drift.moved)} of its norm; {along}"))
        if t.silent_rows is not None:
            found.append((f"rows of {t.name}", f"{t.silent_rows} got no gradient so far"))
    return found
