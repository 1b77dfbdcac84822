"""The group plan: which parameter is trained at which share of the learning rate and the decay."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal

from tiebeam.core.facts import Table
from tiebeam.core.initialising.init import could_be_a_layer
from tiebeam.core.report import Report
from tiebeam.core.training.optimizers import POWERS, Quantity, Rule, rule
from tiebeam.errors import InputError, RangeError

Kind = Literal["matrices", "embeddings", "vectors", "table"]

ROUND = 1e-4
"""Relative distance to a power of two within which a measured ratio is that power."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a model, as the plan needs it.

    Attributes:
        names: Every path of this one object, owner first.
        axes: How many it has, those of size one left out.
        embedding: It belongs to a layer that does nothing but look rows up (learned positions, for one).
        trainable: Whether gradients are asked for.
    """

    names: tuple[str, ...]
    axes: int
    embedding: bool = False
    trainable: bool = True


@dataclass(frozen=True, slots=True)
class Group:
    """Parameters that are trained alike.

    Attributes:
        names: Owners' paths, in the model's order.
        ratio: `c` of the rule; 1 for all but tables.
        rate: Multiplies the learning rate.
        decay: Multiplies the weight decay; 0 where none is due.
    """

    kind: Kind
    names: tuple[str, ...]
    ratio: float = 1.0
    rate: float = 1.0
    decay: float = 1.0

    def factor(self, quantity: Quantity) -> float:
        """What multiplies a setting that stands beside such a quantity.

        Example:
            >>> Group("table", ("wte",), ratio=4.0).factor("gradient")
            0.25
        """
        return self.ratio ** POWERS[quantity]


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """Groups that partition a model's trainable parameters; none is empty.

    Attributes:
        optimizer: The family whose rule was taken.
        base_width: The width at which the learning rate was found, or None.
        notes: What was left out or left alone, and why.
    """

    optimizer: str
    groups: tuple[Group, ...]
    base_width: int | None = None
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return dataclasses.asdict(self)


def plan_groups(
    parameters: Sequence[Parameter],
    tables: Sequence[Table],
    *,
    optimizer: str = "adamw",
    base_width: int | None = None,
    base_readout_factor: float = 1.0,
    ratios: Mapping[str, float] | None = None,
    decoupled: bool = False,
) -> GroupPlan:
    """Plan the groups of a model.

    Vectors (norms, biases; by their axes, never by name) are not decayed; nor is a table that is a lookup alone, for
    a row that no batch holds has no gradient to set against a decay. Other embeddings stay with the rest.

    Args:
        parameters: All of the model, each object once.
        tables: Of a report on that model.
        optimizer: Family; see `tiebeam.core.training.optimizers.RULES`.
        base_width: Width at which the learning rate was found: body rates are multiplied by `base_width / width`.
        base_readout_factor: The readout factor that the model has at that width.
        ratios: `c` by a table's name, where it is not to be the report's.
        decoupled: The decay, times the rate, is subtracted beside the step, whatever the family does elsewhere.

    Raises:
        RangeError: No rule holds, a ratio is unknown or no positive number, or `base_width` does not apply.
        InputError: A table is aliased or not the model's, or nothing is trainable.

    Source: `tiebeam.core.training.optimizers`; for `base_width` Yang et al. 2022 (arXiv 2203.03466), table 8, Adam
    column.

    Example:
        >>> from tiebeam.core.facts import Readout
        >>> table = Table(("wte",), 50, 16, "float32", "tied", readouts=(Readout("wte", "", 0.25),), lr_ratio=4.0)
        >>> plan = plan_groups([Parameter(("wte",), 2), Parameter(("mlp",), 2), Parameter(("norm",), 1)], [table])
        >>> [(g.kind, g.rate, g.decay) for g in plan.groups]
        [('matrices', 1.0, 1.0), ('vectors', 1.0, 0.0), ('table', 4.0, 0.25)]
    """
    law = rule(optimizer)
    notes: list[str] = []
    mine = _tables(parameters, tables, notes)
    body = _shrink(law, [t for t in mine.values() if t.readouts], base_width, base_readout_factor, notes)
    grouped: dict[Kind, list[str]] = {"matrices": [], "embeddings": [], "vectors": []}
    for p in parameters:
        if p.trainable and p.names[0] not in mine:
            grouped[_kind(p, apart=base_width is not None or law.matrices)].append(p.names[0])
    shares = {"matrices": (body, 1.0), "embeddings": (1.0, 1.0), "vectors": (1.0, 0.0)}
    groups = [Group(k, tuple(n), 1.0, *shares[k]) for k, n in grouped.items() if n]
    unused = dict(ratios or {})
    for owner, table in mine.items():
        said = [unused.pop(n) for n in (owner, *table.names) if n in unused]
        c = _checked(owner, said[0]) if said else _ratio(table)
        decay = c ** law.decay_power(decoupled=decoupled) if table.readouts else 0.0
        rate = c**law.rate * (body if table.readouts else 1.0)
        groups.append(Group("table", (owner,), c, rate, decay))
    if unused:
        raise InputError(
            "ratios= names what is no trainable table", got=", ".join(unused), expected=", ".join(mine) or "none",
            hint="a key is a table's name, as report.tables has it: [t.name for t in report.tables]",
        )  # fmt: skip
    if not groups:
        raise InputError(
            "there is nothing to train", got=f"{len(parameters)} parameters, all frozen",
            hint="unfreeze some with requires_grad_(True) before making the groups",
        )  # fmt: skip
    return GroupPlan(law.name, tuple(groups), base_width, tuple(notes))


def _kind(p: Parameter, *, apart: bool) -> Kind:
    if p.axes < 2:
        return "vectors"
    return "embeddings" if p.embedding and apart else "matrices"


def owners_of(table: Table, parameters: Sequence[Parameter]) -> tuple[Parameter, ...]:
    """The parameters that a table is: one, or several on one storage.

    Raises:
        InputError: None, or more than there were.
    """
    held = tuple(p for p in parameters if set(p.names).intersection(table.names))
    if not held:
        raise InputError(
            f"the report's table {table.name!r} is no parameter of this model",
            got=", ".join(table.names),
            expected="a report on this very model, wrapped as it is now",
            hint="call tiebeam.inspect on it again",
        )
    trained = [p.names[0] for p in held if p.trainable]
    if len(trained) > 1 and table.state in ("tied", "untied"):
        raise InputError(
            f"the table {table.name!r} was one parameter when the report was made",
            got=f"{len(trained)} parameters now: {', '.join(trained)}",
            expected="one: loading with assign=True, copying or moving has broken the tie, or the report is of another "
            "model",
            hint="tie them again where it has; then, on this very model, call tiebeam.inspect again",
        )
    return held


def _tables(parameters: Sequence[Parameter], tables: Sequence[Table], notes: list[str]) -> dict[str, Table]:
    """Trainable tables by their owner's path in `parameters`."""
    found: dict[str, Table] = {}
    for t in tables:
        held = owners_of(t, parameters)
        if t.state == "aliased" and sum(p.trainable for p in held) > 1:
            raise InputError(
                f"{' and '.join(repr(p.names[0]) for p in held)} are two parameters on one storage",
                got="each holds a part of the gradient, so one group would train on half and two would step twice",
                expected="one parameter in both roles",
                hint="tie them first: give both modules one parameter object (the report's fix does)",
            )
        if could_be_a_layer(t):
            notes.append(f"{t.name} is square and only multiplied: it stays with the matrices")
        elif not any(p.trainable for p in held):
            notes.append(f"{t.name} is frozen: it is in no group")
        else:
            found[next(p.names[0] for p in held if p.trainable)] = t
    return found


