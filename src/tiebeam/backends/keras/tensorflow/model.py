"""A Keras model on TensorFlow as tiebeam's public calls use it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tiebeam.backends.keras.common import KerasModel
from tiebeam.backends.keras.tensorflow import weights
from tiebeam.backends.keras.tensorflow.graph.glance import glance
from tiebeam.backends.keras.tensorflow.graph.leaves import copies_of
from tiebeam.backends.keras.tensorflow.graph.program import Program, program_of
from tiebeam.backends.keras.tensorflow.graph.recall import calling, recalled
from tiebeam.backends.keras.tensorflow.measuring.moves import Moves
from tiebeam.backends.keras.tensorflow.measuring.passes import differentiate
from tiebeam.backends.keras.tensorflow.trace import Trace, measuring, placed, trace
from tiebeam.backends.tables import AskedOnce
from tiebeam.core.measuring.gradient_check import MovableTable
from tiebeam.core.measuring.passes import Passed, Request, Wanted
from tiebeam.core.reading.arithmetic import Arithmetic
from tiebeam.ir import Leaf


class TensorflowModel(KerasModel):
    """One Keras model whose variables are TensorFlow's.

    Args:
        model: A built Keras model or layer.
    """

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self._programs: list[tuple[tuple[Any, ...], Mapping[str, Any], Program]] = []

    def trace(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        logits: bool = False,
        seed: int | None = None,
        measure: bool = True,
    ) -> Trace:
        """One call of the model; its random operations keep their own seeds, whatever the `seed`."""
        program = next((p for a, k, p in self._programs if a is args and k is kwargs), None)
        if program is None:
            program = program_of(self, args, kwargs, measuring(self, logits=logits) if measure else lambda _: [])
            self._programs.append((args, kwargs, program))
        noted: Trace = self.noted(trace(program, self, logits=logits, measure=measure))
        return noted

    def differentiate(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], request: Request
    ) -> tuple[Trace, Wanted, Passed]:
        """One forward and one backward pass; see `protocol.Differentiable`."""
        program = recalled(self, args, kwargs)
        traced, asked, passed = differentiate(program, placed(program, self), request, calling(self, args, kwargs))
        return self.noted(traced), asked, passed

    def movable(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], request: Request
    ) -> tuple[MovableTable, tuple[str, ...]]:
        """The main table, moved in the graph alone."""
        program = recalled(self, args, kwargs)
        return Moves(program, placed(program, self), request, calling(self, args, kwargs)), ()

    def does_the_same(
        self, traced: Trace, expected: Arithmetic, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> bool:
        """Whether one call without a graph does the same arithmetic over these inputs."""
        return glance(traced.program, self, expected, args, kwargs)

    def weights(self, traced: Trace) -> AskedOnce[Any]:
        variables = {key: held.variable for key, held in traced.variables.items()}
        return AskedOnce(variables, weights.table_statistics, weights.distance)

    def check_writable(self, traced: Trace, leaf: Leaf) -> None:
        weights.check_writable(traced.variables[leaf.key].variable, leaf.name)

    def write(
        self,
        traced: Trace,
        leaf: Leaf,
        *,
        vocab_axis: int,
        seed: int,
        ordinal: int,
        std: float,
        zero_rows: tuple[int, ...],
    ) -> None:
        for variable in traced.variables[leaf.key].copies:
            weights.draw(variable, vocab_axis=vocab_axis, seed=seed, ordinal=ordinal, std=std, zero_rows=zero_rows)

    def keep(self, traced: Trace, leaf: Leaf) -> Callable[[], None]:
        """Copy a table; the result puts it back."""
        return _put_back(traced.variables[leaf.key].copies)

    def zero_rows(self, traced: Trace, leaf: Leaf, vocab_axis: int) -> tuple[int, ...]:
        """Rows that are all zero; none where all are, for nothing says which of them are padding."""
        variable = traced.variables[leaf.key].variable
        rows = weights.zero_rows(variable, vocab_axis)
        return rows if len(rows) < weights.vocab_of(variable, vocab_axis) else ()

    def zero(self, names: Sequence[str]) -> tuple[tuple[str, ...], Callable[[], None]]:
        """Set trainable parameters to zero: the names that were, and what puts them back."""
        found = self.variables.to_zero(names)
        variables = [copy for v in found for copy in copies_of(v.variable._value)]
        put_back = _put_back(variables)
        for variable in variables:
            variable.assign(tf.zeros_like(variable))
        return tuple(v.name for v in found), put_back


def _put_back(variables: Sequence[Any]) -> Callable[[], None]:
    kept = [(v, tf.identity(v.read_value())) for v in variables]

    def put_back() -> None:
        for variable, value in kept:
            variable.assign(value)

    return put_back
