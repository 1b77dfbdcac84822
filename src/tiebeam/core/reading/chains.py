"""Short chains backwards: what a value is a multiple of, and what it was computed from."""

import math

from tiebeam.core.reading.numbers import ONE, Factor, scalar, uniform
from tiebeam.core.reading.provenance import INPUT, LEAF
from tiebeam.ir import Graph, Leaf, Node, Op

_SUMS = 16  # of sums that a multiple may be made of: a loop over the tokens of an example is shorter


def counted(n: float, node: Node) -> Factor:
    """The factor of a sum of `n` equal terms: there may be as many as the inputs are long, so that it is in doubt."""
    return Factor(n, "", frozenset((node.output,)))


def multiple(graph: Graph, flags: list[int], value: int, floor: int = -1, depth: int = _SUMS) -> tuple[int, Factor]:
    """The value that `value` is a constant multiple of, element by element, and the constant.

    Args:
        floor: Index of the node to stop at.
    """
    factor, v = ONE, value
    while (node := graph.producer(v)) is not None and node.index > floor:
        if node.op is Op.CAST:
            v = node.inputs[0]
            continue
        if node.op in (Op.ADD, Op.SUB) and depth:
            summed = _sum_of_one(graph, flags, node, floor, depth - 1)
            if summed is None:
                break
            v, factor = summed[0], factor.times(summed[1])
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


def _sum_of_one(graph: Graph, flags: list[int], node: Node, floor: int, depth: int) -> tuple[int, Factor] | None:
    """Behind a sum or difference of two multiples of one value; None where they are of two."""
    if len(node.inputs) != 2:
        return None
    nothing = [i for i, x in enumerate(node.inputs) if (n := uniform(graph, flags, x)) is not None and n.value == 0]
    if len(nothing) == 1 and graph.values[node.inputs[1 - nothing[0]]].size == graph.values[node.output].size:
        # as Python's `sum` begins, or a loop that fills zeros
        return node.inputs[1 - nothing[0]], Factor(-1.0) if node.op is Op.SUB and nothing == [0] else ONE
    if any(graph.values[x].size != graph.values[node.output].size for x in node.inputs):
        return None
    a, by = multiple(graph, flags, node.inputs[0], floor, depth)
    b, more = (a, by) if node.inputs[0] == node.inputs[1] else multiple(graph, flags, node.inputs[1], floor, depth)
    if a != b:
        return None
    return a, by.plus(more.times(Factor(-1.0 if node.op is Op.SUB else 1.0))).times(counted(1.0, node))


def same_product(graph: Graph, a: int, b: int, depth: int = 6) -> bool:
    """Whether two values are one product of the same operands, computed twice."""
    if a == b:
        return True
    one, two = graph.producer(a), graph.producer(b)
    if one is None or two is None or depth == 0 or one.op is not two.op or one.axes != two.axes:
        return False
    whole = graph.values[one.inputs[0]].size == graph.values[a].size  # a part could be another part
    if not (one.op is Op.DOT or (one.op in (Op.LAYOUT, Op.CAST) and whole)) or len(one.inputs) != len(two.inputs):
        return False
    alike = one.label == two.label and graph.values[a].shape == graph.values[b].shape
    return alike and all(same_product(graph, x, y, depth - 1) for x, y in zip(one.inputs, two.inputs, strict=True))


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


def made_of(graph: Graph, flags: list[int], value: int, leaf: Leaf) -> bool:
    """Whether `value` is `leaf` or was computed from it, without any input."""
    stack, seen = [value], set[int]()
    while stack:
        v = stack.pop()
        if v in seen or not flags[v] & LEAF or flags[v] & INPUT:
            continue
        seen.add(v)
        found = graph.values[v].leaf
        if found is not None and found.key == leaf.key:
            return True
        node = graph.producer(v)
        stack += node.inputs if node is not None else ()
    return False


def equal_terms(graph: Graph, node: Node) -> int | None:
    """How many equal terms a sum adds up: copies stacked, or an axis that only repeats; None where they differ."""
    if node.op is not Op.REDUCE or not node.sums or node.axes[0] is None:
        return None
    whole = graph.values[node.inputs[0]].shape
    summed = {i for i in range(len(whole)) if i not in node.axes[0]}
    behind = graph.producer(node.inputs[0])
    while behind is not None and behind.op is Op.CAST:
        behind = graph.producer(behind.inputs[0])
    if behind is None or behind.op not in (Op.CONCAT, Op.LAYOUT) or len(set(behind.inputs)) != 1:
        return None
    axes = behind.axes[0]
    if axes is None or any(axes[i] >= 0 for i in summed):
        return None
    kept = math.prod(n for n, a in zip(whole, axes, strict=True) if a >= 0)
    if kept != graph.values[behind.inputs[0]].size:  # an axis that was cut or merged holds different elements
        return None
    return math.prod(whole[i] for i in summed)


def mean_of(graph: Graph, flags: list[int], node: Node) -> bool:
    """Whether a multiplication turns a sum of different terms into their mean, which is no factor of any term."""
    i = 0 if node.op is Op.DIV or graph.values[node.inputs[0]].size == graph.values[node.output].size else 1
    by = scalar(graph, flags, node.inputs[1 - i])
    behind = graph.producer(node.inputs[i])
    while behind is not None and behind.op in (Op.LAYOUT, Op.CAST):
        behind = graph.producer(behind.inputs[0])
    if by is None or by.value is None or behind is None or behind.op is not Op.REDUCE or not behind.sums:
        return False
    terms = graph.values[behind.inputs[0]].size / max(graph.values[behind.output].size, 1)
    share = by.inverse().value if node.op is Op.MUL else by.value
    return equal_terms(graph, behind) is None and share is not None and math.isclose(share, terms, rel_tol=1e-3)
