"""A graph in the making: ids in the order in which values turn up, what is known of each, and nodes between them."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from tiebeam.ir import Axes, Graph, Leaf, Node, Op, Origin, Value

TINY = 16  # elements of a constant whose value is followed


@dataclass(slots=True)
class Draft:
    """A value in the making.

    Attributes:
        number: What all its elements equal, where that is known.
        concrete: Its elements, where they are few and known.
        given: An input reached it; `random`: a random number did; `leafy`: a leaf did.
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

    @property
    def varying(self) -> bool:
        return self.given or self.random


class Step(Protocol):
    """One operation of the program, its operands and results as ids; what is no value has id -1."""

    @property
    def name(self) -> str: ...
    @property
    def inputs(self) -> tuple[int, ...]: ...
    @property
    def outputs(self) -> tuple[int, ...]: ...
    @property
    def where(self) -> str: ...


SomeDraft = TypeVar("SomeDraft", bound=Draft)
SomeStep = TypeVar("SomeStep", bound=Step)


class Building(ABC, Generic[SomeDraft, SomeStep]):
    """Values and nodes of one program.

    Args:
        draft: What a value is noted as.
    """

    def __init__(self, draft: type[SomeDraft]) -> None:
        self._draft = draft
        self.drafts: list[SomeDraft] = []
        self.nodes: list[Node] = []
        self.literals: dict[tuple[float, str], int] = {}
        self.notes: dict[str, None] = {}

    # -- values --

    def shape(self, value: int) -> tuple[int, ...]:
        return self.drafts[value].shape

    def rank(self, value: int) -> int:
        return len(self.drafts[value].shape)

    def add(self, shape: Sequence[int], dtype: Any, origin: Origin, **facts: Any) -> int:
        self.drafts.append(self._draft(tuple(shape), str(dtype), origin, **facts))
        return len(self.drafts) - 1

    def number(self, number: float, dtype: str = "float32") -> int:
        """A number that the program wrote."""
        key = (number, dtype)
        if key not in self.literals:
            self.literals[key] = self.add((), dtype, Origin.LITERAL, number=number, concrete=np.asarray(number, dtype))
        return self.literals[key]

    def made_of(self, inputs: Sequence[int], shape: Sequence[int], dtype: Any, **facts: Any) -> int:
        """A value computed from `inputs`: what reached one of them reached it."""
        read = [self.drafts[v] for v in inputs if v >= 0]
        return self.add(
            shape,
            dtype,
            Origin.NODE,
            given=any(d.given for d in read),
            random=any(d.random for d in read),
            leafy=any(d.leafy for d in read),
            **facts,
        )

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

    # -- nodes --

    def emit(
        self,
        at: SomeStep,
        op: Op,
        inputs: Sequence[int],
        axes: Sequence[Axes | None],
        outputs: Sequence[int] | None = None,
        **facts: Any,
    ) -> int:
        """Append a node; the id of its first result."""
        index = len(self.nodes)
        outs = at.outputs[:1] if outputs is None else tuple(outputs)
        facts.setdefault("attached", (None,) * len(inputs))
        facts.setdefault("label", at.name)
        self.nodes.append(
            Node(index=index, op=op, inputs=tuple(inputs), outputs=outs, axes=tuple(axes), where=at.where, **facts)
        )
        for v in outs:
            self.drafts[v].producer = index
        self.emitted(at)
        return outs[0]

    @abstractmethod
    def emitted(self, at: SomeStep) -> None:
        """Remember what the last node stands for."""

    @abstractmethod
    def elementwise(self, at: SomeStep, op: Op, inputs: Sequence[int], **facts: Any) -> int:
        """Append a node whose operands are stretched to its result."""

    # -- the graph --

    def graph(self, **facts: Any) -> Graph:
        """What was built."""
        values = tuple(self.finished(i, d) for i, d in enumerate(self.drafts))
        return Graph(values=values, nodes=tuple(self.nodes), notes=tuple(self.notes), **facts)

    def finished(self, value: int, d: SomeDraft) -> Value:
        """A value as the graph has it."""
        return Value(
            id=value, shape=d.shape, dtype=d.dtype, origin=d.origin, producer=d.producer, leaf=d.leaf, number=d.number
        )


def known(array: Any) -> dict[str, Any]:
    """Facts of a small array: its elements, and its number where it has one element.

    Example:
        >>> known(np.array(2.0, np.float32))["number"], known(np.zeros(99))
        (2.0, {})
    """
    size = prod(np.shape(array))
    if size > TINY or size == 0:
        return {}
    host = np.asarray(array)
    if size != 1 or host.dtype.kind in "cSUO":
        return {"concrete": host}
    return {"concrete": host, "number": float(host.reshape(()).astype(np.float64))}
