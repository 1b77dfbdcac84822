"""From what PyTorch executed to core's graph."""

from collections.abc import Sequence
from typing import Any

from tiebeam.backends.torch.lowering.builder import Lowering
from tiebeam.backends.torch.lowering.ops import lower_record
from tiebeam.backends.torch.recording.ledger import Implied, Ledger
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
    cosine = {  # taken where a product ran, which with a bias is two nodes
        (n, v): c for (p, v), c in facts.pop("cosine", {}).items() for n in made[p] if lowering.nodes[n].op is Op.DOT
    }
    return Graph(values=lowering.values(), nodes=tuple(lowering.nodes), cosine=cosine, **facts)


# What is implied was never executed: its node has no schema, no arguments and no place.
_NOWHERE = Record(schema=None, args=(), kwargs={}, outputs=(), where="", recorded=True)  # type: ignore[arg-type]
