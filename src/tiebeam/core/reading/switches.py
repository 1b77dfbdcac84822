"""What a mask multiplies by where it is on, and dropout that is written as a product with one."""

import math
from dataclasses import dataclass, replace
from itertools import product

from tiebeam.core.reading.numbers import ONE, Factor, is_mask, uniform
from tiebeam.core.reading.provenance import INPUT, RANDOM
from tiebeam.ir import Graph, Node, Op, Value

_DEPTH = 32
_MANY = 4  # levels: beyond, it is no mask
_SAME = 1e-5  # relative: a share kept is a float32


@dataclass(frozen=True, slots=True)
class Levels:
    """The numbers that the elements of a mask can be.

    Attributes:
        numbers: All of them.
        shares: What a dropout that draws these could keep: the number its draws are compared with, or the rest.
        literals: Ids of the numbers of the program that went in.
    """

    numbers: frozenset[float]
    shares: tuple[float, ...] = ()
    literals: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Dropping:
    """Where a walk stands within a dropout written as two products: with a mask, and with 1 / (share kept).

    Attributes:
        shares: What the mask just met could keep.
        last: The number last multiplied by.
    """

    shares: tuple[float, ...] = ()
    last: float = 1.0

    def masked(self, levels: Levels) -> tuple[Factor, "Dropping"]:
        """The factor of a mask, and where the walk then stands."""
        on = _on(levels)
        if on.value is not None and _undoes(self.last, levels.shares):
            return on.times(Factor(1.0 / self.last)), Dropping()
        return on, Dropping(levels.shares)

    def scaled(self, by: Factor) -> tuple[Factor, "Dropping"]:
        """The factor of a number, and where the walk then stands."""
        if by.value is None:
            return by, Dropping()
        if _undoes(by.value, self.shares):
            return ONE, Dropping()
        return by, Dropping(self.shares, by.value)


NO_DROPOUT = Dropping()


def mask_levels(graph: Graph, flags: list[int], value: int) -> Levels | None:
    """The levels of a value that is a mask or a product of one with numbers; None where it is no mask.

    A tensor that is drawn at random and compared with nothing counts as a dropout's mask: 1 on average.
    """
    if not is_mask(graph, flags, value):
        return None
    found = levels_of(graph, flags, value)
    if found is None and flags[value] & RANDOM and not flags[value] & INPUT:
        return Levels(frozenset((0.0, 1.0)))
    return found or Levels(frozenset())


def _on(levels: Levels) -> Factor:
    numbers = levels.numbers - {0.0}
    if len(numbers) == 1:
        (number,) = numbers
        return Factor(number, "", levels.literals if number != 1.0 else frozenset())
    if levels.numbers == {0.0}:
        return Factor(0.0, "", levels.literals)
    kind = f"the numbers {', '.join(f'{n:.6g}' for n in sorted(numbers))}" if numbers else "unknown numbers"
    return Factor(None, f"it is multiplied by a mask that holds {kind}", levels.literals)


def counts_factor(graph: Graph, flags: list[int], value: int) -> Factor:
    """What a one-hot matrix multiplies the rows by that it looks up; 1 for counts, which weigh rows by themselves."""
    levels = levels_of(graph, flags, value)
    return ONE if levels is None else _on(levels)


def levels_of(graph: Graph, flags: list[int], value: int, depth: int = _DEPTH) -> Levels | None:
    """What the elements of a value made of comparisons, masks of the inputs and numbers can be, or None."""
    v, node = graph.values[value], graph.producer(value)
    if v.dtype == "bool":
        return Levels(frozenset((0.0, 1.0)), _shares(graph, flags, value))
    known = uniform(graph, flags, value)
    if known is not None:
        return None if known.value is None else Levels(frozenset((known.value,)), literals=known.literals)
    if node is None:
        return Levels(frozenset((0.0, 1.0))) if v.integral and flags[value] & INPUT else None  # a mask passed in
    if depth == 0 or value != node.output:
        return None
    return _behind(graph, flags, node, v, depth - 1)


def _behind(graph: Graph, flags: list[int], node: Node, value: Value, depth: int) -> Levels | None:
    match node.op:
        case Op.LAYOUT | Op.CAST | Op.GATHER:
            return levels_of(graph, flags, node.inputs[0], depth)
        case Op.MASK:  # what replaces is not said; of a mask it is 0
            found = levels_of(graph, flags, node.inputs[0], depth)
            known = found is not None and found.numbers != {0.0}
            return replace(found, numbers=found.numbers | {0.0}) if found is not None and known else None
        case Op.UPDATE | Op.CONCAT:
            parts = node.inputs[:2] if node.op is Op.UPDATE else node.inputs
            return _either([levels_of(graph, flags, x, depth) for x in parts])
        case Op.MUL | Op.DIV | Op.ADD | Op.SUB:
            a, b = (levels_of(graph, flags, x, depth) for x in node.inputs)
            return None if a is None or b is None else _combined(node.op, a, b)
    return None


def _either(parts: list[Levels | None]) -> Levels | None:
    found = [p for p in parts if p is not None]
    numbers = frozenset().union(*(p.numbers for p in found))
    if not found or len(found) < len(parts) or len(numbers) > _MANY:
        return None
    return Levels(numbers, literals=frozenset[int]().union(*(p.literals for p in found)))


def _combined(op: Op, a: Levels, b: Levels) -> Levels | None:
    if op is Op.DIV and 0.0 in b.numbers:
        return None
    shares, literals = a.shares + b.shares, a.literals | b.literals
    if op in (Op.MUL, Op.DIV) and min(len(a.numbers), len(b.numbers)) == 1:
        (by,) = b.numbers if len(b.numbers) == 1 else a.numbers
        if _undoes(1.0 / by if op is Op.DIV and by else by, shares):
            return Levels((a if len(b.numbers) == 1 else b).numbers, (), literals)
    numbers = frozenset(_apply(op, x, y) for x, y in product(a.numbers, b.numbers))
    return Levels(numbers, shares, literals) if len(numbers) <= _MANY else None


def _apply(op: Op, x: float, y: float) -> float:
    return {Op.MUL: x * y, Op.ADD: x + y, Op.SUB: x - y}[op] if op is not Op.DIV else x / y


def _undoes(by: float, shares: tuple[float, ...]) -> bool:
    return any(math.isclose(by * share, 1.0, rel_tol=_SAME) for share in shares)


def _shares(graph: Graph, flags: list[int], value: int) -> tuple[float, ...]:
    """What a dropout could keep whose mask this is: random draws compared with a number."""
    node, depth = graph.producer(value), 8
    while node is not None and flags[node.output] & RANDOM and depth > 0:
        depth -= 1
        if len(node.inputs) == 2:
            known = [f.value for x in node.inputs if (f := uniform(graph, flags, x)) is not None]
            return tuple(s for n in known if n is not None and 0 < n < 1 for s in (n, 1.0 - n))
        node = graph.producer(node.inputs[0])
    return ()
