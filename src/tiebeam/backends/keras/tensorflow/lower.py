"""From a flat function graph to core's graph: ids, variables and constants; what each operation means is in `ops`.

A variable is a state: reading it gives the value that it has there, and an assignment makes that another one.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import tensorflow as tf

from tiebeam.backends.keras.tensorflow.axes import broadcast
from tiebeam.ir import Axes, Graph, Leaf, Node, Op, Origin, Value

TINY = 16  # elements of a constant whose value is followed


@dataclass(slots=True)
class Draft:
    """A value in the making.

    Attributes:
        concrete: Its elements, where they are few and known.
        given: An input reached it; `random`: a random number did; `leafy`: a leaf did.
        tensor: Its name in the flat graph, or "".
    """

    shape: tuple[int, ...]
    dtype: str
    origin: Origin
    producer: int = -1
    leaf: Leaf | None = None
    number: float | None = None
    concrete: Any = None
    given: bool = False
    random: bool = False
    leafy: bool = False
    tensor: str = ""

    @property
    def varying(self) -> bool:
        return self.given or self.random


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


class Lowering:
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
        self.where, self.bodies, self.known_shapes = where, bodies, shapes
        self.drafts: list[Draft] = []
        self.nodes: list[Node] = []
        self.operations: list[str] = []  # of each node, the operation that it was made of
        self.ids: dict[str, int] = {}  # of tensors
        self.handles: dict[str, str] = {}  # tensor that is a handle -> the graph's input that it came from
        self.states: dict[str, int] = {}  # handle -> the variable's value now
        self.literals: dict[tuple[float, str], int] = {}
        self.notes: dict[str, None] = {}

    # -- values --

    def shape(self, value: int) -> tuple[int, ...]:
        return self.drafts[value].shape

    def rank(self, value: int) -> int:
        return len(self.drafts[value].shape)

    def add(self, shape: Sequence[int], dtype: str, origin: Origin, **facts: Any) -> int:
        self.drafts.append(Draft(tuple(shape), dtype, origin, **facts))
        return len(self.drafts) - 1

    def number(self, number: float, dtype: str = "float32") -> int:
        """A number that the program wrote."""
        key = (number, dtype)
        if key not in self.literals:
            concrete = np.asarray(number, tf.as_dtype(dtype).as_numpy_dtype)
            self.literals[key] = self.add((), dtype, Origin.LITERAL, number=number, concrete=concrete)
        return self.literals[key]

    def fresh(self, shape: Sequence[int], dtype: str, inputs: Sequence[int], tensor: str = "") -> int:
        """A value computed from `inputs`."""
        read = [self.drafts[v] for v in inputs if v >= 0]
        return self.add(
            shape,
            dtype,
            Origin.NODE,
            given=any(d.given for d in read),
            random=any(d.random for d in read),
            leafy=any(d.leafy for d in read),
            tensor=tensor,
        )

    def known(self, value: int) -> Any:
        """The elements, where they are few and known."""
        return self.drafts[value].concrete

    def integers(self, value: int) -> list[int] | None:
        """Known integers, as axes and sizes are given."""
        concrete = self.known(value)
        return None if concrete is None else [int(n) for n in np.reshape(concrete, -1)]

    def uniform(self, value: int) -> float | None:
        """The number that all elements equal, where the program says so."""
        for _ in range(8):
            draft = self.drafts[value]
            if draft.number is not None:
                return draft.number
            if draft.producer < 0 or self.nodes[draft.producer].op not in (Op.LAYOUT, Op.CAST):
                return None
            value = self.nodes[draft.producer].inputs[0]
        return None

    def scalar_behind(self, value: int) -> int | None:
        """The value of one element that `value` is an arrangement of, or None."""
        while prod(self.shape(value)) != 1:
            producer = self.drafts[value].producer
            if producer < 0 or self.nodes[producer].op is not Op.LAYOUT:
                return None
            value = self.nodes[producer].inputs[0]
        return value

    def settle(self, value: int, concrete: Any) -> None:
        """Take in what a constant was computed to be."""
        for name, fact in known(concrete).items():
            setattr(self.drafts[value], name, fact)

    def alias(self, at: Step, out: int, value: int) -> None:
        """Let a result be a value that is there already."""
        self.ids[at.operation.outputs[at.outputs.index(out)].name] = value

    def results(self, at: Step) -> list[list[int]]:
        """What each function that an operation runs returns."""
        return [[self.ids.get(name, -1) for name in names] for names in self.bodies[at.operation.name]]

    # -- nodes --

    def emit(
        self,
        at: Step,
        op: Op,
        inputs: Sequence[int],
        axes: Sequence[Axes | None],
        outputs: Sequence[int] | None = None,
        **facts: Any,
    ) -> int:
        index = len(self.nodes)
        outs = at.outputs[:1] if outputs is None else tuple(outputs)
        facts.setdefault("attached", (None,) * len(inputs))
        facts.setdefault("label", at.name)
        node = Node(index=index, op=op, inputs=tuple(inputs), outputs=outs, axes=tuple(axes), where=at.where, **facts)
        self.nodes.append(node)
        self.operations.append(at.operation.name)
        for v in outs:
            self.drafts[v].producer = index
        return outs[0]

    def elementwise(self, at: Step, op: Op, inputs: Sequence[int], out: int | None = None, **facts: Any) -> int:
        made = at.outputs[0] if out is None else out
        shape = self.shape(made)
        return self.emit(at, op, inputs, [broadcast(self.shape(v), shape) for v in inputs], [made], **facts)

    def opaque(self, at: Step, *, foreign: bool = False) -> None:
        inputs, outputs = ([v for v in several if v >= 0] for several in (at.inputs, at.outputs))
        if outputs:
            self.emit(at, Op.OPAQUE, inputs, [None] * len(inputs), outputs, foreign=foreign)

    # -- the graph --

    def graph(self, **facts: Any) -> Graph:
        def dtype(name: str) -> str:
            return "uint8" if name == "string" else name  # text is made of integers, and ids are made of text

        values = tuple(
            Value(
                id=i,
                shape=d.shape,
                dtype=dtype(d.dtype),
                origin=d.origin,
                producer=d.producer,
                leaf=d.leaf,
                number=d.number,
            )
            for i, d in enumerate(self.drafts)
        )
        return Graph(values=values, nodes=tuple(self.nodes), notes=tuple(self.notes), **facts)


def known(array: Any) -> dict[str, Any]:
    """Facts of a small array: its elements, and its number where it has one element."""
    size = prod(np.shape(array))
    if size > TINY or size == 0:
        return {}
    host = np.asarray(array)
    if size != 1 or host.dtype.kind in "cSUO":
        return {"concrete": host}
    return {"concrete": host, "number": float(host.reshape(()).astype(np.float64))}


def lower(low: Lowering, graph: Any) -> None:
    """Lower the operations of a graph whose inputs have ids or are handles already."""
    from tiebeam.backends.keras.tensorflow.fold import fold, hoist
    from tiebeam.backends.keras.tensorflow.ops import lower_operation

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
