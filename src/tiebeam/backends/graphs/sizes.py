"""Which sizes a run of the program is to measure: the structure is known first, so exactly those that matter."""

from dataclasses import dataclass
from functools import cached_property

from tiebeam.core.reading.contract import contracted
from tiebeam.core.reading.norms import normalized_upstream, stream_before
from tiebeam.core.reading.provenance import provenance
from tiebeam.core.reading.reads import find_reads
from tiebeam.core.reading.walk import Forward
from tiebeam.ir import Graph

ROWS = 2048  # rows that a cosine is averaged over


@dataclass(frozen=True)
class Sizes:
    """Which sizes to measure, by value id.

    Attributes:
        moments: Mean and variance of all elements.
        cosines: (node, stream, rows): mean cosine of two values, row by row.
        logits: Those of `moments` whose std is asked for.
        numbers: The elements, to be handed out.
    """

    moments: frozenset[int] = frozenset()
    cosines: tuple[tuple[int, int, int], ...] = ()
    logits: frozenset[int] = frozenset()
    numbers: frozenset[int] = frozenset()

    @cached_property
    def compared(self) -> frozenset[int]:
        """The values that cosines are of."""
        return frozenset(v for _, *pair in self.cosines for v in pair)

    @cached_property
    def ids(self) -> frozenset[int]:
        """All values that are looked at."""
        return self.moments | self.numbers | self.compared

    def among(self, values: frozenset[int]) -> "Sizes":
        """What can be measured of these values alone."""
        cosines = tuple(c for c in self.cosines if c[1] in values and c[2] in values)
        return Sizes(self.moments & values, cosines, self.logits & values, self.numbers & values)

    def without(self, other: "Sizes") -> "Sizes":
        """The rest."""
        cosines = tuple(c for c in self.cosines if c not in other.cosines)
        return Sizes(self.moments - other.moments, cosines, self.logits - other.logits, self.numbers - other.numbers)


def sizes_of(graph: Graph, *, logits: bool) -> Sizes:
    """What core will ask of this graph: sizes at both ends of each role, and the streams that normalisations read.

    Args:
        logits: Also the std of logits.
    """
    graph = contracted(graph)
    flags = provenance(graph)
    reads = find_reads(graph, flags)
    moments = {r.node.output for r in reads.lookups} | {r.other for r in reads.readouts}
    cosines, ends = [], set[int]()
    for read in reads.readouts:
        stream = stream_before(graph, flags, read.other)
        stream = normalized_upstream(graph, flags, read.other) if stream is None else stream
        looked = [r for r in reads.lookups if r.node.index < read.node.index]
        rows = [r for r in looked if r.source.leaf.key == read.source.leaf.key] or looked
        if stream is not None and rows:
            cosines.append((read.node.index, stream, rows[-1].node.output))
        if logits:
            walk = Forward(graph, flags, read.node.output, read.axis).run()
            ends |= {read.node.output, *(v for end, state in walk.ends for v in (end, state.told, state.past))}
    floats = {v for v in moments | ends if graph.values[v].dtype.startswith(("float", "bfloat"))}
    return Sizes(frozenset(floats), tuple(cosines), frozenset(ends & floats))
