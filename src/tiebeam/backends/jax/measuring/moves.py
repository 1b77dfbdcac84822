"""Moving a table in one role alone, and running its program again, in float64 where it runs so."""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from tiebeam.backends.jax.kinds.held import Held
from tiebeam.backends.jax.kinds.tree import Tree, is_abstract
from tiebeam.backends.jax.measuring.explicit import explicit_axes_said
from tiebeam.backends.jax.measuring.numbers import rows_first
from tiebeam.backends.jax.measuring.objective import Objective
from tiebeam.backends.jax.measuring.parted import KINDS, Kind, Parted
from tiebeam.backends.jax.measuring.passes import differentiated, values_of
from tiebeam.backends.jax.measuring.roles import Places, Roles
from tiebeam.backends.jax.trace import Lowered, lowered, program_of
from tiebeam.backends.protocol import RefusedError
from tiebeam.core.measuring.gradient_check import reads_in_both
from tiebeam.core.measuring.passes import ROLES, Request, Wanted, wanted
from tiebeam.core.reading.provenance import coarsest
from tiebeam.errors import InputError
from tiebeam.ir import Graph

STEPS = {"float64": 1e-3, "float32": 5e-2}
"""Steps of a difference, in units of the table's std, by what the program computes in."""
OFF = 1e-3
"""Share of a gradient's norm by which parts that are added up in another order may differ, half precision included."""
WITHIN = 0.1
"""Share of float32's rounding that is left in a float64 loss after operations in float32: they are many, and cancel.

Those of half precision count in full: there a move of a row may be less than what its numbers are rounded by."""


