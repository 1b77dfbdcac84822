"""A JAX model as tiebeam's public calls use it: trace, ask about weights, draw them anew in a new tree."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tiebeam.backends.jax import weights
from tiebeam.backends.jax.fixes import JaxFixes
from tiebeam.backends.jax.kinds.held import Held, HeldFunction
from tiebeam.backends.jax.measuring.explicit import explicit_axes_said
from tiebeam.backends.jax.measuring.moves import Moves, moves_of
from tiebeam.backends.jax.measuring.passes import differentiate
from tiebeam.backends.jax.measuring.quantising import Swaps
from tiebeam.backends.jax.recall import recalled
from tiebeam.backends.jax.shorten import Arguments, shorter_arguments
from tiebeam.backends.jax.trace import Program, Trace, program_of, trace
from tiebeam.backends.tables import AskedOnce
from tiebeam.core.finding import Finding
from tiebeam.core.findings import Fixes
from tiebeam.core.measuring.passes import Passed, Request, Wanted
from tiebeam.core.measuring.sensitivity import QuantisableTable
from tiebeam.errors import InputError, ShapeError
from tiebeam.ir import Leaf


class JaxModel:
    """One JAX model.

    Arrays do not change: `write` and `zero` keep new ones here, and `rebuilt` is the caller's model, or its params,
    with those in it.

    Args:
        held: The model with its arrays taken out.
        whole: The model holds its arrays itself.
    """

    framework = "jax"
    packages: tuple[str, ...] = ("jax",)

    def __init__(self, held: Held, *, whole: bool = False) -> None:
        self.model = held.model
        self.held, self.whole = held, whole
        self.arrays = [s.array for s in held.slots]
        self._programs: list[tuple[tuple[Any, ...], Mapping[str, Any], Program]] = []
        for slot in held.slots:
            if isinstance(slot.array, jax.Array) and not isinstance(slot.array, jax.core.Tracer):
                _check_alive(slot.array, slot.name, held.name)

    @property
    def name(self) -> str:
        return self.held.name

    @property
    def forward(self) -> Callable[..., Any]:
        """What the inputs go to, for its signature."""
        return self.held.forward

    def arguments(self, inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and keyword arguments, NumPy arrays turned into JAX's."""
        if isinstance(inputs, Mapping):
            return (), {k: _array(v) for k, v in inputs.items()}
        if isinstance(inputs, tuple):
            return tuple(_array(v) for v in inputs), {}
        return (_array(inputs),), {}

    def trace(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        logits: bool = False,
        seed: int | None = None,
        measure: bool = True,
    ) -> Trace:
        """One application of the model; what it draws comes of its own keys, whatever the `seed`."""
        program = next((p for a, k, p in self._programs if a is args and k is kwargs), None)
        if program is None:
            program = program_of(self.held, self.arrays, args, kwargs)
            self._programs.append((args, kwargs, program))
        return trace(program, self.held, self.arrays, logits=logits, measure=measure)

    def differentiate(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], request: Request
    ) -> tuple[Trace, Wanted, Passed]:
        """One forward and one backward pass; see `protocol.Differentiable`."""
        with explicit_axes_said(self.arrays):
            return differentiate(recalled(self.held, self.arrays, args, kwargs), self.held, self.arrays, request)

    def movable(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], request: Request
    ) -> tuple[Moves, tuple[str, ...]]:
        """The main table, to be moved in one role alone; see `protocol.Movable`."""
        with explicit_axes_said(self.arrays):
            return moves_of(self.held, self.arrays, args, kwargs, request)

    def quantisable(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> QuantisableTable:
        """The tables that the roles read, to be rounded in one role alone; see `protocol.Quantisable`."""
        return Swaps(self.held, self.arrays, args, kwargs)

    def shorter(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Arguments]:
        return shorter_arguments(args, kwargs)

    def diagnose(self) -> Finding | ShapeError | None:
        return None

    def weights(self, traced: Trace) -> AskedOnce[Any]:
        arrays = {key: self.arrays[place] for key, place in traced.places.items()}
        return AskedOnce(arrays, weights.table_statistics, weights.distance)

    def parameters(self) -> int:
        """Elements of all parameters, each once."""
        return sum(int(np.prod(s.array.shape)) for s in self.held.slots if s.parameter)

    def fixes(self) -> Fixes:
        return JaxFixes(self.held, whole=self.whole)

    def trainable_elsewhere(self, names: Sequence[str]) -> float:
        """1 where there are other parameters: which of them an optimizer steps is not in a JAX model."""
        return 1.0 if any(s.parameter and s.floating and s.name not in names for s in self.held.slots) else 0.0

    def body_dtype(self, names: Sequence[str]) -> str | None:
        """Dtype of most elements of all floating parameters but `names`."""
        counts: dict[str, int] = {}
        for s in self.held.slots:
            if s.parameter and s.floating and s.name not in names:
                dtype = str(s.array.dtype)
                counts[dtype] = counts.get(dtype, 0) + int(np.prod(s.array.shape))
        return max(counts, key=lambda d: counts[d]) if counts else None

    def shared(self) -> tuple[tuple[str, ...], ...]:
        """Groups of paths that are one variable."""
        return tuple(s.names for s in self.held.slots if len(s.names) > 1)

    def devices(self) -> dict[str, str]:
        """No map: arrays know where they lie."""
        return {}

    def vocab_bound(self) -> int | None:
        """An upper bound for token ids: the tallest array called an embedding, or the largest matrix's longer side."""
        matrices = [s for s in self.held.slots if s.parameter and len(s.array.shape) == 2]
        tables = [s for s in matrices if "embed" in s.name.lower()]
        return max((max(s.array.shape) for s in tables or matrices), default=None)

    def check_writable(self, traced: Trace, leaf: Leaf) -> None:
        weights.check_writable(self.arrays[traced.places[leaf.key]], leaf.name)

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
        place = traced.places[leaf.key]
        self.arrays[place] = weights.drawn(
            self.arrays[place], vocab_axis=vocab_axis, seed=seed, ordinal=ordinal, std=std, zero_rows=zero_rows
        )

    def keep(self, traced: Trace, leaf: Leaf) -> Callable[[], None]:
        """Remember a table; the result puts it back."""
        return self._put_back([traced.places[leaf.key]])

    def zero_rows(self, traced: Trace, leaf: Leaf, vocab_axis: int) -> tuple[int, ...]:
        """Rows that are all zero; none where all are, for nothing says which of them are padding."""
        table = self.arrays[traced.places[leaf.key]]
        rows = weights.zero_rows(table, vocab_axis)
        return rows if len(rows) < weights.flat_shape(tuple(table.shape))[vocab_axis] else ()

    def zero(self, names: Sequence[str]) -> tuple[tuple[str, ...], Callable[[], None]]:
        """Set parameters to zero: the names that were, and what puts them back."""
        slots = enumerate(self.held.slots)
        places = {n: i for i, s in slots if s.parameter and s.floating for n in s.names}
        found = tuple(n for n in names if n in places)
        put_back = self._put_back([places[n] for n in found])
        for n in found:
            self.arrays[places[n]] = weights.zeros(self.arrays[places[n]])
        return found, put_back

    def _put_back(self, places: Sequence[int]) -> Callable[[], None]:
        """What sets arrays to those that lie there now: arrays do not change, so none is copied."""
        kept = [(place, self.arrays[place]) for place in places]

        def put_back() -> None:
            for place, array in kept:
                self.arrays[place] = array

        return put_back

    def rebuilt(self) -> Any:
        """The caller's module, or its params, with what was written."""
        return self.held.rebuilt(self.arrays)


def _array(value: Any) -> Any:
    if isinstance(value, jax.Array) and not isinstance(value, jax.core.Tracer):
        _check_alive(value, "", "the batch")
    return jnp.asarray(value) if isinstance(value, np.ndarray | np.generic) else value


def _check_alive(array: Any, name: str, model: str) -> None:
    if array.is_deleted():
        raise InputError(
            f"the array {name!r} of {model} is gone" if name else f"an array of {model} is gone",
            got="an array that was deleted or donated",
            expected="arrays that still hold their values",
            hint="pass what the last training step returned: a jitted step with donate_argnums eats its arguments",
        )


def of_function(model: Any, params: Any) -> JaxModel:
    """A function of a params tree."""
    return JaxModel(HeldFunction(model, params))


def of_linen(model: Any, params: Any) -> JaxModel:
    """A linen module beside its variables."""
    from tiebeam.backends.jax.kinds.linen import HeldLinen

    return JaxModel(HeldLinen(model, params))


def of_nnx(model: Any, params: Any) -> JaxModel:
    """An nnx module."""
    from tiebeam.backends.jax.kinds.nnx import HeldNnx

    return JaxModel(HeldNnx(model, params), whole=params is None)


def of_equinox(model: Any, params: Any) -> JaxModel:
    """An Equinox module."""
    from tiebeam.backends.jax.kinds.equinox import HeldEquinox

    return JaxModel(HeldEquinox(model, params), whole=True)
