"""One call of a Keras model on TensorFlow as core's graph: its function graph, lowered; then measured."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import tensorflow as tf

from tiebeam.backends.graphs.building import TINY, known
from tiebeam.backends.graphs.sizes import Sizes, sizes_of
from tiebeam.backends.keras.common import KerasModel
from tiebeam.backends.keras.tensorflow.graph.leaves import HeldVariable, held_variables
from tiebeam.backends.keras.tensorflow.graph.program import Program
from tiebeam.backends.keras.tensorflow.lowering.lower import Lowering, lower
from tiebeam.backends.keras.tensorflow.measure import (
    Evaluator,
    facts_of,
    measured,
    shapes_of,
    unknown_shapes,
)
from tiebeam.ir import Graph, Leaf, Origin

VECTOR = 1 << 16  # elements of a vector whose uniformity is looked at


@dataclass(frozen=True)
class Trace:
    """A traced pass: the graph, and the variable of each leaf.

    Attributes:
        variables: TensorFlow's variable, by `Leaf.key`.
        program: What was traced.
        items: No number can be read out of a tensor of a graph.
    """

    graph: Graph
    variables: Mapping[int, HeldVariable]
    program: Program
    items: bool = False


@dataclass(frozen=True)
class _Reading:
    """A program lowered with the weights as they are: the graph, its variables, and what each value is."""

    graph: Graph
    variables: Mapping[int, HeldVariable]
    tensors: Sequence[str]


def trace(program: Program, view: KerasModel, *, logits: bool, measure: bool) -> Trace:
    """Lower a program and measure what core will ask for.

    Args:
        logits: Also measure the std of logits.
        measure: False: the structure alone.
    """
    reading, program.first = program.first or _read(program, view), None
    if not measure:
        return Trace(reading.graph, reading.variables, program)
    wanted = sizes_of(reading.graph, logits=logits)
    found = measured(program, wanted, {v: reading.tensors[v] for v in wanted.ids})
    return Trace(replace(reading.graph, **facts_of(found, wanted)), reading.variables, program)


def measuring(view: KerasModel, *, logits: bool) -> Callable[[Program], list[Any]]:
    """What adds the measurements to a graph while it is made, so that no other has to be made for them."""

    def extend(program: Program) -> list[Any]:
        held = held_variables(view)
        foreign = any(inner.dtype == tf.resource and id(outer) not in held for outer, inner in program.whole.captures)
        if foreign or unknown_shapes(program):
            return []
        with tf.init_scope():  # the graph is read as data, beside the values that variables have
            low, variables, inputs = _lowered(program, view)
            if _unsettled(low):
                return []
            program.first = _reading(low, program, variables, inputs)
        wanted = sizes_of(program.first.graph, logits=logits)
        made = Evaluator(wanted, {v: program.first.tensors[v] for v in wanted.ids})
        program.compiled[wanted] = made
        return made.read([program.whole.get_tensor_by_name(n) for n in made.tensors])

    return extend


def _read(program: Program, view: KerasModel) -> _Reading:
    low, variables, inputs = _lowered(program, view)
    _settle_numbers(low, program)
    return _reading(low, program, variables, inputs)


def _lowered(program: Program, view: KerasModel) -> tuple[Lowering, dict[int, HeldVariable], list[int]]:
    low = Lowering(program.where, program.flat.results if program.flat else {}, shapes_of(program))
    variables = _leaves(low, program, view)
    inputs = [_input(low, t) for t in program.graph.inputs[: len(program.inputs)]]
    lower(low, program.graph)
    return low, variables, inputs


def _reading(low: Lowering, program: Program, variables: Mapping[int, HeldVariable], inputs: Sequence[int]) -> _Reading:
    outputs = tuple(v for name in program.outputs if (v := low.ids.get(name, -1)) >= 0)
    floats = frozenset(v for v in outputs if low.drafts[v].dtype.startswith(("float", "bfloat")))
    graph = low.graph(inputs=tuple(inputs), outputs=outputs, attached=floats, repeats=_repeats(program.inputs))
    return _Reading(graph, variables, [d.tensor for d in low.drafts])


def _input(low: Lowering, tensor: Any) -> int:
    v = low.add(tensor.shape.as_list(), tensor.dtype.base_dtype.name, Origin.INPUT, given=True, tensor=tensor.name)
    low.ids[tensor.name] = v
    return v


def _leaves(low: Lowering, program: Program, view: KerasModel) -> dict[int, HeldVariable]:
    """Values of the variables and tensors that the graph takes besides its inputs."""
    held = held_variables(view)
    variables: dict[int, HeldVariable] = {}
    for outer, inner in program.graph.captures:
        if inner.dtype != tf.resource:
            dtype = inner.dtype.base_dtype.name
            low.ids[inner.name] = low.add(
                inner.shape.as_list(), dtype, Origin.CONSTANT, tensor=inner.name, **_facts(outer)
            )
            continue
        variable = program.variables.get(id(outer))
        found = held.get(id(outer))
        if found is None and variable is not None:
            found = HeldVariable((variable.name,), False, False, variable, (variable,))
        if found is None:
            continue  # the handle of something else: a hash table
        names, trainable, parameter, variable, _ = found
        floating = variable.dtype.is_floating
        leaf = Leaf(names, len(low.drafts), -1, (0, 0), trainable and floating, parameter)
        variables[leaf.key] = found
        shape, dtype = variable.shape.as_list(), variable.dtype.base_dtype.name
        facts = _vector_facts(variable)
        low.states[inner.name] = low.add(shape, dtype, Origin.LEAF, leaf=leaf, leafy=True, **facts)
    return variables


def _facts(tensor: Any) -> dict[str, Any]:
    small = 0 < tensor.shape.num_elements() <= TINY and tensor.dtype not in (tf.variant, tf.string)
    return known(tensor.numpy()) if small and hasattr(tensor, "numpy") else {}


def _vector_facts(variable: Any) -> dict[str, Any]:
    """Elements of a tiny variable; of a vector, the number that all its elements equal, if so."""
    shape = variable.shape.as_list()
    size = prod(shape)
    if not 0 < size <= VECTOR or (size > TINY and size != max(shape)) or variable.dtype in (tf.string, tf.variant):
        return {}
    host = variable.numpy()
    if size <= 1 or size != max(shape):
        return known(host)
    plain = host.astype(np.float64)
    uniform = {"number": float(plain.flat[0])} if bool((plain == plain.flat[0]).all()) else {}
    return {**known(host), **uniform} if size <= TINY else uniform


def _unsettled(low: Lowering) -> list[int]:
    """One-element values that no input reaches and that are more than a few steps from a number."""
    used = {v for node in low.nodes for v in node.inputs}
    return [
        v
        for v, d in enumerate(low.drafts)
        if d.number is None
        and d.origin is Origin.NODE
        and not d.varying
        and d.tensor
        and d.dtype != "variant"
        and prod(d.shape) == 1
        and v in used
    ]


def _settle_numbers(low: Lowering, program: Program) -> None:
    """Compute what is unsettled."""
    unknown = _unsettled(low)
    if not unknown:
        return
    found = measured(program, Sizes(numbers=frozenset(unknown)), {v: low.drafts[v].tensor for v in unknown})
    for v, array in found["numbers"].items():
        if array.dtype.kind not in "cSUO":
            low.settle(v, np.reshape(array, low.shape(v)))


def _repeats(inputs: Sequence[Any]) -> float | None:
    """Share of positions whose next token is the same token, in the first integer input."""
    for tensor in inputs:
        if tensor.dtype.is_integer and tensor.shape.rank and tensor.shape[-1] > 1:
            host = tensor.numpy()
            return float((host[..., 1:] == host[..., :-1]).mean()) if host.size else None
    return None


@dataclass(frozen=True)
class Placed:
    """A program's graph and what it was made of, for who works on the program itself.

    Attributes:
        tensors: By value, its name in the flat graph, or "".
        operations: By node, the operation that it was made of.
    """

    graph: Graph
    variables: Mapping[int, HeldVariable]
    tensors: Sequence[str]
    operations: Sequence[str]


def placed(program: Program, view: KerasModel) -> Placed:
    """Lower a program with the weights as they are; as before, where no number that it depends on has changed."""
    facts = [_vector_facts(v) for v in program.variables.values()]
    key = [[(n, np.asarray(f).tobytes()) for n, f in several.items()] for several in facts]
    kept: tuple[Any, Placed] | None = program.compiled.get("placed")
    if kept is not None and kept[0] == key:
        return replace(kept[1], graph=replace(kept[1].graph, repeats=_repeats(program.inputs)))
    low, variables, inputs = _lowered(program, view)
    settled = any(low.drafts[v].leafy for v in _unsettled(low))
    _settle_numbers(low, program)
    reading = _reading(low, program, variables, inputs)
    made = Placed(reading.graph, variables, reading.tensors, low.operations)
    if not settled:  # by the weights
        program.compiled["placed"] = key, made
    return made
