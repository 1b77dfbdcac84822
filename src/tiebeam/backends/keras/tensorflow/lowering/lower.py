"""From a flat function graph to core's graph: ids, variables and constants; what each operation means is in `ops`.

A variable is a state: reading it gives the value that it has there, and an assignment makes that another one.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tiebeam.backends.graphs import building
from tiebeam.backends.keras.tensorflow.lowering.axes import broadcast
from tiebeam.ir import Op, Origin, Value


@dataclass(slots=True)
class Draft(building.Draft):
    """A value in the making.

    Attributes:
        tensor: Its name in the flat graph, or "".
    """

    tensor: str = ""


@dataclass(frozen=True, slots=True)
class Step:
    """One operation with its operands and results as ids; what is no value (a handle) has id -1."""

    name: str
    operation: Any
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    where: str

    def attr(self, name: str) -> Any:
        return self.operation.get_attr(name)


class Lowering(building.Building[Draft, Step]):
    """Builds values and nodes.

    Args:
        where: Path of the layer whose call made a node, by its name.
        bodies: By node that runs functions the names of the tensors that each returns.
        shapes: Shapes that only a run tells, by tensor.
    """

    def __init__(
        self,
        where: Callable[[str], str],
        bodies: Mapping[str, Sequence[Sequence[str]]],
        shapes: Mapping[str, tuple[int, ...]],
    ) -> None:
        super().__init__(Draft)
        self.where, self.bodies, self.known_shapes = where, bodies, shapes
        self.operations: list[str] = []  # of each node, the operation that it was made of
        self.ids: dict[str, int] = {}  # of tensors
        self.handles: dict[str, str] = {}  # tensor that is a handle -> the graph's input that it came from
        self.states: dict[str, int] = {}  # handle -> the variable's value now

    # -- values --

    def fresh(self, shape: Sequence[int], dtype: str, inputs: Sequence[int], tensor: str = "") -> int:
        """A value computed from `inputs`."""
        return self.made_of(inputs, shape, dtype, tensor=tensor)

    def known(self, value: int) -> Any:
        """The elements, where they are few and known."""
        return self.drafts[value].concrete

    def integers(self, value: int) -> list[int] | None:
        """Known integers, as axes and sizes are given."""
        concrete = self.known(value)
        return None if concrete is None else [int(n) for n in np.reshape(concrete, -1)]

    def alias(self, at: Step, out: int, value: int) -> None:
        """Let a result be a value that is there already."""
        self.ids[at.operation.outputs[at.outputs.index(out)].name] = value

    def results(self, at: Step) -> list[list[int]]:
        """What each function that an operation runs returns."""
        return [[self.ids.get(name, -1) for name in names] for names in self.bodies[at.operation.name]]

    # -- nodes --

    def emitted(self, at: Step) -> None:
        self.operations.append(at.operation.name)

    def elementwise(self, at: Step, op: Op, inputs: Sequence[int], out: int | None = None, **facts: Any) -> int:
        made = at.outputs[0] if out is None else out
        shape = self.shape(made)
        return self.emit(at, op, inputs, [broadcast(self.shape(v), shape) for v in inputs], [made], **facts)

    def opaque(self, at: Step, *, foreign: bool = False) -> None:
        inputs, outputs = ([v for v in several if v >= 0] for several in (at.inputs, at.outputs))
        if outputs:
            self.emit(at, Op.OPAQUE, inputs, [None] * len(inputs), outputs, foreign=foreign)

    # -- the graph --

    def finished(self, value: int, d: Draft) -> Value:
        whole = super().finished(value, d)
        return whole._replace(dtype="uint8") if d.dtype == "string" else whole  # text is made of integers, ids of text


def lower(low: Lowering, graph: Any) -> None:
    """Lower the operations of a graph whose inputs have ids or are handles already."""
    from tiebeam.backends.keras.tensorflow.lowering.fold import fold, hoist
    from tiebeam.backends.keras.tensorflow.lowering.ops import lower_operation

    for operation in _ordered(graph, low.bodies):
        outputs = operation.outputs
        if (not outputs and operation.type not in STATEFUL) or operation.type == "Placeholder":
            continue
        inputs = tuple(low.ids.get(t.name, -1) for t in operation.inputs)
        made = tuple(_made(low, t, inputs) for t in outputs)
        at = Step(operation.type, operation, inputs, made, low.where(operation.name))
        low.ids.update((t.name, v) for t, v in zip(outputs, made, strict=True) if v >= 0)
        fold(low, at)
        if not hoist(low, at):
            lower_operation(low, at)
        _leave_none(low, at)


def _leave_none(low: Lowering, at: Step) -> None:
    """A result that no rule spoke of came from the operation all the same."""
    left = [
        v
        for t, v in zip(at.operation.outputs, at.outputs, strict=True)
        if v >= 0 and low.ids[t.name] == v and low.drafts[v].producer < 0 and low.drafts[v].origin is Origin.NODE
    ]
    if left:
        inputs = [v for v in at.inputs if v >= 0]
        low.emit(at, Op.OPAQUE, inputs, [None] * len(inputs), left)


def _ordered(graph: Any, bodies: Mapping[str, Sequence[Sequence[str]]]) -> Iterator[Any]:
    """Operations in order, those of the copies before the branch or loop that they stand beside."""
    done: set[str] = set()
    for operation in graph.get_operations():
        waiting = [operation] if bodies else []
        while waiting:
            top = waiting[-1]
            returned = [
                graph.get_tensor_by_name(n) for names in bodies.get(top.name, ()) for n in names if _there(graph, n)
            ]
            before = [t.op for t in (*returned, *top.inputs) if t.op.name not in done]
            if top.name in done or not before:
                waiting.pop()
                if top.name not in done:
                    done.add(top.name)
                    yield top
            else:
                waiting += before
        if not bodies:
            yield operation


def _there(graph: Any, tensor: str) -> bool:
    """Whether a body's result is a node of the graph: a handle that it was given is none."""
    try:
        graph.get_operation_by_name(tensor.partition(":")[0])
    except KeyError:
        return False
    return True


#: Make nothing, and still count.
STATEFUL = frozenset(
    "AssignVariableOp AssignAddVariableOp AssignSubVariableOp ResourceScatterUpdate ResourceScatterAdd "
    "ResourceScatterSub ResourceScatterNdUpdate ResourceScatterNdAdd ResourceStridedSliceAssign".split()
)


def _made(low: Lowering, tensor: Any, inputs: Sequence[int]) -> int:
    dtype = tensor.dtype.base_dtype.name
    if dtype == "resource":
        return -1
    shape = low.known_shapes.get(tensor.name)
    if shape is None:
        shape = tuple(n or 0 for n in tensor.shape.as_list()) if tensor.shape.rank is not None else ()
    return low.fresh(shape, dtype, inputs, tensor.name)