def _ratio(table: Table) -> float:
    if table.lr_ratio is None:
        raise RangeError(
            f"the learning-rate ratio of table {table.name!r} is not known",
            got="; ".join(table.notes) or "no measured hidden state: the readout stands behind no normalisation",
            expected="a known readout factor and hidden state",
            hint=f"inspect the model on real tensors, or say it yourself: ratios={{{table.name!r}: 1.0}} leaves the "
            "table at the rate of the rest",
        )
    return _round(table.lr_ratio)


def _round(c: float) -> float:
    """A ratio, or the power of two within 1e-4 of it: a normalisation's eps takes so much from the hidden RMS.

    The rule holds for every `c`, so nothing is lost; and scaling by a power of two is exact.
    """
    power: float = 2.0 ** round(math.log2(c)) if math.isfinite(c) and c > 0 else c
    return power if math.isclose(c, power, rel_tol=ROUND) else c


def check_rates(**given: Any) -> None:
    """Refuse rates and decays that no optimizer trains by; arrays and schedules are let through, and None.

    Raises:
        RangeError: One is negative or not finite, or no number.

    Example:
        >>> check_rates(lr=1e-3, weight_decay=0.0)
    """
    for name, value in given.items():
        wrong = isinstance(value, Real) and not 0 <= float(value) < math.inf
        if wrong or isinstance(value, str):  # optimizers check their own defaults, never those of a group
            hint = f"{name}=float({name}): YAML reads 1e-3 as text, and 1.0e-3 as a number" if not wrong else ""
            raise RangeError(f"{name} is no rate", got=repr(value), expected="a number, 0 or more", hint=hint)


