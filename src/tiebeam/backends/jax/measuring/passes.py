"""One forward and one backward pass of a JAX program, compiled once, and the numbers that core asks for."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tiebeam.backends.graphs.sizes import Sizes
from tiebeam.backends.jax import measure as sizes
from tiebeam.backends.jax.evaluate import Interpreter, Sink
from tiebeam.backends.jax.kinds.held import Held
from tiebeam.backends.jax.measuring import numbers
from tiebeam.backends.jax.measuring.objective import Objective
from tiebeam.backends.jax.measuring.parted import KINDS, Kind, Parted
from tiebeam.backends.jax.measuring.roles import Places, Roles, direct
from tiebeam.backends.jax.trace import Lowered, Program, Trace, measured, repeats_in, seen_again
from tiebeam.core.measuring.passes import (
    ROLES,
    Drift,
    Passed,
    Request,
    Role,
    Sent,
    Wanted,
    counted_from_the_end,
    uses_of,
)
from tiebeam.errors import InputError
from tiebeam.ir import Leaf, Origin

Key = tuple[int, Role]
KEPT = 16  # compiled functions of one program


def differentiate(
    program: Program, held: Held, arrays: Sequence[Any], request: Request
) -> tuple[Trace, Wanted, Passed]:
    """Run a program once forward and once backward; see `protocol.Differentiable`.

    Args:
        program: Of the model on one batch.
        held: Which array is which parameter.
        arrays: The model's arrays, in the order of `held.slots`.
        request: What the caller asks.
    """
    low = seen_again(program, held, arrays)
    if low.graph.meta:
        raise InputError("there is nothing to measure", got="shapes without values", expected="real arrays")
    asked = low.asked
    run = _Pass(program, low, asked, request, arrays)
    found = run.found()
    passed = run.answer(found)
    graph = replace(measured(low.graph, found["sizes"], run.what), repeats=repeats_in(program.inputs))
    return Trace(graph, low.places), replace(asked, uses=uses_of(graph)), passed


def values_of(program: Program, low: Lowered, arrays: Sequence[Any], values: Iterable[int | None]) -> dict[int, Any]:
    """Elements of integers on the host, by value id: of those that were made."""
    graph = low.graph
    found: dict[int, Any] = {}
    rest = set[int]()
    inputs = dict(zip(low.frame.jaxpr.invars[len(arrays) :], program.inputs, strict=True))
    given = {low.frame.ids[var]: array for var, array in inputs.items()}
    for v in {v for v in values if v is not None}:
        node = graph.producer(v)
        before = v if node is None else counted_from_the_end(graph, node)
        if before in given and (before == v or bool((np.asarray(given[before]) >= 0).all())):
            found[v] = np.asarray(given[before])
        elif graph.values[v].origin is not Origin.INPUT:
            rest.add(v)
    if rest:
        asked = Sizes(numbers=frozenset(rest))
        if asked not in program.compiled:
            program.compiled[asked] = sizes.evaluator(program.closed, low.frame, asked)
        made = sizes.numbers_of(program.compiled[asked]([*arrays, *program.inputs]))
        found |= {v: np.asarray(array) for v, array in made.items()}
    return found


@dataclass(frozen=True)
class _Table:
    """One table that gets a gradient.

    Attributes:
        leaves: Keys of the leaves that are this table, and the vocabulary axis of each.
    """

    index: int
    leaves: Mapping[int, int]


class _Pass:
    """A program, and what is asked of it."""

    def __init__(self, program: Program, low: Lowered, asked: Wanted, request: Request, arrays: Sequence[Any]) -> None:
        self.program, self.low, self.asked, self.request = program, low, asked, request
        self.arrays = list(arrays)
        self.what = low.sizes
        self.notes: list[str] = []
        self._leaves: dict[int, Leaf] = {v.leaf.key: v.leaf for v in low.graph.values if v.leaf is not None}
        self.roles = Roles(Places.of(low.graph, asked.reads, low.paths))
        self.tables = [
            _Table(i, {r.leaf: r.vocab_axis for r in asked.reads if r.table == i})
            for i in dict.fromkeys(r.table for r in asked.reads)
        ]
        trained = [key for t in self.tables for key in t.leaves if self._leaves[key].trainable]
        used = self._used(trained)
        self.kinds: dict[int, tuple[Kind, ...]] = {k: tuple(x for x in KINDS if x in used[k]) for k in trained}
        ids = None if asked.ids is None else values_of(program, low, arrays, [asked.ids]).get(asked.ids)
        rows = None if asked.logits is None else low.graph.values[asked.logits].shape[:-1]
        self.ids = ids if ids is not None and ids.shape == rows else None
        self.objective = Objective.of(low.graph, asked, request, self.ids)
        self.since = {t.index: before for t in self.tables if (before := self._earlier(t)) is not None}

    def _used(self, trained: Sequence[int]) -> dict[int, frozenset[Kind]]:
        """In which kinds each table is used."""
        args: list[Any] = [None] * (len(self.arrays) + len(self.program.inputs))
        for key in trained:
            args[self.low.places[key]] = Parted(frozenset({key}), _told)
        used = self.roles.used(self.low.frame, self.program.closed.consts, args)
        return {key: used[self.low.places[key]] for key in trained}

    def _earlier(self, table: _Table) -> Any:
        """What the caller says the table was before."""
        since = self.request.since or {}
        for key in table.leaves:
            leaf, now = self._leaves[key], self.arrays[self.low.places[key]]
            found = next((since[n] for n in leaf.names if n in since), None)
            if found is None:
                continue
            if np.shape(found) != now.shape:
                raise InputError(
                    f"the earlier {leaf.name!r} has another shape", got=str(np.shape(found)), expected=str(now.shape)
                )
            return jnp.asarray(found)
        return None

    # -- the compiled pass --

    def found(self) -> dict[str, Any]:
        """Run it."""
        reads, main = self.asked.reads, (self.asked.logits, self.asked.ids)
        key = (
            self.what,
            reads,
            main,
            tuple(self.kinds.items()),
            self.objective.key,
            self.request.keep,
            self.request.gram,
            tuple(sorted(self.since)),
        )
        compiled = self.program.compiled
        if key not in compiled:
            while len(compiled) >= KEPT:  # losses come and go
                compiled.pop(next(iter(compiled)))
            compiled[key] = jax.jit(_Step(self))
        given = {"objective": list(self.objective.given), "since": self.since}
        if self.ids is not None and self.asked.logits is not None:
            vocab = self.low.graph.values[self.asked.logits].shape[-1]
            given["own"] = np.clip(self.ids.reshape(-1), 0, vocab - 1).astype(np.int32)
        found: dict[str, Any] = compiled[key](self.arrays, self.program.inputs, given)
        return found

    # -- on the host --

    def answer(self, found: Mapping[str, Any]) -> Passed:
        """Everything that core asks for."""
        loss = float(found["loss"])
        if not math.isfinite(loss):
            raise InputError("the loss is not finite", got=self._suspects(found), hint="tiebeam.inspect(model, inputs)")
        sent, cosine = self._sent(found["tables"])
        if self.kinds and not any(s.rows for s in sent.values()) and not any(found["left"].values()):
            self.notes.append("no gradient comes from the loss to any table")
        own_logit, own_rank = self._own(found.get("own"))
        return Passed(
            loss=loss,
            targets=self.objective.said,
            own_logit=own_logit,
            own_rank=own_rank,
            sent=sent,
            cosine=cosine,
            unaccounted=self._unaccounted(found["left"]),
            grams={i: np.asarray(g, np.float64) for i, g in found["grams"].items()},
            drift={i: self._drift(f, sent, i) for i, f in found["drift"].items()},
            silent=self._silent(),
            notes=(*self.notes, *self._joined()),
        )

    def _joined(self) -> list[str]:
        return [f"{name} reads a table in both roles at once: nobody sees inside" for name in self.roles.joined]

    def _suspects(self, found: Mapping[str, Any]) -> str:
        """What else is not finite, for the message."""
        said = [f"a loss of {float(found['loss'])}"]
        read = {r.leaf: self._leaves[r.leaf] for r in self.asked.reads}
        said += [
            f"{leaf.name!r} holds entries that are not finite"
            for key, leaf in read.items()
            if not bool(jnp.isfinite(self.arrays[self.low.places[key]]).all())
        ]
        if not bool(found.get("finite", True)):
            said.append("logits that are not finite")
        return ", ".join(said)

    def _sent(self, tables: Mapping[int, Any]) -> tuple[dict[Key, Sent], dict[int, float]]:
        sent: dict[Key, Sent] = {}
        cosine: dict[int, float] = {}
        for index, found in tables.items():
            for role in ROLES:
                if role in found:
                    reached = int(np.asarray(found[role]["reached"]).sum())
                    sent[index, role] = Sent(numbers.norm(found[role]), reached, found[role].get("grad"))
            if "products" in found:
                size = sent[index, "lookup"].norm * sent[index, "readout"].norm
                if size and math.isfinite(size):
                    cosine[index] = numbers.total(found["products"]) / size
        return sent, cosine

    def _unaccounted(self, left: Mapping[int, Any]) -> dict[int, float]:
        shares: dict[int, float] = {}
        for table in self.tables:
            keys = [k for k in table.leaves if k in self.kinds]
            for key in keys:
                share = 0.0
                if key in left:
                    off, whole = (numbers.norm(left[key][n]) for n in ("other", "whole"))
                    share = off / whole if whole else off
                shares[table.index] = max(share, shares.get(table.index, 0.0))
        return shares

    def _drift(self, found: Mapping[str, Any], sent: Mapping[Key, Sent], index: int) -> Drift:
        moved, before = numbers.norm(found["change"]), numbers.norm(found["before"])

        def along(role: Role) -> float | None:
            size = sent[index, role].norm * moved if (index, role) in sent else 0.0
            return -numbers.total(found[role]) / size if size and role in found else None

        still = int((~np.asarray(found["change"]["reached"])).sum())
        return Drift(moved / before if before else math.inf, along("lookup"), along("readout"), still)

    def _silent(self) -> dict[int, int]:
        counts: dict[int, int] = {}
        if self.request.optimizer is not None:
            for table in self.tables:
                key, axis = next(iter(table.leaves.items()))
                shape = tuple(self.arrays[self.low.places[key]].shape)
                rows = [numbers.silent_rows(self.request.optimizer, n, shape, axis) for n in self._leaves[key].names]
                if (known := next((n for n in rows if n is not None), None)) is not None:
                    counts[table.index] = known
        return counts

    def _own(self, found: Mapping[str, Any] | None) -> tuple[float | None, float | None]:
        """Mean logit and mean rank of the token just read."""
        if found is None or self.ids is None or self.asked.logits is None:
            why = "the model returns no logits" if self.asked.logits is None else "no ids fit the rows of the logits"
            self.notes.append(f"own_logit and own_rank are not known: {why}")
            return None, None
        own, mask = self.ids.reshape(-1), self.request.mask
        counted = (own >= 0) & (own < self.low.graph.values[self.asked.logits].shape[-1])
        if mask is not None and mask.shape == self.ids.shape:
            counted &= mask.astype(bool).reshape(-1)
        if not counted.any():
            return None, None
        logits, ranks = (np.asarray(found[n], np.float64)[counted] for n in ("logits", "ranks"))
        return float(logits.mean()), float(ranks.mean()) / 2


def _told(kind: Kind) -> None:
    """What a table is while nothing is computed."""


class _Step:
    """The pass as a function of arrays alone, to be compiled; it outlives them."""

    def __init__(self, run: _Pass) -> None:
        self.program, self.low, self.roles, self.what = run.program, run.low, run.roles, run.what
        self.objective, self.kinds, self.tables = run.objective.emptied(), run.kinds, run.tables
        self.keep, self.gram = run.request.keep, run.request.gram
        outputs = run.low.graph.outputs
        self.logits = None if run.asked.logits is None else outputs.index(run.asked.logits)

    def __call__(self, arrays: Sequence[Any], inputs: Sequence[Any], given: Mapping[str, Any]) -> dict[str, Any]:
        """Everything that is read off the pass."""
        frame, consts = self.low.frame, self.program.closed.consts
        here = self.what.among(direct(frame))
        within = self.what.without(here)  # in loops and the like: those are run once more

        def objective(tables: Mapping[int, Mapping[Kind, Any]]) -> tuple[Any, Any]:
            values = [*arrays, *inputs]
            for key, kinds in tables.items():
                values[self.low.places[key]] = Parted(frozenset({key}), kinds.__getitem__)
            sink: Sink = {}
            looking = Interpreter(here.moments, here.compared, here.numbers)
            self.roles.seen = lambda v, array: looking.take(v, _still(array), sink) if looking.wants(v) else None
            try:
                results = self.roles.run(frame, consts, values)
            finally:
                self.roles.seen = None
            outputs = [v.get("other") if isinstance(v, Parted) else v for v in results]
            loss = self.objective(self.program, outputs, given["objective"])
            return loss, (None if self.logits is None else outputs[self.logits], sizes.figures(sink, here, _same_place))

        at = {k: dict.fromkeys(kinds, arrays[self.low.places[k]]) for k, kinds in self.kinds.items()}
        loss, (logits, seen), grads = differentiated(objective, at)
        if within != Sizes():
            more = sizes.evaluated(frame, consts, [*arrays, *inputs], within)
            seen = {name: seen[name] | more[name] for name in seen}
        found: dict[str, Any] = {"sizes": seen, "loss": loss, **self._numbers(grads, arrays, given["since"])}
        if logits is not None:
            found["finite"] = jnp.isfinite(logits).all()
            if "own" in given:
                found["own"] = numbers.own_token(jnp.reshape(logits, (-1, logits.shape[-1])), given["own"])
        return found

    def _numbers(
        self, grads: Mapping[int, Mapping[Kind, Any]], arrays: Sequence[Any], since: Mapping[int, Any]
    ) -> dict[str, Any]:
        found: dict[str, dict[int, Any]] = {"tables": {}, "left": {}, "grams": {}, "drift": {}}
        for key, kinds in grads.items():
            if "other" in kinds:
                axis = next(t.leaves[key] for t in self.tables if key in t.leaves)
                left = {"other": kinds["other"], "whole": sum(kinds.values())}
                found["left"][key] = {n: numbers.row_sizes(numbers.rows_first(g, axis)) for n, g in left.items()}
        for table in self.tables:
            both = {role: g for role in ROLES if (g := self._of(role, table, grads)) is not None}
            mine: dict[str, Any] = {
                role: {**numbers.row_sizes(g), **({"grad": g} if self.keep else {})} for role, g in both.items()
            }
            if len(both) == len(ROLES) and both["lookup"].shape == both["readout"].shape:
                mine["products"] = numbers.row_products(both["lookup"], both["readout"])
            found["tables"][table.index] = mine
            key, axis = next(iter(table.leaves.items()))
            rows = numbers.rows_first(arrays[self.low.places[key]], axis)
            if self.gram:
                found["grams"][table.index] = numbers.gram(rows)
            if table.index in since:
                found["drift"][table.index] = _moved(numbers.rows_first(since[table.index], axis), rows, both)
        return found

    def _of(self, role: Role, table: _Table, grads: Mapping[int, Mapping[Kind, Any]]) -> Any:
        """What a role sends to a table, (vocab, width), over all the leaves that are this table."""
        parts = [
            numbers.rows_first(grads[k][role], axis) for k, axis in table.leaves.items() if role in grads.get(k, ())
        ]
        if not parts or any(p.shape != parts[0].shape for p in parts):
            return None
        return sum(parts[1:], parts[0])


def _still(array: Any) -> Any:
    return jax.lax.stop_gradient(array)


def _same_place(a: int, b: int) -> bool:
    """Both were made outside of any map over devices."""
    return True


def _moved(before: Any, now: Any, grads: Mapping[Role, Any]) -> dict[str, Any]:
    change = now.astype(jnp.promote_types(now.dtype, jnp.float32)) - before
    along: dict[str, Any] = {
        role: numbers.row_products(change, g) for role, g in grads.items() if g.shape == change.shape
    }
    return {"change": numbers.row_sizes(change), "before": numbers.row_sizes(before), **along}


def differentiated(objective: Any, at: Any) -> tuple[Any, Any, Any]:
    """Loss, what comes with it, and gradients.

    Raises:
        InputError: The program has no backward pass, or it fails.
    """
    if isinstance(at, Mapping) and not at:
        loss, more = objective(at)
        return loss, more, {}
    jax.eval_shape(objective, at)  # what the loss itself raises is the caller's
    try:
        (loss, more), grads = jax.value_and_grad(objective, has_aux=True)(at)
    except (ValueError, TypeError, NotImplementedError) as error:
        raise InputError(
            "the backward pass of the model fails",
            got=f"{type(error).__name__}: {error}",
            hint="jax.grad on this batch should show the same",
        ) from error
    return loss, more, grads
