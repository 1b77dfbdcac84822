"""Where no table was found: what the token ids were used on all the same."""

from tiebeam.core.reading.provenance import IDS, provenance
from tiebeam.ir import Graph, Leaf, Op

_ON_THE_WAY = (Op.LAYOUT, Op.CAST, Op.GATHER, Op.MUL, Op.DIV)


def gathered_leaves(graph: Graph) -> tuple[str, ...]:
    """One note for each leaf that token ids pick elements of, though it is no matrix of rows."""
    flags = provenance(graph)
    found: dict[str, str] = {}
    for node in graph.nodes:
        if node.op is Op.GATHER and graph.live[node.index] and flags[node.inputs[1]] & IDS:
            leaf, shape = _behind(graph, node.inputs[0])
            if leaf is not None:
                found[leaf.name] = (
                    f"token ids pick from {leaf.name!r} of shape {shape}, "
                    "which is not read as a matrix with a row for each: it is no table here"
                )
    return tuple(found.values())


def _behind(graph: Graph, value: int) -> tuple[Leaf | None, tuple[int, ...]]:
    while True:
        v, node = graph.values[value], graph.producer(value)
        if v.leaf is not None:
            return None if v.integral else v.leaf, v.shape
        if node is None or node.op not in _ON_THE_WAY:
            return None, ()
        value = node.inputs[0]
