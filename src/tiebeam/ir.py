"""The graph of one forward pass, as every backend hands it to core.

Frozen data, NumPy-free and framework-free. A `Value` is one tensor at one moment (an in-place write
makes a new value); a `Node` is one operation. What an operation does to *axes* is data on the node
(`Node.axes`), so core follows a table's vocabulary and width without knowing any framework's ops.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import cached_property
from typing import NamedTuple

from tiebeam.errors import TraceError

Axes = tuple[int, ...]
"""For each axis of the output, the operand's axis it carries, or -1."""


class Op(Enum):
    """What core can tell apart. Everything else is `OPAQUE`: a barrier."""

    LAYOUT = auto()  # the same elements, or some of them, arranged anew
    CAST = auto()  # the same elements in another dtype, or a copy
    DROPOUT = auto()
    MASK = auto()  # some elements replaced by a constant
    UPDATE = auto()  # operand 0 with some elements replaced by operand 1
    CONCAT = auto()
    ADD = auto()
    SUB = auto()
    MUL = auto()
    DIV = auto()
    TANH = auto()
    SIGMOID = auto()
    POINTWISE = auto()  # any other elementwise function
    REDUCE = auto()  # axes that no output axis carries are reduced
    SOFTMAX = auto()  # along `Node.axis`; log-softmax too
    GATHER = auto()  # operand 0 read along `Node.axis` at the integers of operand 1
    DOT = auto()  # product of operands 0 and 1, summed over the axes that neither output axis carries
    NORMALIZE = auto()  # operand 0 divided by its own size; operands 1.. are gain and bias
    LOSS = auto()  # operand 0 read at integer targets along `Node.axis` (-1: each against a target), then reduced
    OPAQUE = auto()


class Origin(Enum):
    """Where a value comes from when no node made it."""

    NODE = auto()
    INPUT = auto()
    LEAF = auto()  # a parameter or buffer of the model
    LITERAL = auto()  # a number in the program
    CONSTANT = auto()  # a tensor that the program made from nothing
    RANDOM = auto()  # ... and drew at random: a dropout mask, a noise


class Leaf(NamedTuple):  # a dataclass that is frozen costs four times as much to make
    """A parameter or buffer, as the model named it at the moment of use.

    Attributes:
        names: Every path of this one object, owner first.
        key: Identity of the object within the pass; equal keys are one parameter.
        storage: Identity of its storage.
        span: First and past-the-last element of the storage it covers; leaves of one storage whose
            spans overlap share memory.
        trainable: Whether gradients are asked for.
        parameter: False for a buffer or a plain tensor attribute.
        fetched: A wrapper put the object in place for this pass (offloading, sharding): no optimizer holds it.
    """

    names: tuple[str, ...]
    key: int
    storage: int
    span: tuple[int, int]
    trainable: bool
    parameter: bool
    fetched: bool = False

    @property
    def name(self) -> str:
        return self.names[0] if self.names else "<unnamed tensor>"


class Value(NamedTuple):
    """One tensor at one moment.

    Attributes:
        number: The element of a one-element tensor that no input reached, or the one that all elements of a
            leaf vector, or of a tensor made by filling, equal; else None.
        lost: Whether that element exists but its value is gone (meta tensors).
    """

    id: int
    shape: tuple[int, ...]
    dtype: str
    origin: Origin
    producer: int = -1
    leaf: Leaf | None = None
    number: float | None = None
    lost: bool = False

    @property
    def size(self) -> int:
        n = 1
        for d in self.shape:
            n *= d
        return n

    @property
    def integral(self) -> bool:
        return self.dtype.startswith(("int", "uint", "bool"))


