"""What else is looked up by the ids of a table: it speaks of the same vocabulary, and has to take its new rows too."""

from collections.abc import Sequence

from tiebeam.core.facts import Readout, Table
from tiebeam.core.reading.chains import computed_from
from tiebeam.core.reading.contract import contracted
from tiebeam.core.reading.provenance import IDS, INPUT, LEAF, provenance
from tiebeam.core.reading.records import Use
from tiebeam.errors import TieError
from tiebeam.ir import Graph, Leaf, Op, Origin


def with_those_beside(graph: Graph, ends: Sequence[Table], tables: Sequence[Table], vocab: int) -> list[Table]:
    """The tables of both ends, each once, and others that are looked up by the same ids and have as many rows.

    Args:
        graph: Of the pass.
        tables: All that were seen in it.
        vocab: Rows of the ends.

    Raises:
        TieError: What is looked up beside them is no table: an adapter, counts of tokens.
    """
    found = list({t.name: t for t in ends}.values())
    biases = {b for t in found for r in t.readouts for b in r.bias}
    for leaf in _beside(graph, {n for t in found for n in t.names}, vocab):
        if biases.intersection(leaf.names):
            continue
        table = next((t for t in tables if t.lookups and leaf.name in t.names), None)
        if table is None:
            raise TieError(
                f"{leaf.name!r} is looked up by the ids of {found[0].name!r}",
                got=f"{vocab} entries, of what is no vocabulary table",
                expected="nothing beside the table that an id of a new row would not be found in",
                hint="merge or unload an adapter first; take another tensor out, and put it back with the new size",
            )
        found += [] if table in found else [table]
    return found


def _beside(graph: Graph, own: set[str], vocab: int) -> list[Leaf]:
    """Other leaves that are read at ids which come of the same inputs as the table's."""
    graph = contracted(graph)
    flags = provenance(graph)
    gathers = [
        (n, _behind(graph, n.inputs[0]), _behind(graph, n.inputs[1]))
        for n in graph.nodes
        if n.op is Op.GATHER and len(n.inputs) > 1 and flags[n.inputs[1]] & IDS and not flags[n.inputs[0]] & INPUT
        and flags[n.inputs[0]] & LEAF and graph.live[n.index]
    ]  # fmt: skip
    home = {v for _, held, ids in gathers if _leaves(graph, held, own) for v in _inputs(graph, ids)}
    found: dict[int, Leaf] = {}
    for node, held, ids in gathers:
        came = _inputs(graph, ids)
        if graph.values[node.inputs[0]].shape[node.axis] == vocab and came and came <= home:
            leaves = [leaf for v in held if (leaf := graph.values[v].leaf) is not None]
            if not _leaves(graph, held, own):
                found |= {leaf.key: leaf for leaf in leaves if vocab in _shape(graph, held, leaf)}
    return list(found.values())


def _behind(graph: Graph, value: int) -> set[int]:
    """A value, and everything that it was computed from."""
    stack, seen = [value], set[int]()
    while stack:
        v = stack.pop()
        if v not in seen:
            seen.add(v)
            node = graph.producer(v)
            stack += () if node is None else node.inputs
    return seen


def _inputs(graph: Graph, values: set[int]) -> set[int]:
    return {v for v in values if graph.values[v].origin is Origin.INPUT}


def _leaves(graph: Graph, values: set[int], names: set[str]) -> bool:
    return any(leaf is not None and names.intersection(leaf.names) for leaf in (graph.values[v].leaf for v in values))


def _shape(graph: Graph, values: set[int], leaf: Leaf) -> tuple[int, ...]:
    return next(graph.values[v].shape for v in values if graph.values[v].leaf is leaf)


def logits_of(graph: Graph, uses: Sequence[Use]) -> set[int]:
    """How many logits the model returns of the readouts among these records."""
    made = [u.read.node.output for u in uses if isinstance(u.fact, Readout)]
    returned = [v for v in graph.outputs if len(graph.values[v].shape) > 1]
    return {graph.values[v].shape[-1] for v in returned if any(computed_from(graph, v, origin) for origin in made)}
