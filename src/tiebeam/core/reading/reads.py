"""All lookups and readouts of vocabulary tables in one pass: which of the many products is a head."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tiebeam.core.reading.chains import computed_from
from tiebeam.core.reading.reach import reaches
from tiebeam.core.reading.roles import Read, lookups_at, products_at
from tiebeam.core.reading.source import sources_of
from tiebeam.core.reading.unseen import scores_alone, unseen_readouts
from tiebeam.core.reading.walk import Forward
from tiebeam.ir import Graph, Op

SMALL_SHARE = 0.25  # a table below a quarter of the largest, in rows or width, is no vocabulary


@dataclass(frozen=True, slots=True)
class Reads:
    """All lookups and readouts of vocabulary tables, in order of execution.

    Attributes:
        hidden: By leaf key the name of an operation of unknown body that reads the table as well.
        unseen: By leaf key what could be a readout of a table that is only looked up.
    """

    lookups: tuple[Read, ...]
    readouts: tuple[Read, ...]
    hidden: Mapping[int, str] = field(default_factory=dict)
    unseen: Mapping[int, str] = field(default_factory=dict)


def find_reads(graph: Graph, flags: list[int]) -> Reads:
    """Lookups first; readouts are looked for among products that could belong to them."""
    used = [n for n in graph.nodes if graph.live[n.index]]
    lookups = [r for node in used for r in lookups_at(graph, flags, node)]
    if not lookups:
        return Reads((), ())
    kin = _Kin(lookups)
    products = [r for node in graph.nodes for r in products_at(graph, flags, node)]
    own = [r for r in products if kin.owns(r) and reaches(graph, flags, r, own=True)]
    foreign = [r for r in products if not kin.knows(r)]
    alike = [r for r in foreign if any(near(r.vocab, v.vocab) for v in lookups) and reaches(graph, flags, r)]
    heads = _heads(graph, flags, alike, lookups, own)
    if not own and not heads:  # a head over another vocabulary than the lookup's
        tall = max(r.vocab for r in lookups)
        large = [r for r in foreign if r.vocab >= SMALL_SHARE * tall and r.vocab != r.width]
        heads = _heads(graph, flags, [r for r in large if reaches(graph, flags, r, plainly=True)], lookups, own)
    reads = _vocabulary(lookups, sorted([*own, *heads], key=lambda r: r.node.index))
    reads = replace(reads, lookups=_into_the_model(graph, flags, reads))
    unseen = unseen_readouts(graph, flags, reads.lookups, reads.readouts)
    return replace(reads, hidden=_hidden(graph, flags, kin), unseen=unseen)


def _into_the_model(graph: Graph, flags: list[int], reads: Reads) -> tuple[Read, ...]:
    """The lookups without those of a loss: rows of the targets, beside logits that were seen."""
    read_out = {r.source.leaf.key for r in reads.readouts}
    return tuple(
        r for r in reads.lookups
        if r.source.leaf.key not in read_out or not scores_alone(graph, flags, r, reads.lookups)
    )  # fmt: skip


def _hidden(graph: Graph, flags: list[int], kin: "_Kin") -> dict[int, str]:
    """Looked-up tables that an operation of unknown body reads as well: nobody knows in which role."""
    found: dict[int, str] = {}
    for node in graph.nodes:
        if node.op is Op.OPAQUE and graph.live[node.index]:
            for i in range(len(node.inputs)):
                for source in sources_of(graph, flags, node, i):
                    if source.leaf.key in kin.axes:
                        found.setdefault(source.leaf.key, node.label)
    return found


class _Kin:
    """Which products read a table that is also looked up: by object, storage or name."""

    def __init__(self, lookups: list[Read]) -> None:
        self.axes = {r.source.leaf.key: r.vocab_axis for r in lookups}
        self.names = {n for r in lookups for n in r.source.leaf.names}
        self.storages = {r.source.leaf.storage for r in lookups if r.source.leaf.storage >= 0}

    def knows(self, r: Read) -> bool:
        leaf = r.source.leaf
        return leaf.key in self.axes or leaf.storage in self.storages or bool(self.names.intersection(leaf.names))

    def owns(self, r: Read) -> bool:
        """Summed over the vocabulary instead of the width, it is a mixture of rows."""
        return self.knows(r) and self.axes.get(r.source.leaf.key, r.vocab_axis) == r.vocab_axis


def near(a: int, b: int) -> bool:
    """Whether two numbers of rows can be of one vocabulary: equal, or apart by padding or a few special rows."""
    return abs(a - b) <= max(0.02 * max(a, b), min(8, 0.1 * max(a, b)))


def _heads(graph: Graph, flags: list[int], reads: list[Read], lookups: list[Read], own: list[Read]) -> list[Read]:
    """Without layers of the body and low-rank factors of adapters, which can have a vocabulary-sized axis as well."""
    widest = max((r.width for r in [*reads, *lookups, *own]), default=0)
    wide = [r for r in reads if r.width > SMALL_SHARE * widest and not _in_stream(graph, flags, r)]
    return _last(graph, wide, own)


def _in_stream(graph: Graph, flags: list[int], read: Read) -> bool:
    """Whether the product is added back to what its input came from: a layer of a residual stream."""
    walk = Forward(graph, flags, read.node.output, read.axis).run()
    return any(computed_from(graph, read.other, value) for value in walk.added)


def _last(graph: Graph, reads: list[Read], own: list[Read]) -> list[Read]:
    """Those whose product feeds no other readout: heads, rather than layers of the body."""
    by_node = {r.node.index for r in [*reads, *own]}
    feeds: list[bool] = [False] * len(graph.values)
    for node in reversed(graph.nodes):
        if node.index in by_node or any(feeds[v] for v in node.outputs):
            for v in node.inputs:
                feeds[v] = True
    return [r for r in reads if not feeds[r.node.output]]


def _vocabulary(lookups: list[Read], readouts: list[Read]) -> Reads:
    """Leave out lookup tables that are no vocabulary: token types, adapters' low-rank factors.

    A table that is also read out stays whatever its size; so does one of the size of a readout.
    """
    keys = {r.source.leaf.key for r in readouts}
    storages = {r.source.leaf.storage for r in readouts if r.source.leaf.storage >= 0}
    pool = [r for r in lookups if any(near(r.vocab, h.vocab) for h in readouts)] or lookups
    tall, wide = max(r.vocab for r in pool), max(r.width for r in pool)

    def stays(r: Read) -> bool:
        if r.source.leaf.key in keys or r.source.leaf.storage in storages:
            return True
        return r.vocab >= SMALL_SHARE * tall and r.width > SMALL_SHARE * wide

    nodes = {r.node.index for r in lookups if stays(r)}  # parts of one table stay together
    return Reads(tuple(r for r in lookups if r.node.index in nodes), tuple(readouts))
