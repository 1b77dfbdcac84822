"""From what PyTorch executed to core's graph."""

from collections.abc import Sequence
from typing import Any

from tiebeam.backends.torch.lowering.builder import Lowering
from tiebeam.backends.torch.lowering.ops import lower_record
from tiebeam.backends.torch.recording.ledger import Implied, Ledger, order
from tiebeam.backends.torch.recording.record import Record
from tiebeam.ir import Graph, Op


def lower(
    ledger: Ledger, records: Sequence[Record | Implied], steps: list[tuple[int, int]] | None = None, **facts: Any
) -> Graph:
    """The graph of a recorded pass; `facts` are the remaining fields of `Graph`.

    Args:
        steps: Filled with each node's `Record.sequence` and `Record.ordinal`.
    """
    lowering = Lowering(ledger)
    taken = [] if steps is None else steps
    made: dict[int, range] = {}  # nodes of each record
    for position, item in enumerate(records):
        first = len(lowering.nodes)
        if isinstance(item, Implied):
            lowering.record = _NOWHERE
            lowering.implied(item)
        else:
            lowering.record = item
            lower_record(lowering, item)
        made[position] = range(first, len(lowering.nodes))
        taken += [(lowering.record.sequence, lowering.record.ordinal)] * (len(lowering.nodes) - len(taken))
    taken_of = facts.pop("cosine", {})
    again = _same_rows(lowering, {v for _, v in taken_of})
    cosine = {  # taken where a product ran, which with a bias is two nodes
        (n, v): c
        for (p, first), c in taken_of.items()
        for n in made[p]
        if lowering.nodes[n].op is Op.DOT
        for v in again[first]
    }
    return Graph(values=lowering.values(), nodes=tuple(lowering.nodes), cosine=cosine, **facts)


def _same_rows(lowering: Lowering, values: set[int]) -> dict[int, list[int]]:
    """By value itself and its views with the same rows, of which nobody measured anything."""
    found = {v: [v] for v in values}
    roots = {v: v for v in values}
    drafts = lowering.drafts
    for node in lowering.nodes:
        if node.op is Op.UPDATE:  # what was written into a part is looked at again through the whole
            root = roots.get(node.inputs[-1])
        else:
            root = roots.get(node.inputs[0]) if node.op is Op.LAYOUT else None
        if root is None or node.output in roots or drafts[node.output].storage != drafts[root].storage:
            continue
        roots[node.output] = root  # also where its rows are others: a view of it may have these again
        own, other = drafts[root].geometry, drafts[node.output].geometry
        if own[1][-1:] == other[1][-1:] and order(own) == order(other):
            found[root].append(node.output)
    return found


# What is implied was never executed: its node has no schema, no arguments and no place.
_NOWHERE = Record(schema=None, args=(), kwargs={}, outputs=(), where="", recorded=True)  # type: ignore[arg-type]
