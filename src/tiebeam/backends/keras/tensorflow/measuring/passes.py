"""One forward and one backward pass of a Keras model on TensorFlow, and the numbers that core asks for.

The model's graph is split so that each role reads a tensor of its own; loss, gradients and sizes are one function of
it, which runs once.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tiebeam.backends.graphs.sizes import Sizes, sizes_of
from tiebeam.backends.keras.optimizers.silent import states_of
from tiebeam.backends.keras.tensorflow import measure as sizes
from tiebeam.backends.keras.tensorflow.graph.program import Program
from tiebeam.backends.keras.tensorflow.measuring import numbers
from tiebeam.backends.keras.tensorflow.measuring.objective import Objective
from tiebeam.backends.keras.tensorflow.measuring.split import Again, Key, split
from tiebeam.backends.keras.tensorflow.trace import Placed, Trace
from tiebeam.core.closures import closed_over
from tiebeam.core.measuring.passes import ROLES, Drift, Passed, Request, Role, Sent, Wanted, wanted
from tiebeam.errors import InputError
from tiebeam.ir import Leaf


def differentiate(program: Program, placed: Placed, request: Request, again: Again) -> tuple[Trace, Wanted, Passed]:
    """Run a model once forward and once backward; see `protocol.Differentiable`."""
    made = Pass(program, placed, request, again)
    found = made.run()
    graph = replace(placed.graph, **sizes.facts_of(made.measured(found["sizes"]), made.what))
    return Trace(graph, placed.variables, program), wanted(graph), made.answer(found)


def integers(program: Program, placed: Placed, values: Sequence[int]) -> dict[int, Any]:
    """Token ids of a program, by value: inputs, or computed from them."""
    found = {v: t.numpy() for v, t in zip(placed.graph.inputs, program.inputs, strict=True) if v in values}
    others = frozenset(values).difference(found)
    if others:
        made = sizes.measured(program, Sizes(numbers=others), {v: placed.tensors[v] for v in others})
        found |= made["numbers"]
    return found


class Pass:
    """What is asked of one run of a program.

    Args:
        placed: The program's graph.
        request: What the caller asks.
        again: As `Split.again`.

    Raises:
        InputError: The batch holds no targets, or the loss is none.
    """

    def __init__(self, program: Program, placed: Placed, request: Request, again: Again) -> None:
        self.program, self.placed, self.request = program, placed, request
        graph = placed.graph
        self.asked = wanted(graph)
        self.ids = self._integers()
        self.objective = Objective.of(graph, self.asked, request, self.ids)
        self.what = sizes_of(graph, logits=True)
        self.evaluator = sizes.Evaluator(self.what, {v: placed.tensors[v] for v in self.what.ids})
        self._leaves: dict[int, Leaf] = {v.leaf.key: v.leaf for v in graph.values if v.leaf is not None}
        self.axes = {r.leaf: r.vocab_axis for r in self.asked.reads}
        self.reads = [r for r in self.asked.reads if self._leaves[r.leaf].trainable]
        self.split = split(program, placed, self.reads, again)
        self.notes: list[str] = [
            f"{self._leaves[r.leaf].name!r}: what its {r.role} sends cannot be told apart inside "
            f"{placed.operations[r.node]!r}"
            for r in self.split.lost
        ]
        self.tables = {r.table: (r.leaf, r.vocab_axis) for r in self.asked.reads}
        self.own = self._own_rows()

    def _integers(self) -> Any:
        """The tokens that belong to the rows of the logits."""
        v = self.asked.ids
        if v is None:
            return None
        return integers(self.program, self.placed, [v]).get(v)

    def _own_rows(self) -> tuple[Any, Any]:
        """Tokens just read and the rows of the logits that they belong to, where they count; int64."""
        if self.ids is None or self.asked.logits is None:
            why = "the model returns no logits" if self.asked.logits is None else "no ids fit the rows of the logits"
            self.notes.append(f"own_logit and own_rank are not known: {why}")
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        own, mask = self.ids.reshape(-1), self.request.mask
        counted = (own >= 0) & (own < self.placed.graph.values[self.asked.logits].shape[-1])
        if mask is not None and mask.shape == self.ids.shape:
            counted &= mask.astype(bool).reshape(-1)
        return own[counted].astype(np.int64), np.flatnonzero(counted).astype(np.int64)

    def run(self) -> dict[str, Any]:
        """Run it, by a function that was made for such a pass before, where there is one."""
        given = list(map(tf.convert_to_tensor, self.objective.given))
        key = self._key(given)
        function = None if key is None else self.program.compiled.get(key)
        if function is None:
            names = [*self.program.outputs, *self.evaluator.tensors]
            own = [tf.TensorSpec((None,), tf.int64)] * len(self.own)
            function = self.split.function(names, self._read, specs=[*own, *map(tf.TensorSpec.from_tensor, given)])
            if key is not None:
                self.program.compiled[key] = function
        made = sizes.run(self.program, function, *map(tf.constant, self.own), *given)
        found: dict[str, Any] = tf.nest.map_structure(lambda t: t.numpy(), made)
        return found

    def _key(self, given: Sequence[Any]) -> Any:
        """What the function depends on, arrays aside; None where it holds the caller's or cannot be compared."""
        if self.request.since is not None:
            return None
        loss = self.objective.own
        if loss is not None and not isinstance(loss.function, Hashable):
            return None
        kinds = tuple((t.dtype, tuple(t.shape)) for t in given)
        batch = None
        if loss is not None:
            around = closed_over(loss.function)
            batch = (loss.function, around, repr(keras.tree.map_structure(_kind, loss.batch)))
        operations = tuple(self.placed.operations[r.node] for r in self.reads)
        names = tuple(self.placed.tensors[v] for v in sorted(self.what.ids))
        own = (self.objective.at, batch, kinds, self.request.keep, self.request.gram)
        return (own, tuple(self.asked.reads), operations, self.asked.logits, self.what, names)

    def whole(self, leaf: int) -> Any:
        """A leaf's gradient as TensorFlow adds it up, (vocab, width)."""

        def read(found: Sequence[Any], handles: Mapping[int, Any], tables: Mapping[Key, Any]) -> Any:
            return self._gradients(self.objective(self.program, found, self.objective.given), handles, {})[1][leaf]

        return sizes.run(self.program, self.split.function(self.program.outputs, read)).numpy()

    def _read(
        self, found: Sequence[Any], handles: Mapping[int, Any], tables: Mapping[Key, Any], *given: Any
    ) -> dict[str, Any]:
        """Everything that is read off the run, added to its graph."""
        returned = found[: len(self.program.outputs)]
        own, rows, *more = given
        loss = self.objective(self.program, returned, more)
        graph = self.placed.graph
        result: dict[str, Any] = {"loss": loss, "sizes": self.evaluator.read(found[len(returned) :])}
        if self.asked.logits is not None:
            logits = returned[graph.outputs.index(self.asked.logits)]
            result["finite"] = tf.reduce_all(tf.math.is_finite(logits))
            if self.ids is not None:
                result["own"] = numbers.own_token(logits, own, rows)
        grads, whole = self._gradients(loss, handles, tables)
        result["sent"] = {k: numbers.row_sizes(g) for k, g in grads.items()}
        both = {leaf for leaf, role in grads if (leaf, "lookup") in grads and (leaf, "readout") in grads}
        result["products"] = {k: numbers.row_products(grads[k, "lookup"], grads[k, "readout"]) for k in sorted(both)}
        result["left"] = {
            leaf: {"off": numbers.row_squares(g - self._sum(leaf, grads, g)), "whole": numbers.row_squares(g)}
            for leaf, g in whole.items()
        }
        result["grads"] = grads if self.request.keep else {}
        values = {
            leaf: numbers.rows_first(self._value(leaf, handles), axis)
            for leaf, axis in dict(self.tables.values()).items()
        }
        result["values"] = {leaf: tf.reduce_all(tf.math.is_finite(t)) for leaf, t in values.items()}
        result["grams"] = {leaf: numbers.gram(t) for leaf, t in values.items()} if self.request.gram else {}
        result["drift"] = {
            leaf: _moved(before, values[leaf], {r: grads[leaf, r] for r in ROLES if (leaf, r) in grads})
            for leaf in values
            if (before := self._earlier(leaf)) is not None
        }
        return result

    def _gradients(
        self, loss: Any, handles: Mapping[int, Any], tables: Mapping[Key, Any]
    ) -> tuple[dict[Key, Any], dict[int, Any]]:
        """What each role sends to each leaf, and each leaf's gradient as TensorFlow adds it up: (vocab, width)."""
        keys, leaves = list(tables), list(handles)
        ends = [*(tables[k] for k in keys), *(handles[k] for k in leaves)]
        if not ends:
            return {}, {}
        try:
            made = tf.gradients(loss, ends)
        except (LookupError, ValueError, TypeError, NotImplementedError) as error:
            raise InputError(
                "the backward pass of the model fails",
                got=f"{type(error).__name__}: {error}".splitlines()[0],
                hint="a tf.GradientTape on this batch should show the same",
            ) from error

        def dense(leaf: int, grad: Any) -> Any:
            variable = self.placed.variables[leaf].variable
            if grad is None:
                return numbers.rows_first(tf.zeros(variable.shape, variable.dtype), self.axes[leaf])
            if isinstance(grad, tf.IndexedSlices):
                grad = tf.math.unsorted_segment_sum(grad.values, grad.indices, variable.shape[0])
            return numbers.rows_first(tf.ensure_shape(grad, variable.shape), self.axes[leaf])

        sent = {key: dense(key[0], grad) for key, grad in zip(keys, made, strict=False)}
        return sent, {leaf: dense(leaf, grad) for leaf, grad in zip(leaves, made[len(keys) :], strict=True)}

    def _sum(self, leaf: int, grads: Mapping[Key, Any], like: Any) -> Any:
        parts = [grads[leaf, role] for role in ROLES if (leaf, role) in grads]
        return sum(parts[1:], parts[0]) if parts else tf.zeros_like(like)

    def _value(self, leaf: int, handles: Mapping[int, Any]) -> Any:
        variable = self.placed.variables[leaf].variable
        if leaf in handles:
            return tf.raw_ops.ReadVariableOp(resource=handles[leaf], dtype=variable.dtype)
        return variable.value()

    def _earlier(self, leaf: int) -> Any:
        """What the caller says the table was before, (vocab, width)."""
        since, held = self.request.since or {}, self.placed.variables[leaf]
        found = next((since[n] for n in self._leaves[leaf].names if n in since), None)
        if found is None:
            return None
        before = tf.convert_to_tensor(found)
        if before.shape != held.variable.shape:
            raise InputError(
                f"the earlier {self._leaves[leaf].name!r} has another shape",
                got=str(tuple(before.shape)),
                expected=str(tuple(held.variable.shape)),
            )
        return numbers.rows_first(before, self.axes[leaf])

    def measured(self, found: Sequence[Any]) -> dict[str, Any]:
        """What the evaluator's results are of."""
        results = iter(found)
        return {
            "moments": {v: (float(next(results)), float(next(results))) for v in self.evaluator.moments},
            "cosines": {at: float(next(results)) for at in self.evaluator.cosines},
        }

    def answer(self, found: Mapping[str, Any]) -> Passed:
        """Everything that core asks for.

        Raises:
            InputError: The loss is not finite.
        """
        loss = float(found["loss"])
        if not math.isfinite(loss):
            raise InputError("the loss is not finite", got=self._suspects(found), hint="tiebeam.inspect(model, inputs)")
        sent, cosine = self._sent(found)
        own = found.get("own") if len(self.own[0]) else None
        return Passed(
            loss=loss,
            targets=self.objective.said,
            own_logit=None if own is None else float(np.asarray(own["logits"], np.float64).mean()),
            own_rank=None if own is None else float(np.asarray(own["ranks"], np.float64).mean()) / 2,
            sent=sent,
            cosine=cosine,
            unaccounted=self._unaccounted(found),
            grams={
                i: np.asarray(found["grams"][leaf], np.float64)
                for i, (leaf, _) in self.tables.items()
                if leaf in found["grams"]
            },
            drift={
                i: _drift(found["drift"][leaf], i, sent)
                for i, (leaf, _) in self.tables.items()
                if leaf in found["drift"]
            },
            silent=self._silent(),
            notes=tuple(dict.fromkeys(self.notes)),
        )

    def _suspects(self, found: Mapping[str, Any]) -> str:
        """What else is not finite, for the message."""
        told = [f"a loss of {float(found['loss'])}"]
        told += [
            f"{self._leaves[leaf].name!r} holds entries that are not finite"
            for leaf, finite in found["values"].items()
            if not finite
        ]
        return ", ".join(told + ([] if found.get("finite", True) else ["logits that are not finite"]))

    def _sent(self, found: Mapping[str, Any]) -> tuple[dict[tuple[int, Role], Sent], dict[int, float]]:
        sent: dict[tuple[int, Role], Sent] = {}
        cosine: dict[int, float] = {}
        lost = {(r.table, r.role) for r in self.split.lost}
        for table in dict.fromkeys(r.table for r in self.reads):
            for role in ROLES:
                leaves = list(dict.fromkeys(r.leaf for r in self.reads if (r.table, r.role) == (table, role)))
                if len(leaves) != 1 or (table, role) in lost or (leaves[0], role) not in found["sent"]:
                    if len(leaves) > 1:
                        self.notes.append(f"the {role} reads several variables: what it sends is not added up")
                    continue
                key = (leaves[0], role)
                own = found["sent"][key]
                sent[table, role] = Sent(numbers.norm(own), int(own["reached"].sum()), found["grads"].get(key))
            both = [sent.get((table, role)) for role in ROLES]
            leaf = self.tables[table][0]
            if leaf in found["products"] and both[0] is not None and both[1] is not None:
                size = both[0].norm * both[1].norm
                if size and math.isfinite(size):
                    cosine[table] = numbers.total(found["products"][leaf]) / size
        return sent, cosine

    def _unaccounted(self, found: Mapping[str, Any]) -> dict[int, float]:
        shares: dict[int, float] = {}
        for read in self.reads:
            left = found["left"][read.leaf]
            off, whole = numbers.norm(left["off"]), numbers.norm(left["whole"])
            shares[read.table] = max(shares.get(read.table, 0.0), off / whole if whole else off)
        return shares

    def _silent(self) -> dict[int, int]:
        """Rows that are zero in every state that an optimizer keeps of a table."""
        counts: dict[int, int] = {}
        for i, (leaf, axis) in self.tables.items():
            held = self.placed.variables[leaf].variable
            states = [] if self.request.optimizer is None else states_of(self.request.optimizer, held)
            rows = [numbers.rows_first(s._value.value(), axis) for s in states]
            if rows:
                heard = tf.reduce_any([tf.reduce_any(r != 0, axis=1) for r in rows], axis=0)
                counts[i] = int(tf.reduce_sum(tf.cast(~heard, tf.int32)))
        return counts


def _kind(value: Any) -> str:
    return "array" if tf.is_tensor(value) or isinstance(value, np.ndarray) else repr(value)


def _moved(before: Any, now: Any, grads: Mapping[Role, Any]) -> dict[str, Any]:
    change = numbers.wide(now) - tf.cast(before, numbers.wide(now).dtype)
    along: dict[str, Any] = {role: numbers.row_products(change, g) for role, g in grads.items()}
    return {"change": numbers.row_sizes(change), "before": numbers.row_sizes(before), **along}


def _drift(found: Mapping[str, Any], table: int, sent: Mapping[tuple[int, Role], Sent]) -> Drift:
    moved, before = numbers.norm(found["change"]), numbers.norm(found["before"])

    def along(role: Role) -> float | None:
        size = sent[table, role].norm * moved if (table, role) in sent else 0.0
        return -numbers.total(found[role]) / size if size and role in found else None

    still = int((~np.asarray(found["change"]["reached"])).sum())
    return Drift(moved / before if before else math.inf, along("lookup"), along("readout"), still)
