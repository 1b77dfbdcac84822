"""Who reads which table, in which role.

A gather on, or a product over, the vocabulary axis is a lookup if its integers derive from an input through
integer operations alone. A product over the width axis is a readout if its vocabulary axis reaches an output
or a loss unreduced.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from tiebeam.core.chains import computed_from
from tiebeam.core.provenance import IDS, INPUT, INTS
from tiebeam.core.source import Source, source_of
from tiebeam.core.walk import Forward
from tiebeam.ir import Graph, Node, Op, Origin

SMALL_SHARE = 0.25  # a lookup table below a quarter of the largest, in rows or width, is no vocabulary


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


@dataclass(frozen=True, slots=True)
class Reads:
    """All lookups and readouts of vocabulary tables, in order of execution."""

    lookups: tuple[Read, ...]
    readouts: tuple[Read, ...]


def find_reads(graph: Graph, flags: list[int]) -> Reads:
    """Lookups first; readouts are looked for among products that could belong to them."""
    lookups = [r for node in graph.nodes if (r := _lookup(graph, flags, node)) is not None]
    if not lookups:
        return Reads((), ())
    read = {r.source.leaf.key for r in lookups}
    names = {n for r in lookups for n in r.source.leaf.names}
    shared = {r.source.leaf.storage for r in lookups if r.source.leaf.storage >= 0}
    vocabs = {r.vocab for r in lookups}

    axes = {r.source.leaf.key: r.vocab_axis for r in lookups}

    def kin(r: Read) -> bool:
        leaf = r.source.leaf
        if leaf.key in read:
            return axes[leaf.key] == r.vocab_axis  # summed over the vocabulary it is a mixture of rows
        return leaf.storage in shared or bool(names.intersection(leaf.names))

    own, others = [], []
    for node in graph.nodes:
        for r in _products(graph, flags, node):
            if kin(r):
                if reaches(graph, flags, r.node.output, r.axis):
                    own.append(r)
            elif r.source.leaf.key not in read and any(_near(r.vocab, v) for v in vocabs):
                others.append(r)
    heads = [r for r in others if reaches(graph, flags, r.node.output, r.axis) and not _in_stream(graph, flags, r)]
    last = _last(graph, _wide(heads, [*lookups, *own]), own)
    readouts = sorted([*own, *last], key=lambda r: r.node.index)
    return _vocabulary(lookups, readouts)


def _wide(heads: list[Read], others: list[Read]) -> list[Read]:
    """Without the low-rank factors of adapters, which have a vocabulary axis as well."""
    widest = max((r.width for r in [*heads, *others]), default=0)
    return [r for r in heads if r.width > SMALL_SHARE * widest]


def _near(a: int, b: int) -> bool:
    """Equal, or apart by padding or a few special rows."""
    return abs(a - b) <= max(0.02 * max(a, b), min(8, 0.1 * max(a, b)))


def _lookup(graph: Graph, flags: list[int], node: Node) -> Read | None:
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


def _products(graph: Graph, flags: list[int], node: Node) -> Iterator[Read]:
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


def reaches(graph: Graph, flags: list[int], value: int, axis: int) -> bool:
    """Whether `axis` of `value` gets to an output or a loss without being summed over.

    An axis that a reshape splits or merges (-1 below) is still all there.
    """
    stack, seen = [(value, axis)], set()
    while stack:
        v, a = stack.pop()
        if v in graph.returned:
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
        if i == 0 and _meets_loss(flags, node, a):
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


def _in_stream(graph: Graph, flags: list[int], read: Read) -> bool:
    """Whether the product is added back to what its input came from: a layer of a residual stream."""
    walk = Forward(graph, flags, read.node.output, read.axis).run()
    return any(computed_from(graph, read.other, value) for value in walk.added)


def _last(graph: Graph, reads: list[Read], own: list[Read]) -> list[Read]:
    """Those whose product feeds no other readout: heads, rather than layers of the body."""
    by_node = {r.node.index for r in [*reads, *own]}
    feeds: list[bool] = [False] * len(graph.values)
    for node in reversed(graph.nodes):
        inside = node.index in by_node or any(feeds[v] for v in node.outputs)
        if inside:
            for v in node.inputs:
                feeds[v] = True
    return [r for r in reads if not feeds[r.node.output]]


def _vocabulary(lookups: list[Read], readouts: list[Read]) -> Reads:
    """Leave out lookup tables that are no vocabulary: token types, adapters' low-rank factors.

    A table that is also read out stays whatever its size; so does one of the size of a readout.
    """
    kept = {n for r in readouts for n in (r.source.leaf.key, r.source.leaf.storage) if n >= 0}
    heads = [r.vocab for r in readouts]
    pool = [r for r in lookups if not heads or any(_near(r.vocab, h) for h in heads)] or lookups
    tall, wide = max(r.vocab for r in pool), max(r.width for r in pool)

    def stays(r: Read) -> bool:
        if r.source.leaf.key in kept or r.source.leaf.storage in kept:
            return True
        return r.vocab >= SMALL_SHARE * tall and r.width >= SMALL_SHARE * wide

    return Reads(tuple(r for r in lookups if stays(r)), tuple(readouts))