class Moves:
    """One table of a program; see `core.gradient_check.MovableTable`.

    Args:
        held: The model with its arrays taken out.
        arrays: Its arrays, which are copied.
        request: What the loss is.
        dtype: In which floats the program runs.
    """

    def __init__(
        self,
        held: Held,
        arrays: Sequence[Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        request: Request,
        dtype: str,
    ) -> None:
        self._dtype = dtype
        self.notes: list[str] = []
        with self._precision():
            given = Tree((args, dict(kwargs)))
            if any(map(is_abstract, [*arrays, *given.arrays])):
                raise InputError("there is nothing to check", got="shapes without values", expected="real arrays")
            args, kwargs = given.rebuilt(self._cast(given.arrays))
            self._arrays = self._cast(arrays)
            self._program = program_of(held, self._arrays, args, kwargs)
            low = lowered(self._program, held, self._arrays)
            self._read(low, wanted(low.graph), request)

    def _precision(self) -> AbstractContextManager[Any]:
        if self._dtype != "float64":
            return nullcontext()
        home: Any = jax if hasattr(jax, "enable_x64") else jax.experimental  # where older releases have it
        wide: AbstractContextManager[Any] = home.enable_x64(True)
        return wide

    def _cast(self, arrays: Sequence[Any]) -> list[Any]:
        return [jnp.asarray(a, self._dtype) if jnp.issubdtype(a.dtype, np.floating) else a for a in arrays]

    def _read(self, low: Lowered, asked: Wanted, request: Request) -> None:
        reads = reads_in_both(asked, low.graph)
        self._key = reads[0].leaf
        leaf = next(v.leaf for v in low.graph.values if v.leaf is not None and v.leaf.key == self._key)
        self.name, self._axis, self._place = leaf.name, reads[0].vocab_axis, low.places[self._key]
        if not leaf.trainable:
            raise InputError(f"{self.name!r} gets no gradient that could be checked", got="a table that is frozen")
        rows = rows_first(self._arrays[self._place], self._axis)
        self.vocab, self.width = rows.shape
        self.std = float(jnp.linalg.norm(rows)) / math.sqrt(max(1, rows.size)) or 1.0
        self._low, self._roles = low, Roles(Places.of(low.graph, asked.reads, low.paths), custom=True)
        ids = values_of(self._program, low, self._arrays, {r.ids for r in reads if r.ids is not None} | {asked.ids})
        right = None if asked.ids is None else ids.get(asked.ids)
        self._objective = Objective.of(low.graph, asked, request, right)
        self._given = self._cast(self._objective.given)
        looked_up = {int(i) for r in reads if r.ids in ids for i in ids[r.ids].reshape(-1)}
        self.held = tuple(sorted(i for i in looked_up if 0 <= i < self.vocab))
        self._check_apart()
        self._measure(low.graph, asked.end(request))

    def _check_apart(self) -> None:
        """Refuse an operation of unknown body that reads the table in both roles at once."""
        args: list[Any] = [None] * (len(self._arrays) + len(self._program.inputs))
        args[self._place] = Parted(frozenset({self._key}), lambda kind: None)
        self._roles.used(self._low.frame, self._program.closed.consts, args)
        if self._roles.joined:
            raise InputError(
                f"{self.name!r} cannot be moved in one role alone",
                got=f"{next(iter(self._roles.joined))}, which reads it in both",
                hint="check the operation by itself",
            )

    def _measure(self, graph: Graph, end: int | None) -> None:
        """The gradient as the program itself gives it, and how sharp its loss is."""

        def loss(table: Any, arrays: Sequence[Any], inputs: Sequence[Any], given: Sequence[Any]) -> Any:
            values = [*arrays, *inputs]
            values[self._place] = table
            closed = self._program.closed
            return self._objective(self._program, jax.core.eval_jaxpr(closed.jaxpr, closed.consts, *values), given)

        def parted(
            kinds: Mapping[Kind, Any], arrays: Sequence[Any], inputs: Sequence[Any], given: Sequence[Any]
        ) -> Any:
            values = [*arrays, *inputs]
            values[self._place] = Parted(frozenset({self._key}), kinds.__getitem__)
            return self._of(Roles(self._roles.places), values, given)

        def both(arrays: Sequence[Any], inputs: Sequence[Any], given: Sequence[Any]) -> Any:
            table = arrays[self._place]
            found, _, grad = differentiated(lambda t: (loss(t, arrays, inputs, given), None), table)
            _, _, sent = differentiated(lambda k: (parted(k, arrays, inputs, given), None), dict.fromkeys(KINDS, table))
            off = jnp.linalg.norm(sum(sent.values()) - grad) / jnp.maximum(jnp.linalg.norm(grad), 1e-30)
            return found, rows_first(grad, self._axis), off

        found, whole, off = jax.jit(both)(self._arrays, self._program.inputs, self._given)
        if not math.isfinite(float(found)):
            raise InputError("the loss is not finite", got=f"a loss of {float(found)}")
        if float(off) > OFF:
            self.notes.append(
                f"what the uses of {self.name!r} send does not add up to its gradient: off by {float(off):.2g} of its "
                "norm, and so are the roles' gradients that tiebeam.measure finds"
            )
        self._whole: npt.NDArray[np.float64] = np.asarray(whole, np.float64)
        exact = coarsest(graph, self._key, end, constants=False) or str(found.dtype)
        finfo: Callable[[str], Any] = jnp.finfo  # which knows more floats than NumPy, and has no annotations
        self.step, self.eps = STEPS.get(exact, 5e-2), float(finfo(exact).eps) / 2
        if exact == "float32" != str(found.dtype):
            self.eps *= WITHIN
        self._run = jax.jit(self._moved)

    def _moved(
        self, arrays: Sequence[Any], inputs: Sequence[Any], given: Sequence[Any], row: Any, moves: Mapping[str, Any]
    ) -> Any:
        table = arrays[self._place]

        def of(kind: Kind) -> Any:
            if kind not in moves:
                return table
            rows = rows_first(table, self._axis).at[row].add(moves[kind])
            return jnp.reshape(rows if self._axis == 0 else rows.T, table.shape)

        values = [*arrays, *inputs]
        values[self._place] = Parted(frozenset({self._key}), of)
        return self._of(self._roles, values, given)

    def _of(self, roles: Roles, values: Sequence[Any], given: Sequence[Any]) -> Any:
        """The loss of the program with a parted table."""
        results = roles.run(self._low.frame, self._program.closed.consts, values)
        outputs = [v.get("other") if isinstance(v, Parted) else v for v in results]
        return self._objective(self._program, outputs, given)

    def gradient(self, row: int) -> npt.NDArray[np.float64]:
        """What the backward pass gives for a row."""
        found: npt.NDArray[np.float64] = self._whole[row]
        return found

    def loss(self, role: str, row: int, move: npt.NDArray[np.float64]) -> float:
        """The loss with a row moved where one role reads it."""
        with self._precision(), explicit_axes_said(self._arrays):
            moves = {r: jnp.asarray(move if r == role else 0 * move, self._dtype) for r in ROLES}
            return float(self._run(self._arrays, self._program.inputs, self._given, row, moves))


def moves_of(
    held: Held, arrays: Sequence[Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], request: Request
) -> tuple[Moves, tuple[str, ...]]:
    """A table to be moved, in float64, where differences are sharp; in float32 where the program knows no other."""
    try:
        moves = Moves(held, arrays, args, kwargs, request, "float64")
    except RefusedError as refused:
        moves = Moves(held, arrays, args, kwargs, request, "float32")
        moves.notes.append(f"checked in float32: in float64 the model raises {type(refused.__cause__).__name__}")
    return moves, tuple(moves.notes)
