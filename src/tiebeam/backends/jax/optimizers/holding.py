"""What an optax transformation does to a model's tables, as facts for core.

A transformation is two closures: nothing in it can be read. So it is tried out, on arrays of one element with the
params' structure: how far it moves each leaf, now and at later counts; whether the move grows with the gradient or
with the parameter, which tells the unit of its rate; and whether a leaf without gradient shrinks.
"""

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import tree_util

from tiebeam.backends.jax.kinds.tree import Tree, dotted, is_array
from tiebeam.backends.jax.optimizers.groups import fitting
from tiebeam.core.findings.optimizers import HeldGroup, OptimizerFacts, Schedule
from tiebeam.core.report import Report
from tiebeam.core.training.groups import Parameter, owners_of
from tiebeam.core.training.optimizers import RULES, family_of
from tiebeam.errors import InputError

COUNTS = (0, 1, 2, 5, *(int(10 ** (k / 4)) for k in range(4, 25)))
"""Steps at which a schedule is looked at: up to a million."""

SETTLING = 3
"""Steps before counters are moved: what counts steps is then told from other integers."""

OF_UNIT = {0: "lamb", 1: "adamw", 2: "sgd"}
"""For each power of the rate's unit a family that has it."""


class NoFixes:
    """A transformation is made by the caller's own code: there is none that could be printed."""

    def rebuild(self) -> str:
        """Nothing."""
        return ""

    def regroup(self, owner: str, home: int, **settings: float) -> str:
        """Nothing."""
        return ""

    def keep_ratio(self, owner: str, ratio: float) -> str:
        """Nothing."""
        return ""


def facts_of(
    optimizer: Any, model: Any, report: Report, scheduler: Any = None, family: str | None = None, params: Any = None
) -> tuple[OptimizerFacts, tuple[str, ...]]:
    """Facts of a transformation, and what could not be read.

    Raises:
        InputError: It is no transformation, does not take the params, or a scheduler stands beside it.
    """
    if scheduler is not None:
        raise InputError(
            "a schedule is a part of an optax transformation",
            got=f"a {type(scheduler).__name__} beside it",
            expected="the transformation alone",
        )
    tx = _transformation(optimizer)
    tree = _trained(model, params)
    named = Tree(tree)
    sizes = {n: int(np.prod(a.shape)) for n, a in zip(named.names, named.arrays, strict=True)}
    parameters = [
        Parameter((n,), a.ndim, trainable=bool(jnp.issubdtype(a.dtype, jnp.inexact)))
        for n, a in zip(named.names, named.arrays, strict=True)
    ]
    tables = fitting(report.tables, named.names)
    owners = {t.name: tuple(p.names[0] for p in owners_of(t, parameters) if p.trainable) for t in tables}
    of_tables = [n for several in owners.values() for n in several]
    tried = Trial(tx, tree, optimizer)
    rest = [p for p in parameters if p.trainable and p.names[0] not in of_tables]
    whole = tried.orthogonal([p.names[0] for p in parameters])
    # The rest's largest leaf speaks for it: that of Adam's part where matrices are stepped by another.
    apart = [[p for p in rest if (p.names[0] in whole) is kind] for kind in (False, True)]
    bodies = [max(ps, key=lambda p: (p.axes > 1, sizes[p.names[0]])).names[0] for ps in apart if ps]
    leaves = bodies + of_tables
    rates = tried.rates(leaves)
    moved = {n: float(rates[:, i].max()) for i, n in enumerate(leaves)}
    shrinks, units = tried.shrinks(leaves), tried.units(leaves)
    groups = []
    for n in leaves:
        counts_as = family or whole.get(n) or OF_UNIT.get(units[n])
        decay = shrinks[n] if counts_as == "adamw" else None  # elsewhere a decay joins what is normalised
        elements = {n: sizes[n]} if moved[n] else {}
        held = HeldGroup(f"leaf {n}", int(n in whole), counts_as, moved[n] or None, decay, None, elements, tried=True)
        groups.append(held)
    facts = OptimizerFacts(
        tables=tables,
        owners={k: v for k, v in owners.items() if v},
        groups=groups,
        fixes=NoFixes(),
        missing=[n for n in leaves if not moved[n]],
        schedules=[Schedule("the schedule in it", rates, 0, [True] * len(leaves), True, COUNTS)],
    )
    return facts, ()


def _transformation(optimizer: Any) -> Any:
    """The transformation itself, out of what accumulates gradients for it or holds its state."""
    inner = optimizer
    for attribute in ("tx", "inner_opt"):
        inner = getattr(inner, attribute, inner)
    if not (callable(getattr(inner, "init", None)) and callable(getattr(inner, "update", None))):
        raise InputError(
            f"a {type(optimizer).__name__} is no transformation",
            got="no init and update",
            expected="what optax.adamw(...) returns: a state holds no rates to look at",
            hint="pass the transformation that the state was made by",
        )
    return inner


