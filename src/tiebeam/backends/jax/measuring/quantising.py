"""Another table in one role alone: a program is run with a table for each kind of use, compiled once."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from tiebeam.backends.jax.kinds.held import Held
from tiebeam.backends.jax.measuring.numbers import rows_first
from tiebeam.backends.jax.measuring.parted import Kind, Parted
from tiebeam.backends.jax.measuring.passes import values_of
from tiebeam.backends.jax.measuring.roles import Places, Roles
from tiebeam.backends.jax.recall import recalled
from tiebeam.backends.jax.trace import Lowered, seen_again
from tiebeam.core.measuring.passes import ROLES, Role, Wanted
from tiebeam.core.measuring.quantise import Rows
from tiebeam.errors import InputError

Tables = Mapping[int, Mapping[str, Any]]


class Swaps:
    """The tables of a program that each role reads; see `core.sensitivity.QuantisableTable`.

    Args:
        held: The model with its arrays taken out.
        arrays: Its arrays.

    Raises:
        InputError: It returns no logits, holds no values, or one operation reads the table in both roles at once.
    """

    def __init__(self, held: Held, arrays: Sequence[Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self._program = recalled(held, arrays, args, kwargs)
        self._arrays = list(arrays)
        low = seen_again(self._program, held, arrays)
        if low.graph.meta:
            raise InputError("there is nothing to round", got="shapes without values", expected="real arrays")
        self._low, self._leaves = low, dict[Role, dict[int, int]]()
        self.names: dict[Role, str] = {}
        self._read(low, low.asked)

    def _read(self, low: Lowered, asked: Wanted) -> None:
        graph = low.graph
        if asked.logits is None or None in asked.main:
            raise InputError(
                "nothing can be compared",
                got="a table in one role" if asked.logits is not None else "a model that returns no logits",
                expected="logits, and a table that is looked up and one that is read out",
                hint="tiebeam.inspect(model, inputs) says what is read where",
            )
        self._at = graph.outputs.index(asked.logits)
        names = {v.leaf.key: v.leaf.name for v in graph.values if v.leaf is not None}
        for role, main in zip(ROLES, asked.main, strict=True):
            reads = [r for r in asked.reads if r.role == role and r.table == main]
            self._leaves[role] = {r.leaf: r.vocab_axis for r in reads}
            self.names[role] = names[reads[0].leaf]
        self.tied = asked.main[0] == asked.main[1]
        self.dtype = str(self._array(next(iter(self._leaves["readout"]))).dtype)
        self._roles = Roles(Places.of(graph, asked.reads, low.paths), custom=True)
        self._check_apart()
        self._run = jax.jit(self._logits)
        ids = [r.ids for r in asked.reads if r.role == "lookup" and r.table == asked.main[0] and r.ids is not None]
        found = values_of(self._program, low, self._arrays, ids)
        vocab = len(self.rows("lookup"))
        looked_up = {int(i) for v in found.values() for i in np.asarray(v).reshape(-1)}
        self.held = tuple(sorted(i for i in looked_up if 0 <= i < vocab))

    def _array(self, key: int) -> Any:
        return self._arrays[self._low.places[key]]

    def _check_apart(self) -> None:
        args: list[Any] = [None] * (len(self._arrays) + len(self._program.inputs))
        for key in {k for leaves in self._leaves.values() for k in leaves}:
            args[self._low.places[key]] = Parted(frozenset({key}), lambda kind: None)
        self._roles.used(self._low.frame, self._program.closed.consts, args)
        if self._roles.joined:
            raise InputError(
                f"{self.names['readout']!r} cannot be rounded in one role alone",
                got=f"{next(iter(self._roles.joined))}, which reads it in both",
                hint="measure the operation by itself",
            )

    def rows(self, role: Role) -> Rows:
        """The table that a role reads."""
        key, axis = next(iter(self._leaves[role].items()))
        found: Rows = np.asarray(rows_first(self._array(key), axis), np.float32)
        return found

    def logits(self, instead: Mapping[Role, Rows]) -> npt.NDArray[np.float32]:
        """Logits with other rows in some roles."""
        tables: dict[int, dict[str, Any]] = {}
        for role, leaves in self._leaves.items():
            for key, axis in leaves.items():
                like = self._array(key)
                rows = instead.get(role)
                turned = None if rows is None else rows if axis == 0 else rows.T
                made = like if turned is None else jnp.asarray(turned, like.dtype).reshape(like.shape)
                tables.setdefault(key, {})[role] = made
        found: npt.NDArray[np.float32] = np.asarray(self._run(self._arrays, self._program.inputs, tables))
        return found

    def _logits(self, arrays: Sequence[Any], inputs: Sequence[Any], tables: Tables) -> Any:
        values = [*arrays, *inputs]
        for key, made in tables.items():
            place = self._low.places[key]
            values[place] = Parted(frozenset({key}), _of(made, values[place]))
        results = self._roles.run(self._low.frame, self._program.closed.consts, values)
        logits = results[self._at]
        whole = logits.get("other") if isinstance(logits, Parted) else logits
        return jnp.asarray(whole, jnp.float32).reshape(-1, whole.shape[-1])


def _of(made: Mapping[str, Any], table: Any) -> Any:
    """The table for a kind of use."""

    def of(kind: Kind) -> Any:
        return made.get(kind, table)

    return of
