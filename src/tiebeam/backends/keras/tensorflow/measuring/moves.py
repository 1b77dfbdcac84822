"""Moving a table in one role alone: the split graph, its roles' tensors moved by what is asked."""

from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tiebeam.backends.keras.tensorflow import measure as sizes
from tiebeam.backends.keras.tensorflow.graph.program import Program
from tiebeam.backends.keras.tensorflow.measuring import numbers
from tiebeam.backends.keras.tensorflow.measuring.passes import Pass, integers
from tiebeam.backends.keras.tensorflow.measuring.split import Again, Key
from tiebeam.backends.keras.tensorflow.trace import Placed
from tiebeam.core.measuring.gradient_check import reads_in_both
from tiebeam.core.measuring.passes import ROLES, Request
from tiebeam.core.reading.provenance import coarsest
from tiebeam.errors import InputError

STEPS = {"float64": 1e-3, "float32": 5e-2}
"""Steps of a difference, in units of the table's std, by what the model computes in."""

HALF_EPS = {"bfloat16": 2.0**-7, "float16": 2.0**-10}
"""Distance from 1 to the next number: NumPy knows no bfloat16."""


class Moves:
    """One table of a model; see `core.gradient_check.MovableTable`. Nothing is copied, and the variable stays.

    Args:
        request: What the loss is.
        again: As `Split.again`.

    Raises:
        InputError: No table is read in both roles through one variable, or it cannot be moved in one alone.
    """

    def __init__(self, program: Program, placed: Placed, request: Request, again: Again) -> None:
        self.program, self._pass = program, Pass(program, placed, request, again)
        asked, split = self._pass.asked, self._pass.split
        reads = reads_in_both(asked, placed.graph)
        self._leaf = reads[0].leaf
        self._axis = reads[0].vocab_axis
        held = placed.variables[self._leaf]
        self.name = held.names[0]
        if not held.trainable:
            raise InputError(f"{self.name!r} gets no gradient that could be checked", got="a table that is frozen")
        if any(r.leaf == self._leaf for r in split.lost):
            raise InputError(
                f"{self.name!r} cannot be moved in one role alone",
                got="a read inside of a branch, a loop or one operation for both roles",
                hint="check a smaller part of the model",
            )
        table = numbers.rows_first(held.variable.value(), self._axis)
        self.vocab, self.width = table.shape.as_list()
        self.std = float(tf.norm(numbers.wide(table))) / max(1, self.vocab * self.width) ** 0.5 or 1.0
        narrow = placed.graph.values[asked.logits].dtype if asked.logits is not None else "float32"
        exact = "float64" if narrow == "float64" and held.variable.dtype == tf.float64 else "float32"
        rounded = coarsest(placed.graph, self._leaf, asked.end(request))
        self.step, self.eps = STEPS[exact], HALF_EPS.get(rounded or "", float(np.finfo(exact).eps)) / 2
        ids = [r.ids for r in reads if r.ids is not None]
        found = integers(program, placed, ids)
        looked_up = {int(i) for array in found.values() for i in np.asarray(array).reshape(-1)}
        self.held = tuple(sorted(i for i in looked_up if 0 <= i < self.vocab))
        self._gradient = self._pass.whole(self._leaf)
        self._function = split.function(program.outputs, self._loss, self._moved, _specs(self.width, table.dtype))
        self._dtype = table.dtype.as_numpy_dtype

    def _loss(self, found: Any, handles: Any, tables: Any, *moves: Any) -> Any:
        return self._pass.objective(self.program, found, self._pass.objective.given)

    def _moved(self, key: Key, table: Any, row: Any, *moves: Any) -> Any:
        """The table with a row moved by what this role is to be moved by."""
        leaf, role = key
        if leaf != self._leaf:
            return table
        move = moves[ROLES.index(role)]
        rows = numbers.rows_first(table, self._axis)
        rows = tf.tensor_scatter_nd_add(rows, [[row]], [tf.cast(move, rows.dtype)])
        return tf.reshape(rows if self._axis == 0 else tf.transpose(rows), table.shape)

    def gradient(self, row: int) -> npt.NDArray[np.float64]:
        """What the backward pass gives for a row."""
        found: npt.NDArray[np.float64] = np.asarray(self._gradient[row], np.float64)
        return found

    def loss(self, role: str, row: int, move: npt.NDArray[np.float64]) -> float:
        """The loss with a row moved in one role."""
        moves = [tf.constant(move * (r == role), self._dtype) for r in ROLES]
        return float(sizes.run(self.program, self._function, tf.constant(row, tf.int32), *moves))


def _specs(width: int, dtype: Any) -> list[Any]:
    return [tf.TensorSpec((), tf.int32), *(tf.TensorSpec((width,), dtype) for _ in ROLES)]