def check_beside(law: Rule, beside: object, beside_lr: object, *, example: str) -> None:
    """Refuse an optimizer of matrices that stands alone, and a second one beside what trains everything.

    Args:
        beside, beside_lr: The optimizer for the tables and the rest, and its rate, or None.
        example: One of the framework's, for the hint.

    Raises:
        RangeError: One is missing, or too many.
    """
    if law.matrices and (beside is None or beside_lr is None):
        raise RangeError(
            f"{law.name} takes the matrices of the body alone",
            got="no optimizer for the tables and the rest",
            expected="beside= and beside_lr=",
            hint=f"beside={example}, beside_lr=1e-3",
        )
    if beside is not None and not law.matrices:
        raise RangeError(
            f"{law.name} trains all parameters", got="beside=", expected="muon, shampoo or soap", hint="leave it out"
        )


def check_report(report: Any) -> None:
    """Refuse what is no report.

    Raises:
        InputError: It is none.
    """
    if not isinstance(report, Report):
        raise InputError(
            "a report on the model is needed: it says which parameter is a table",
            got=repr(report) if report is None else type(report).__name__,
            expected="what tiebeam.inspect or tiebeam.initialize returns",
            hint="report = tiebeam.inspect(model, inputs)",
        )


def check_factory(factory: object, *, example: str) -> None:
    """Refuse the name of an optimizer, or anything else that cannot be called, in the place of one.

    Args:
        factory: What makes the optimizer.
        example: One of the framework's, for the hint.

    Raises:
        InputError: It cannot be called.
    """
    if not callable(factory):
        raise InputError(
            "the factory is to be called, once for each group",
            got=repr(factory) if isinstance(factory, str) or factory is None else type(factory).__name__,
            expected="what makes the optimizer, not its name",
            hint=f"pass {example}",
        )


def split_matrices(groups: Sequence[Group], fits: Callable[[str], bool]) -> list[Group]:
    """Set apart, as embeddings, the matrices of the body that an optimizer of matrices does not take.

    Args:
        fits: Whether it takes the matrix of that name.

    Example:
        >>> found = split_matrices([Group("matrices", ("mlp", "head"))], lambda name: name == "mlp")
        >>> [(g.kind, g.names) for g in found]
        [('matrices', ('mlp',)), ('embeddings', ('head',))]
    """
    found: list[Group] = []
    for group in groups:
        if group.kind != "matrices":
            found.append(group)
            continue
        taken = {n: fits(n) for n in group.names}
        found.append(dataclasses.replace(group, names=tuple(n for n, fit in taken.items() if fit)))
        found.append(
            dataclasses.replace(group, kind="embeddings", names=tuple(n for n, fit in taken.items() if not fit))
        )
    return [g for g in found if g.names]


def _checked(name: str, value: float) -> float:
    if not (math.isfinite(value) and value > 0):
        raise RangeError(f"ratios[{name!r}]", got=repr(value), expected="a positive number")
    return float(value)


def _shrink(
    law: Rule, readouts: Collection[Table], base_width: int | None, base_factor: float, notes: list[str]
) -> float:
    """What the width takes from the body's rate.

    The step of a matrix moves each output by its fan-in times the rate, so the rate goes as 1/width. A table in a
    readout is `c * U` with `c` growing as the width where the readout factor goes as 1/width: its rate, `c` times
    the body's, then stays, and a row moves by as much at every width.
    """
    if base_width is None:
        return 1.0
    if base_width < 1:
        raise RangeError("base_width", got=repr(base_width), expected="1 or more")
    if not law.entrywise:
        raise RangeError(
            f"base_width does not apply to {law.name}",
            got="steps whose size is not the rate's, so the rate does not go as 1/width",
            expected="an optimizer that normalises each entry (adamw, adam, lion, rmsprop, adagrad)",
            hint="leave base_width out and scale the rate by that optimizer's own rule",
        )
    widths = {t.width for t in readouts}
    if len(widths) != 1:
        raise RangeError(
            "base_width needs the model's width",
            got=f"trainable readouts of widths {sorted(widths)}" if widths else "no trainable readout",
            expected="readouts of one width",
        )
    width = widths.pop()
    for t in readouts:
        wanted = base_factor * base_width / width
        if t.readout_factor is None or not math.isclose(abs(t.readout_factor), abs(wanted), rel_tol=1e-2):
            raise RangeError(
                f"the readout factor of {t.name!r} does not go as 1/width, so one rate cannot serve every width",
                got=f"readout_factor {t.readout_factor} at width {width}",
                expected=f"{wanted:g}: base_readout_factor {base_factor:g} at width {base_width}, times "
                f"{base_width}/{width}",
                hint="multiply the logits by base_width / width in forward"
                + (f" (a factor of {wanted / t.readout_factor:.4g} is missing)" if t.readout_factor else "")
                + ", or say base_readout_factor= where the model has another one at base_width",
            )
        if (
            t.lookup_factor
            and math.isclose(abs(t.lookup_factor), math.sqrt(width), rel_tol=1e-2)
            and width != base_width
        ):
            notes.append(
                f"the lookup factor of {t.name} is sqrt(width): beside a readout factor of 1/width the looked-up rows "
                "then move more the wider the model"
            )
    return base_width / width