def _trained(model: Any, params: Any) -> Any:
    """The tree of parameters that a transformation of this model is called with."""
    if params is not None:
        return params
    nnx = sys.modules.get("flax.nnx")  # no model of it is there where it was not imported
    if nnx is not None and isinstance(model, nnx.Module):
        return nnx.state(model, nnx.Param)
    # As eqx.filter(model, eqx.is_inexact_array) has it.
    return jax.tree.map(lambda x: x if is_array(x) and jnp.issubdtype(x.dtype, jnp.inexact) else None, model)


class Trial:
    """A transformation on arrays of one element.

    Args:
        tx: The transformation.
        tree: Of parameters, arrays or shapes.
        given: What the caller passed, for messages.
    """

    def __init__(self, tx: Any, tree: Any, given: Any) -> None:
        self.tx = tx
        self.tree = tree
        try:
            self.update = jax.jit(tx.update)
            self.start = self._state(1.0, 0.0)
        except (ValueError, TypeError, KeyError) as error:
            raise InputError(
                f"the {type(given).__name__} does not take these params: {type(error).__name__}: {error}",
                expected="the tree that its init and update are called with",
                hint="pass params=, that tree",
            ) from error

    def _filled(self, value: float) -> Any:
        """The params' structure, each array of one element, all of them `value`."""

        def fill(leaf: Any) -> Any:
            if not is_array(leaf):
                return leaf
            floating = jnp.issubdtype(leaf.dtype, jnp.inexact)
            return jnp.full((1,) * len(leaf.shape), value if floating else 0, leaf.dtype)

        return jax.tree.map(fill, self.tree)

    def _state(self, gradient: float, value: float) -> Any:
        """After a few steps of one gradient."""
        params = self._filled(value)
        state = self.tx.init(params)
        for _ in range(SETTLING):
            _, state = self.update(self._filled(gradient), state, params)
        return state

    def _moves(self, gradient: float, value: float, state: Any) -> dict[str, float]:
        updates, _ = self.update(self._filled(gradient), state, self._filled(value))
        found, _ = tree_util.tree_flatten_with_path(updates)
        return {dotted(path): -float(jnp.ravel(leaf)[0]) for path, leaf in found}

    def rates(self, leaves: list[str]) -> np.ndarray[Any, np.dtype[np.float64]]:
        """How far a gradient of 1 moves each leaf, at each of `COUNTS`: (counts, leaves)."""
        rows = [self._moves(1.0, 0.0, _counted(self.start, count)) for count in COUNTS]
        return np.asarray([[max(row[n], 0.0) for n in leaves] for row in rows], dtype=np.float64)

    def units(self, leaves: list[str]) -> dict[str, int]:
        """Power of the unit of each leaf's rate: 1, and the gradient's share of a step more, the parameter's less.

        A step has the parameter's unit, c, and gradients have 1/c: rate * gradient**a * parameter**b has the unit
        of the parameter where the rate's is c**(1 + a - b).
        """
        count = self._busiest()
        one, more, both = (
            self._moves(g, p, _counted(self._state(g, p), count)) for g, p in ((1.0, 1.0), (2.0, 1.0), (2.0, 2.0))
        )

        def unit(n: str) -> int:
            if not (one[n] > 0 and more[n] > 0 and both[n] > 0):
                return 1
            return int(1 + round(np.log2(more[n] / one[n])) - round(np.log2(both[n] / more[n])))

        return {n: unit(n) for n in leaves}

    def orthogonal(self, leaves: list[str]) -> dict[str, str]:
        """Leaves that a part for whole matrices keeps a state of, and its family."""
        found: dict[str, str] = {}
        for node in jax.tree.leaves(self.start, is_leaf=_of_matrices):
            if not _of_matrices(node):
                continue
            family = _named(node)
            kept, _ = tree_util.tree_flatten_with_path(node)
            paths = [dotted(path) for path, leaf in kept if is_array(leaf)]
            found |= {n: family for n in leaves if family and any(p.endswith(f".{n}") for p in paths)}
        return found

    def _busiest(self) -> int:
        """A count at which the schedule lets anything move; if it does, that of the state, which corrects its means."""
        counts = (SETTLING, *COUNTS)
        return next((c for c in counts if any(self._moves(1.0, 0.0, _counted(self.start, c)).values())), 0)

    def shrinks(self, leaves: list[str]) -> dict[str, float]:
        """What share of its rate a leaf without gradient loses."""
        count = self._busiest()
        moved = self._moves(1.0, 0.0, _counted(self.start, count))
        lost = self._moves(0.0, 1.0, _counted(self._state(0.0, 1.0), count))
        return {n: lost[n] / moved[n] if moved[n] > 0 and np.isfinite(lost[n]) else 0.0 for n in leaves}


def _named(node: Any) -> str | None:
    return family_of(type(node).__name__.removesuffix("State").removeprefix("ScaleBy"))


def _of_matrices(node: Any) -> bool:
    law = RULES.get(_named(node) or "")
    return law is not None and law.matrices


def _counted(state: Any, count: int) -> Any:
    """A state whose counters of steps say another one."""

    def set_(leaf: Any) -> Any:
        counts = is_array(leaf) and jnp.issubdtype(leaf.dtype, jnp.integer) and leaf.shape == ()
        return jnp.asarray(count, leaf.dtype) if counts and int(leaf) == SETTLING else leaf

    return jax.tree.map(set_, state)
