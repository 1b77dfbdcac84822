"""Who reads which table, in which role.

A gather on, or a product over, the vocabulary axis is a lookup if its integers derive from an input through
integer operations alone. A product over the width axis is a readout if its vocabulary axis reaches an output
or a loss unreduced.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from tiebeam.core.reading.provenance import IDS, INPUT, INTS
from tiebeam.core.reading.source import Source, sources_of
from tiebeam.ir import Graph, Node, Op, Origin


@dataclass(frozen=True, slots=True)
class Read:
    """One execution of a role.

    Attributes:
        node: Where.
        source: The leaf, and how the operand holds it.
        vocab_axis: The leaf's vocabulary axis (0 or 1).
        other: The operand that is not the table: ids, or the hidden state.
        axis: Readouts: the vocabulary axis of the product.
        beside: Readouts: the width of other tables that the same product sums over, side by side with this one.
    """

    node: Node
    source: Source
    vocab_axis: int
    other: int
    axis: int = -1
    beside: int = 0

    @property
    def vocab(self) -> int:
        return self.source.shape[self.vocab_axis]

    @property
    def width(self) -> int:
        return next(n for i, n in enumerate(self.source.shape) if i != self.vocab_axis and (n != 1 or self._flat))

    @property
    def _flat(self) -> bool:
        return sum(n != 1 for n in self.source.shape) < 2


def lookups_at(graph: Graph, flags: list[int], node: Node) -> list[Read]:
    """The lookups that `node` is: one, or one for each part where the parts of a table are concatenated."""
    if node.op is Op.GATHER and len(node.inputs) > 1:
        index = flags[node.inputs[1]]
        if not (index & IDS and graph.values[node.inputs[1]].integral) or flags[node.inputs[0]] & INPUT:
            return []
        found = [s for s in sources_of(graph, flags, node, 0) if s.axes[node.axis] >= 0]
        kept = {a for a in (node.axes[0] or ()) if a >= 0}
        rows = [s for s in found if any(s.axes[a] >= 0 for a in kept) or s.shape[-1] == 1]
        return [Read(node, s, s.axes[node.axis], node.inputs[1]) for s in rows]
    if node.op is Op.DOT:
        for i in (0, 1):
            counts = node.inputs[1 - i]
            if not flags[counts] & INTS or graph.values[counts].origin is Origin.INPUT:
                continue
            summed = [(s, _contracted(node, i, s)) for s in sources_of(graph, flags, node, i)]
            reads = [Read(node, s, axis, counts) for s, axis in summed if axis is not None]
            if reads:
                return reads
    return []


def _contracted(node: Node, i: int, source: Source) -> int | None:
    """The leaf axis that the product sums over, if exactly one."""
    kept = {a for a in (node.axes[i] or ()) if a >= 0}
    summed = {axis for a, axis in enumerate(source.axes) if a not in kept and axis >= 0}
    return summed.pop() if len(summed) == 1 else None


def products_at(graph: Graph, flags: list[int], node: Node) -> Iterator[Read]:
    """Products over a leaf's one axis with an activation: the other axis may be a vocabulary."""
    if node.op is not Op.DOT:
        return
    for i in (0, 1):
        other = node.inputs[1 - i]
        if flags[node.inputs[i]] & INPUT or not flags[other] & INPUT or flags[other] & INTS:
            continue
        summed = [(s, w) for s in sources_of(graph, flags, node, i) if (w := _contracted(node, i, s)) is not None]
        terms = sum(s.shape[w] for s, w in summed)
        for source, width in summed:
            beside = terms - source.shape[width] if terms == _terms(graph, node, i) else 0
            for out, a in enumerate(node.axes[i] or ()):
                if a >= 0 and source.axes[a] >= 0 and source.axes[a] != width:
                    yield Read(node, source, source.axes[a], other, out, beside)


def _terms(graph: Graph, node: Node, i: int) -> int:
    """How many terms the product sums, by the shape of its operand number `i`."""
    kept = {a for a in (node.axes[i] or ()) if a >= 0}
    return math.prod(n for a, n in enumerate(graph.values[node.inputs[i]].shape) if a not in kept)
