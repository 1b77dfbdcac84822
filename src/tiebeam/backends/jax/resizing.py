"""Other rows for a table of a params tree, and for what an optax state holds of it: new trees, the old ones stay."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tiebeam.backends.jax.kinds.tree import Tree, is_abstract
from tiebeam.backends.jax.model import JaxModel
from tiebeam.core.facts import Table
from tiebeam.core.operations.rows import RowPlan, kept_rows, resized
from tiebeam.core.operations.state import of_new_rows, rows_axis
from tiebeam.errors import TieError


def resize(
    model: JaxModel, tables: Sequence[Table], plan: RowPlan, state: Any
) -> tuple[Any, Any, tuple[str, ...], tuple[str, ...]]:
    """Both ends, their biases, and the optimizer's state.

    Returns:
        New params, the new state, the names of the biases, and what became of the state.

    Raises:
        TieError: An array has no axis of the vocabulary, holds no floats, or lies on several devices.
    """
    places = {n: i for i, s in enumerate(model.held.slots) for n in s.names}
    biases = tuple(dict.fromkeys(b for t in tables for r in t.readouts for b in r.bias))
    todo: list[tuple[str, int, int | None]] = [(t.name, t.vocab_axis, i) for i, t in enumerate(tables)]
    todo += [(b, _axis_of(b, model.arrays[places[b]], plan.before), None) for b in biases]
    axes = {}
    for name, axis, _ in todo:
        array = model.arrays[places[name]]
        _check(name, array)
        axes[model.held.slots[places[name]].name] = (tuple(array.shape), axis)
    made = {places[name]: _made(model.arrays[places[name]], axis, plan, ordinal) for name, axis, ordinal in todo}
    fresh, said = _state(state, axes, plan)
    for place, array in made.items():
        model.arrays[place] = array
    return model.rebuilt(), fresh, biases, said


def within(args: tuple[Any, ...], kwargs: Mapping[str, Any], vocab: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Inputs whose token ids a smaller vocabulary has too."""

    def bounded(value: Any) -> Any:
        if not hasattr(value, "dtype") or is_abstract(value) or not jnp.issubdtype(value.dtype, jnp.integer):
            return value
        return jnp.where(value < vocab, value, value % vocab)

    return tuple(map(bounded, args)), {k: bounded(v) for k, v in kwargs.items()}


def _axis_of(name: str, array: Any, vocab: int) -> int:
    fitting = [i for i, n in enumerate(array.shape) if n == vocab]
    if len(fitting) != 1:
        raise TieError(
            f"{name!r} has no axis of the vocabulary", got=str(tuple(array.shape)), expected=f"{vocab} on one"
        )
    return fitting[0]


def _check(name: str, array: Any) -> None:
    if not jnp.issubdtype(array.dtype, np.floating):
        raise TieError(f"{name!r} holds no floats", got=str(array.dtype), hint="resize before quantising")
    if isinstance(array, jax.Array) and not is_abstract(array) and len(array.sharding.device_set) > 1:
        raise TieError(
            f"{name!r} lies on {len(array.sharding.device_set)} devices",
            expected="one device",
            hint="resize before sharding, and shard what comes back: its rows may divide otherwise",
        )


def _made(array: Any, axis: int, plan: RowPlan, ordinal: int | None) -> Any:
    if is_abstract(array):
        shape = tuple(plan.after if i == axis else n for i, n in enumerate(array.shape))
        return jax.ShapeDtypeStruct(shape, array.dtype)  # type: ignore[no-untyped-call]
    return _as(array, resized(np.asarray(array), axis, plan, ordinal))


def _as(like: Any, values: Any) -> Any:
    if not isinstance(like, jax.Array):
        return values
    placed = jax.device_put(values, like.sharding) if getattr(like, "committed", False) else jnp.asarray(values)
    return placed.astype(like.dtype)


def _state(state: Any, axes: Mapping[str, tuple[tuple[int, ...], int]], plan: RowPlan) -> tuple[Any, tuple[str, ...]]:
    """An optax state holds trees like the params: an array belongs to the parameter that its path ends with."""
    if state is None:
        return None, ()
    tree = Tree(state)
    fresh, said = list(tree.arrays), []
    for name, (shape, axis) in axes.items():
        short = name.partition(".")[2]  # an optimizer is often given the inner tree alone
        ends = [n for n in (name, short) if n and any(t.endswith(f".{n}") for t in tree.names)]
        if not ends:
            continue
        done = []
        for i, (path, array) in enumerate(zip(tree.names, tree.arrays, strict=True)):
            if not path.endswith(f".{ends[0]}"):
                continue
            entry = path.removesuffix(f".{ends[0]}").rpartition(".")[2]
            where = rows_axis(entry, tuple(array.shape), shape, axis)
            if where is not None:
                fresh[i] = _as(array, _rows(entry, np.asarray(array), where, plan))
                done.append(entry)
        said.append(f"{name}: {', '.join(done) or 'nothing'} with its rows")
    return tree.rebuilt(fresh), tuple(said)


def _rows(entry: str, old: Any, axis: int, plan: RowPlan) -> Any:
    made = kept_rows(old, axis, plan)
    if of_new_rows(entry) == "mean" and len(plan.new):
        np.moveaxis(made, axis, 0)[plan.new] = np.moveaxis(old, axis, 0).astype(np.float64).mean(0)
    return made
