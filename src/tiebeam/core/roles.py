"""Who reads which table, in which role.

A gather on, or a product over, the vocabulary axis is a lookup if its integers derive from an input through
integer operations alone. A product over the width axis is a readout if its vocabulary axis reaches an output
or a loss unreduced.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from tiebeam.core.provenance import IDS, INPUT, INTS
from tiebeam.core.source import Source, source_of
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
    """

    node: Node
    source: Source
    vocab_axis: int
    other: int
    axis: int = -1

    @property
    def vocab(self) -> int:
        return self.source.shape[self.vocab_axis]

    @property
    def width(self) -> int:
        return next(n for i, n in enumerate(self.source.shape) if i != self.vocab_axis and (n != 1 or self._flat))

    @property
    def _flat(self) -> bool:
        return sum(n != 1 for n in self.source.shape) < 2


def lookup_at(graph: Graph, flags: list[int], node: Node) -> Read | None:
    """The lookup that `node` is, or None."""
    if node.op is Op.GATHER and len(node.inputs) > 1:
        index = flags[node.inputs[1]]
        if not (index & IDS and graph.values[node.inputs[1]].integral) or flags[node.inputs[0]] & INPUT:
            return None
        source = source_of(graph, flags, node, 0)
        if source is None or source.axes[node.axis] < 0:
            return None
        kept = {a for a in (node.axes[0] or ()) if a >= 0}
        if not any(source.axes[a] >= 0 for a in kept) and source.shape[-1] != 1:
            return None
        return Read(node, source, source.axes[node.axis], node.inputs[1])
    if node.op is Op.DOT:
        for i in (0, 1):
            counts = node.inputs[1 - i]
            if not flags[counts] & INTS or graph.values[counts].origin is Origin.INPUT:
                continue
            source = source_of(graph, flags, node, i)
            if source is None:
                continue
            summed = _contracted(node, i, source)
            if summed is not None:
                return Read(node, source, summed, counts)
    return None


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
        source = source_of(graph, flags, node, i)
        axes = node.axes[i]
        if source is None or axes is None:
            continue
        width = _contracted(node, i, source)
        if width is None:
            continue
        for out, a in enumerate(axes):
            if a >= 0 and source.axes[a] >= 0 and source.axes[a] != width:
                yield Read(node, source, source.axes[a], other, out)


def reaches(graph: Graph, flags: list[int], read: Read, *, plainly: bool = False) -> bool:
    """Whether the vocabulary axis of a product gets to an output or a loss without being summed over.

    An axis that a reshape splits or merges (-1 below) is still all there.

    Args:
        plainly: It must come out as the last axis of an output, as logits do: not cut into heads and cached.
    """
    start = (read.node.output, read.axis)
    stack, seen = [start], {start}
    while stack:
        v, a = stack.pop()
        shape = graph.values[v].shape
        if v in graph.returned and (not plainly or (a == len(shape) - 1 and shape[-1] == read.vocab)):
            return True
        for index in graph.consumers[v]:
            node = graph.nodes[index]
            for out_axis in _carried(graph, flags, node, v, a):
                if out_axis is None:
                    return True
                if (node.output, out_axis) not in seen:
                    seen.add((node.output, out_axis))
                    stack.append((node.output, out_axis))
    return False


def _carried(graph: Graph, flags: list[int], node: Node, v: int, a: int) -> Iterator[int | None]:
    """Where the axis goes through a node; None where it meets a loss."""
    for i, x in enumerate(node.inputs):
        if x != v:
            continue
        axes = node.axes[i]
        if (i == 0 and _meets_loss(flags, node, a)) or _meets_one_hot(graph, flags, node, i, a):
            yield None
        elif axes is None or node.op is Op.NORMALIZE or (node.op is Op.GATHER and i == 0 and a == node.axis):
            continue
        elif a >= 0 and a in axes:
            yield axes.index(a)
        elif _smeared(graph, node, v, a):
            yield -1


def _smeared(graph: Graph, node: Node, v: int, a: int) -> bool:
    """Whether the axis is cut or merged, with all its elements still there."""
    keeps = node.op is Op.LAYOUT or (a < 0 and node.op not in (Op.DOT, Op.REDUCE))
    return keeps and graph.values[node.output].size >= graph.values[v].size


def _meets_loss(flags: list[int], node: Node, a: int) -> bool:
    """Whether one entry of each row is picked by a label along the axis, as a cross entropy does."""
    if node.op is Op.LOSS:
        return a in (node.axis, -1)
    return node.op is Op.GATHER and a == node.axis and a >= 0 and bool(flags[node.inputs[1]] & IDS)


def _meets_one_hot(graph: Graph, flags: list[int], node: Node, i: int, a: int) -> bool:
    """Whether the axis is summed against a one-hot matrix of labels, which picks an entry as well."""
    if node.op is Op.REDUCE:
        product = graph.producer(node.inputs[0])
        axes = node.axes[0] or ()
        if not node.sums or a in axes or a < 0 or product is None or product.op is not Op.MUL:
            return False
        return any(
            flags[x] & INTS and along is not None and along[a] >= 0
            for x, along in zip(product.inputs, product.axes, strict=True)
        )
    if node.op is not Op.DOT or a < 0 or a in (node.axes[i] or ()):
        return False
    return bool(flags[node.inputs[1 - i]] & INTS)
