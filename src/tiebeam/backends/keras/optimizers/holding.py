"""What Keras optimizers hold of a model, as facts for core; read, never written."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from tiebeam.backends.keras.inputs import host
from tiebeam.backends.keras.model import of_keras
from tiebeam.backends.keras.optimizers.grouped import OF_ALL, GroupedOptimizer, Share
from tiebeam.backends.keras.optimizers.groups import UNDER_THE_ROOT, family_in, parameters_of, trained_tables
from tiebeam.core.findings.optimizers import HeldGroup, OptimizerFacts, Schedule
from tiebeam.core.report import Report
from tiebeam.core.training.groups import owners_of
from tiebeam.core.training.optimizers import RULES
from tiebeam.errors import InputError

COUNTS = (0, 1, 2, 5, *(int(10 ** (k / 4)) for k in range(4, 25)))
"""Steps at which a schedule is looked at: up to a million."""


@dataclass(frozen=True)
class Part:
    """Variables that one optimizer of Keras steps alike.

    Attributes:
        one: The optimizer.
        place: For messages.
        family: What it does to these, or None.
        variables: Of the model.
        factor: Multiplies the optimizer's rate for these.
        decay: Its weight decay of these, or None.
    """

    one: Any
    place: str
    family: str | None
    variables: Sequence[Any]
    factor: float = 1.0
    decay: float | None = None


def facts_of(
    optimizer: Any, model: Any, report: Report, scheduler: Any = None, family: str | None = None
) -> tuple[OptimizerFacts, tuple[str, ...]]:
    """Facts of one or several optimizers of a model, and what could not be read.

    Raises:
        InputError: One is no optimizer of Keras or does not say what it trains, the report is of another model, or a
            scheduler stands beside it.
    """
    if scheduler is not None:
        raise InputError(
            "a schedule is a part of a Keras optimizer",
            got=f"a {type(scheduler).__name__} beside it",
            expected="the optimizer alone",
        )
    view = of_keras(model)
    several = isinstance(optimizer, Sequence)
    given = list(optimizer) if several else [optimizer]
    name_of = {id(v.variable): v for v in view.variables.all}
    parts, homes, notes = [], [], list[str]()
    for k, one in enumerate(given):
        found = _parts(one, model, f" of optimizer {k}" if several else "", notes)
        parts += found
        homes += [k] * len(found)
    # Rates of one family alone can be compared, so each counts as an optimizer of its own.
    kinds = {pair: i for i, pair in enumerate(dict.fromkeys(zip(homes, (p.family for p in parts), strict=True)))}
    groups = [_held(p, kinds[k, p.family], name_of, family) for p, k in zip(parts, homes, strict=True)]
    parameters = parameters_of(view)
    tables = trained_tables(report.tables, view.variables)
    owners = {t.name: tuple(p.names[0] for p in owners_of(t, parameters) if p.trainable) for t in tables}
    stepped = {n for g in groups for n in g.elements}
    facts = OptimizerFacts(
        tables=tables,
        owners={name: several for name, several in owners.items() if several},
        groups=groups,
        fixes=KerasOptimizerFixes(given, groups),
        stale=sum(id(v) not in name_of for part in parts for v in part.variables),
        missing=[p.names[0] for p in parameters if p.trainable and p.names[0] not in stepped],
        schedules=_schedules(parts),
    )
    return facts, tuple(notes)


def _parts(optimizer: Any, model: Any, of: str, notes: list[str]) -> list[Part]:
    """What is stepped alike, out of optimizers that hold others."""
    one = optimizer
    while hasattr(one, "inner_optimizer"):  # what scales the loss
        one = one.inner_optimizer
    if not isinstance(one, keras.optimizers.Optimizer):
        raise InputError(
            f"a {type(optimizer).__name__} is no optimizer of Keras",
            got="a model of Keras beside it",
            expected="a keras.optimizers.Optimizer, or a list of them",
            hint="model.optimizer, once the model is compiled",
        )
    if isinstance(one, GroupedOptimizer):
        held = enumerate(zip(one.groups, one.kinds, strict=True))
        return [p for i, (inner, kind) in held for p in _split(inner, one.variables_of(i), f"the group of {kind}{of}")]
    inner_ones = getattr(one, "optimizers", None)
    if isinstance(inner_ones, list):  # Keras' own way to have several
        if not one.built:
            raise InputError(
                f"the {type(one).__name__} does not say yet what each of its optimizers trains",
                got="an optimizer that is not built",
                hint="optimizer.build(model.trainable_variables)",
            )
        built = [inner for inner in inner_ones if inner.built]
        return [p for i, inner in enumerate(built) for p in _split(inner, inner._trainable_variables, f"group {i}{of}")]
    if not one.built:
        notes.append(f"the {type(one).__name__} is not built: it will train what is trainable when it is")
    return _split(one, one._trainable_variables if one.built else model.trainable_variables, f"the optimizer{of}")


def _split(one: Any, variables: Sequence[Any], place: str) -> list[Part]:
    """One part, or what Muon steps and what it leaves to the Adam in it."""
    decay = getattr(one, "weight_decay", None)
    chooses = getattr(one, "_should_use_adamw", None)
    if chooses is None:
        return [Part(one, place, family_in(type(one)), variables, decay=decay)]
    adam = [v for v in variables if chooses(v)]
    muon = [v for v in variables if not chooses(v)]
    ratio = float(getattr(one, "adam_lr_ratio", 1.0))
    beside = Part(one, f"{place}, its Adam", "adamw", adam, ratio, getattr(one, "adam_weight_decay", None))
    return [p for p in (Part(one, place, "muon", muon, decay=decay), beside) if p.variables]


def _held(part: Part, k: int, name_of: Mapping[int, Any], family: str | None) -> HeldGroup:
    counts_as = family or part.family
    eps = None if counts_as in UNDER_THE_ROOT else getattr(part.one, "epsilon", None)
    known = [name_of[id(v)] for v in part.variables if id(v) in name_of]
    rates = [rate_at(part.one, count) for count in (COUNTS if _scheduled(part.one) else COUNTS[:1])]
    return HeldGroup(
        place=part.place,
        optimizer=k,
        family=counts_as,
        lr=part.factor * max(rates),
        weight_decay=None if part.decay is None else float(part.decay),
        eps=None if eps is None else float(eps),
        elements={v.name: v.size for v in known},
        decoupled=True,
    )


def _scheduled(one: Any) -> Any:
    """The schedule that an optimizer follows, or None."""
    rate = one._learning_rate
    if isinstance(rate, Share):
        return rate.schedule or _scheduled(rate.whole)
    return rate if isinstance(rate, keras.optimizers.schedules.LearningRateSchedule) else None


def rate_at(one: Any, count: int) -> float:
    """The learning rate of an optimizer at a step."""
    rate = one._learning_rate
    if isinstance(rate, Share):
        own = rate_at(rate.whole, count) if rate.schedule is None else _number(rate.schedule(count))
        return rate.factor * own
    if isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
        return _number(rate(count))
    return _number(rate() if callable(rate) and not keras.ops.is_tensor(rate) and not _variable(rate) else rate)


def _variable(value: Any) -> bool:
    return isinstance(value, keras.Variable)


def _number(value: Any) -> float:
    return float(host(keras.ops.convert_to_tensor(value)))


def _schedules(parts: Sequence[Part]) -> list[Schedule]:
    kinds = [type(s).__name__ for p in parts if (s := _scheduled(p.one)) is not None]
    if not kinds:
        return []
    rates = np.asarray([[p.factor * rate_at(p.one, count) for p in parts] for count in COUNTS], dtype=np.float64)
    return [Schedule(kinds[0], rates, 0, [True] * len(parts), True, COUNTS)]


class KerasOptimizerFixes:
    """`core.findings.optimizers.OptimizerFixes` for Keras: a built optimizer is made anew, not regrouped."""

    def __init__(self, given: Sequence[Any], groups: Sequence[HeldGroup]) -> None:
        self.given, self.groups = given, groups

    def rebuild(self) -> str:
        """Only of one plain optimizer whose rule is known and whose settings can be written down."""
        one = self.given[0]
        families = {g.family for g in self.groups}
        law = RULES.get(next(iter(families)) or "") if len(families) == 1 else None
        if len(self.given) > 1 or law is None or law.matrices or hasattr(one, "inner_optimizer"):
            return ""
        grouped = isinstance(one, GroupedOptimizer)
        if not grouped and hasattr(one, "optimizers"):
            return ""
        kind = f"type(optimizer{'.groups[0]' if grouped else ''})"
        settings = _settings(one.groups[0] if grouped else one)
        settings |= {k: v for k, v in _settings(one).items() if k in OF_ALL}
        more = "".join(f", {k}={v!r}" for k, v in settings.items())
        if _scheduled(one) is None:
            return f"optimizer = tiebeam.keras.optimizer({kind}, model, report, lr={rate_at(one, 0):.7g}{more})"
        return (
            "from keras.optimizers import schedules\n"
            'schedule = schedules.deserialize(optimizer.get_config()["learning_rate"])\n'
            f"optimizer = tiebeam.keras.optimizer({kind}, model, report, lr=schedule{more})"
        )

    def regroup(self, owner: str, home: int, **settings: float) -> str:
        return self.rebuild()

    def keep_ratio(self, owner: str, ratio: float) -> str:
        return self.rebuild()


def _settings(one: Any) -> dict[str, Any]:
    """What an optimizer was made with, where that is not what it takes by itself."""
    taken = inspect.signature(type(one).__init__).parameters
    return {
        k: v
        for k, v in one.get_config().items()
        if k in taken and k not in ("name", "learning_rate") and v != taken[k].default
        if isinstance(v, bool | int | float | str)
    }
