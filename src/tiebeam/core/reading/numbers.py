"""Constant factors: numbers that multiply, with the reason where one is not known."""

from dataclasses import dataclass

from tiebeam.core.reading.provenance import INPUT, LEAF, MASK, RANDOM
from tiebeam.ir import Graph, Op, Origin


@dataclass(frozen=True, slots=True)
class Factor:
    """A constant, or why there is none.

    Attributes:
        value: The product, sign kept; None where it is not a known constant.
        reason: Why it is None.
        literals: Ids of the numbers of the program that went in: each could be a size or a reading of the inputs.
    """

    value: float | None = 1.0
    reason: str = ""
    literals: frozenset[int] = frozenset()

    @property
    def literal(self) -> bool:
        """Whether a number of the program went in."""
        return bool(self.literals)

    def times(self, other: "Factor") -> "Factor":
        if self.value is None or other.value is None:
            return Factor(None, self.reason or other.reason, self.literals | other.literals)
        return Factor(self.value * other.value, "", self.literals | other.literals)

    def plus(self, other: "Factor") -> "Factor":
        if self.value is None or other.value is None:
            return Factor(None, self.reason or other.reason, self.literals | other.literals)
        return Factor(self.value + other.value, "", self.literals | other.literals)

    def inverse(self) -> "Factor":
        if self.value is None:
            return self
        if self.value == 0:
            return Factor(None, "a division by zero", self.literals)
        return Factor(1.0 / self.value, "", self.literals)


ONE = Factor()
OWN = Factor(None, "it is multiplied by a number that is computed from the table itself")


def uniform(graph: Graph, flags: list[int], value: int, depth: int = 8) -> Factor | None:
    """Like `scalar`, and a tensor whose elements are known to be all equal counts as that number."""
    v = graph.values[value]
    if v.size > 1 and v.number is not None:
        return Factor(v.number, "", frozenset((value,)) if v.leaf is None else frozenset())
    found, node = scalar(graph, flags, value), graph.producer(value)
    if found is not None or node is None or depth == 0:
        return found
    if node.op in (Op.LAYOUT, Op.CAST) and len(node.inputs) == 1:
        return uniform(graph, flags, node.inputs[0], depth - 1)
    if node.op not in (Op.MUL, Op.DIV):
        return None
    a, b = (uniform(graph, flags, x, depth - 1) for x in node.inputs)
    if a is None or b is None:
        return None
    return a.times(b.inverse() if node.op is Op.DIV else b)


def scalar(graph: Graph, flags: list[int], value: int) -> Factor | None:
    """The factor that a one-element value (or its expansion) stands for; None if it has more elements."""
    v = graph.values[value]
    while v.size != 1 or (v.number is None and not v.lost):
        node = graph.producer(v.id)
        if node is None or node.op not in (Op.LAYOUT, Op.CAST):
            break
        source = graph.values[node.inputs[0]]
        if source.size != 1:
            break
        v = source
    if v.size != 1:
        return None
    if flags[v.id] & INPUT:
        return Factor(None, "it depends on the inputs")
    if v.number is not None:
        return Factor(v.number, "", frozenset() if flags[v.id] & LEAF else frozenset((v.id,)))
    if v.lost:
        return Factor(None, f"its value{_leaf_of(graph, v.id)} is lost on meta")
    made = graph.producer(v.id)
    if made is not None and made.op is Op.OPAQUE and not made.inputs:
        return Factor(None, f"it comes from {made.label}")
    return Factor(None, "it is random" if flags[v.id] & RANDOM else "its value is no real number")


def _leaf_of(graph: Graph, value: int) -> str:
    """Names the leaf that a scalar was computed from, or nothing."""
    stack, seen = [value], set()
    while stack:
        v = stack.pop()
        leaf = graph.values[v].leaf
        if leaf is not None:
            return f" in {leaf.name!r}"
        node = graph.producer(v)
        if node is not None and v not in seen:
            seen.add(v)
            stack += node.inputs
    return ""


def is_mask(graph: Graph, flags: list[int], value: int) -> bool:
    """Whether multiplying by this value only switches elements on and off.

    It came from comparisons and masks of the inputs, or from random draws alone (dropout written as a product).
    """
    drawn = bool(flags[value] & RANDOM) and not flags[value] & (INPUT | LEAF)
    return (drawn or bool(flags[value] & MASK)) and graph.values[value].size > 1


def is_constant(graph: Graph, flags: list[int], value: int) -> bool:
    """Whether no input reached it: a weight, a bias, a position row, a number."""
    return not flags[value] & INPUT or graph.values[value].origin is Origin.LITERAL