class Node(NamedTuple):
    """One operation.

    Attributes:
        inputs: Operand value ids.
        axes: For each operand its `Axes`, or None where the operand carries no axis into the output.
        attached: For each operand, whether a gradient would flow to it (None where unknown).
        recorded: Whether gradients were being recorded at all (False under no_grad).
        axis: The axis of operand 0 that GATHER, SOFTMAX, CONCAT or LOSS work along.
        degree: f(t*x) = t**degree * f(x) for t > 0, where that holds; else None.
        sums: REDUCE adds up, unscaled.
        foreign: OPAQUE, and from outside the framework: a custom operation.
        label: The framework's name of the operation, for messages.
        where: Path of the module whose forward ran it.
        outputs: Value ids; axes speak of the first.
    """

    index: int  # type: ignore[assignment]  # shadows tuple.index, which nobody calls on a node
    op: Op
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    axes: tuple[Axes | None, ...]
    label: str
    where: str = ""
    axis: int = -1
    degree: float | None = None
    sums: bool = False
    foreign: bool = False
    attached: tuple[bool | None, ...] = ()
    recorded: bool = True

    @property
    def output(self) -> int:
        return self.outputs[0]


@dataclass(frozen=True)
class Graph:
    """One forward pass: values, nodes in order of execution, what came in and what went out.

    Attributes:
        inputs: Ids of the values the caller passed.
        outputs: Ids of the values the model returned.
        attached: Ids among `outputs` to which a gradient is attached.
        rms: Root mean square of values measured in the pass, by value id.
        cosine: Mean row cosine of a value with the latest lookup of the table read at the same node,
            by (node index, value id).
        logit_std: Std of values that descend from a readout, by value id (measuring passes only).
        repeats: Share of positions whose next token is the same token, or None.
        meta: Whether the pass ran without values.
        notes: What the backend could not follow, in words.
    """

    values: tuple[Value, ...]
    nodes: tuple[Node, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    attached: frozenset[int] = frozenset()
    rms: Mapping[int, float] = field(default_factory=dict)
    cosine: Mapping[tuple[int, int], float] = field(default_factory=dict)
    logit_std: Mapping[int, float] = field(default_factory=dict)
    repeats: float | None = None
    meta: bool = False
    notes: tuple[str, ...] = ()

    @cached_property
    def consumers(self) -> tuple[tuple[int, ...], ...]:
        """For each value id the indices of the nodes that read it."""
        table: list[list[int]] = [[] for _ in self.values]
        for node in self.nodes:
            for v in dict.fromkeys(node.inputs):
                table[v].append(node.index)
        return tuple(map(tuple, table))

    @cached_property
    def live(self) -> tuple[bool, ...]:
        """For each node whether anything that the model returned was computed from it."""
        wanted = [False] * len(self.values)
        for v in self.outputs:
            wanted[v] = True
        live = [False] * len(self.nodes)
        for node in reversed(self.nodes):
            if any(wanted[v] for v in node.outputs):
                live[node.index] = True
                for v in node.inputs:
                    wanted[v] = True
        return tuple(live)

    @cached_property
    def returned(self) -> frozenset[int]:
        return frozenset(self.outputs)

    def producer(self, value: int) -> Node | None:
        index = self.values[value].producer
        return self.nodes[index] if index >= 0 else None

    def validate(self) -> None:
        """Check what core relies on.

        Raises:
            TraceError: Ids do not match positions, a node reads a value that is made later, or an
                axis map does not have the output's rank.
        """
        for i, value in enumerate(self.values):
            if value.id != i:
                raise TraceError(f"value {i} of the graph is out of place", got=f"id {value.id}")
        for i, node in enumerate(self.nodes):
            if node.index != i or len(node.axes) != len(node.inputs):
                raise TraceError(f"node {i} ({node.label}) of the graph is malformed", got=repr(node))
            rank = len(self.values[node.output].shape) if node.outputs else 0
            for v, axes in zip(node.inputs, node.axes, strict=True):
                if self.values[v].producer >= i:
                    raise TraceError(f"node {i} ({node.label}) reads value {v}, which is made later")
                if axes is not None and len(axes) != rank:
                    raise TraceError(
                        f"node {i} ({node.label}) maps the axes of value {v} wrongly",
                        got=f"{len(axes)} axes",
                        expected=f"{rank}, one for each axis of the output",
                    )
