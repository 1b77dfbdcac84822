"""Short chains backwards: what a value is a multiple of, and what it was computed from."""

from tiebeam.core.numbers import ONE, Factor, scalar
from tiebeam.ir import Graph, Op


def multiple(graph: Graph, flags: list[int], value: int, floor: int = -1) -> tuple[int, Factor]:
    """The value that `value` is a constant multiple of, element by element, and the constant.

    Args:
        floor: Index of the node to stop at.
    """
    factor, v = ONE, value
    while (node := graph.producer(v)) is not None and node.index > floor:
        if node.op is Op.CAST:
            v = node.inputs[0]
            continue
        if node.op not in (Op.MUL, Op.DIV):
            break
        sizes = [graph.values[x].size for x in node.inputs]
        i = 0 if sizes[0] >= sizes[1] or node.op is Op.DIV else 1
        by = scalar(graph, flags, node.inputs[1 - i])
        if by is None or by.value is None or sizes[i] != graph.values[v].size:
            break
        factor = factor.times(by.inverse() if node.op is Op.DIV else by)
        v = node.inputs[i]
    return v, factor


def computed_from(graph: Graph, value: int, origin: int) -> bool:
    """Whether `value` was computed from `origin`."""
    low, stack, seen = graph.values[origin].producer, [value], set[int]()
    while stack:
        v = stack.pop()
        if v == origin:
            return True
        node = graph.producer(v)
        if node is not None and node.index > low and v not in seen:
            seen.add(v)
            stack += node.inputs
    return False
