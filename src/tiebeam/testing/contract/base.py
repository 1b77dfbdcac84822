"""What every part of the contract stands on: models of a blueprint, and one way to look at and draw them."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import pytest

import tiebeam
from tiebeam.backends import entry_of
from tiebeam.errors import TiebeamError
from tiebeam.zoo.blueprint import Blueprint, Builder, Built, Floats

OTHER_STD = 0.3
Ability = Literal["abstract", "bfloat16"]


@dataclass(frozen=True, slots=True)
class Refusal:
    """What a framework cannot do, and how that is said.

    Attributes:
        reason: Why, for whoever reads the tests.
        error: What is raised instead.
        says: Regular expression that its message holds.

    Example:
        >>> Refusal("its layers have values as soon as they are built", ValueError, "no abstract").error.__name__
        'ValueError'
    """

    reason: str
    error: type[Exception]
    says: str


class Base:
    """The builder, what it cannot do, and the helpers of the sentences."""

    builder: ClassVar[Builder]
    cannot: ClassVar[Mapping[Ability, Refusal]] = {}
    _seen: ClassVar[dict[Blueprint, tiebeam.Report]]
    _settled: ClassVar[dict[Blueprint, tuple[dict[str, Floats], tiebeam.Report]]]

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        cls._seen, cls._settled = {}, {}

    def build(self, blueprint: Blueprint, weights: Mapping[str, Floats] | None = None, dtype: str = "float32") -> Built:
        """The blueprint with these weights, or with those it draws itself."""
        return self.builder.build(blueprint, blueprint.weights() if weights is None else weights, dtype)

    def inspected(self, blueprint: Blueprint, weights: Mapping[str, Floats] | None = None) -> tiebeam.Report:
        """The report of a model on the blueprint's inputs; of its own weights there is one for all sentences."""
        if weights is not None:
            return self.look(self.build(blueprint, weights), blueprint.inputs())
        if blueprint not in self._seen:
            self._seen[blueprint] = self.look(self.build(blueprint), blueprint.inputs())
        return self._seen[blueprint]

    def look(self, built: Built, inputs: Any) -> tiebeam.Report:
        """`tiebeam.inspect`, with params where the model takes some."""
        return tiebeam.inspect(built.model, inputs, params=built.params)

    def functional(self, built: Built) -> bool:
        """Whether writing gives a new tree."""
        return entry_of(built.model, built.params).functional

    def draw(self, built: Built, inputs: Any, **how: Any) -> tuple[Any, tiebeam.Report]:
        """What holds the weights after drawing the tables, and the report."""
        if self.functional(built):
            return tiebeam.initialize_params(built.model, inputs, built.params, **how)
        return built.model, tiebeam.initialize(built.model, inputs, **how)

    def drawn(self, built: Built, inputs: Any, **how: Any) -> dict[str, Floats]:
        """The weights after drawing the tables."""
        return built.arrays(self.draw(built, inputs, **how)[0])

    def settled(self, blueprint: Blueprint) -> tuple[dict[str, Floats], tiebeam.Report]:
        """Weights and report after drawing tables that had another std; once for all sentences."""
        if blueprint not in self._settled:
            built = self.build(blueprint, blueprint.weights(std=OTHER_STD))
            holder, report = self.draw(built, blueprint.inputs())
            self._settled[blueprint] = built.arrays(holder), report
        return self._settled[blueprint]

    def rebuilt(self, blueprint: Blueprint, weights: Mapping[str, Floats], built: Built) -> Floats:
        """What a model of these weights returns, run by the framework alone."""
        return built.logits(self.build(blueprint, weights).holder, blueprint.inputs())

    def able(self, ability: Ability, act: Callable[[], Any]) -> bool:
        """Whether the framework has an ability; where it says no, that `act` is refused as it says."""
        refusal = self.cannot.get(ability)
        if refusal is None:
            return True
        assert refusal.reason, f"cannot[{ability!r}] gives no reason"
        with pytest.raises(refusal.error, match=refusal.says):
            act()
        return False

    def random_states(self) -> tuple[Any, ...]:
        """Every generator that a pass could move."""
        return random.getstate(), repr(np.random.get_state(legacy=False)), self.builder.random_state()  # noqa: NPY002


def only(report: tiebeam.Report) -> tiebeam.Table:
    """The one table of a report."""
    assert len(report.tables) == 1, [t.names for t in report.tables]
    return report.tables[0]


def pair(report: tiebeam.Report) -> tuple[tiebeam.Table, tiebeam.Table]:
    """The table that is looked up and the one that is read out."""
    assert len(report.tables) == 2, [t.names for t in report.tables]
    lookup, readout = report.tables
    assert lookup.lookups, "the first table is no lookup"
    assert readout.readouts, "the second table is no readout"
    return lookup, readout


def codes(report: tiebeam.Report) -> set[str]:
    """Codes of the findings that call for mending."""
    return {f.code for f in report.findings if f.severity != "info"}


def same(a: Mapping[str, Floats], b: Mapping[str, Floats], but: tuple[str, ...] = ()) -> bool:
    """Whether two sets of weights are equal to the bit, some of them left out."""
    return a.keys() == b.keys() and all(a[n].tobytes() == b[n].tobytes() for n in a if n not in but)


def said(error: TiebeamError) -> str:
    """The message of a refusal, which must say what was got, what was expected, and what to do."""
    for part in ("got: ", "expected: ", "Hint: "):
        assert part in str(error), f"the message has no {part!r}:\n{error}"
    return str(error)
