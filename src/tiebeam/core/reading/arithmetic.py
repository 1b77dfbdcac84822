"""What a pass does with arrays and single numbers, in order: enough to see whether another pass does the same."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tiebeam.core.reading.numbers import scalar
from tiebeam.core.reading.provenance import provenance
from tiebeam.core.reading.records import Use, doubtful
from tiebeam.ir import Graph, Node, Op

_OPS = (Op.MUL, Op.DIV, Op.ADD, Op.SUB)
_CLOSE = 1e-6  # relative, as where two whole passes are compared


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """Floating-point sums, differences, products and quotients of an array and a number.

    Attributes:
        steps: (label, number) of each, in order of execution; the number is None where it is not known.
        needed: So many of the first hold every number that went into a factor, wherever it is used.
    """

    steps: tuple[tuple[str, float | None], ...]
    needed: int

    def continues(self, seen: Sequence[tuple[str, float]]) -> bool:
        """Whether what another pass has done so far is what this one did."""
        return len(seen) <= len(self.steps) and all(
            a == b and (n is None or math.isclose(n, m, rel_tol=_CLOSE))
            for (a, n), (b, m) in zip(self.steps, seen, strict=False)
        )


def arithmetic_in_doubt(graph: Graph, uses: Sequence[Use]) -> Arithmetic | None:
    """The arithmetic of a pass, where it shows every number that could be a size of the inputs; else None."""
    flags = provenance(graph)
    if not any(doubtful(u) for u in uses):
        return None
    asked = frozenset[int]().union(*(u.literals for u in uses))
    waiting = asked
    steps, needed = list[tuple[str, float | None]](), 0
    for node in graph.nodes:
        operand = _number_of(graph, node)
        if operand is None:
            continue
        found = scalar(graph, flags, operand)
        steps.append((node.label, None if found is None else found.value))
        if found is not None and found.literals & asked:
            waiting, needed = waiting - found.literals, len(steps)
    return Arithmetic(tuple(steps), needed) if needed and not waiting else None


def _number_of(graph: Graph, node: Node) -> int | None:
    """The operand of one element that a sum or product of floats has beside an array."""
    if node.op not in _OPS or len(node.inputs) != 2:
        return None
    if not graph.values[node.output].dtype.startswith(("float", "bfloat")):
        return None
    sizes = [graph.values[v].size for v in node.inputs]
    return node.inputs[sizes.index(1)] if sizes.count(1) == 1 else None
