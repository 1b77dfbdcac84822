"""Normalisations, found by what they do: scaling the input changes nothing.

A fused normalisation says so (`Op.NORMALIZE`); a decomposed one is a piece of graph whose output has degree
0 in its input, where f(t*x) = t**degree * f(x) for t > 0. No operation's name decides.
"""

import heapq

from tiebeam.core.reading.chains import multiple
from tiebeam.core.reading.numbers import is_mask
from tiebeam.core.reading.provenance import INPUT
from tiebeam.ir import Graph, Node, Op

SMALL = 0.05  # an epsilon that is added inside a normalisation
CONE = 64  # values looked at behind one product: a decomposed normalisation has about ten
_LINEAR = (Op.LAYOUT, Op.CAST, Op.DROPOUT, Op.CONCAT)
_KEEPS = (Op.MASK, Op.UPDATE)


def degree(graph: Graph, node: Node, known: dict[int, float | None]) -> float | None:
    """Degree of the node's output, given the degrees of the operands that depend on the root.

    Operands absent from `known` are constants of the root. None: not homogeneous.
    """
    moving = [v for v in node.inputs if v in known]
    degrees = [known[v] for v in moving]
    if any(d is None for d in degrees):
        return None
    ds = [d for d in degrees if d is not None]
    if not any(ds):
        return 0.0
    match node.op:
        case Op.LAYOUT | Op.CAST | Op.DROPOUT | Op.GATHER:
            return known.get(node.inputs[0])
        case Op.CONCAT | Op.MASK | Op.UPDATE:
            return ds[0] if len(set(ds)) == 1 and len(moving) == len(node.inputs) - (node.op is Op.MASK) else None
        case Op.MUL:
            return sum(ds)
        case Op.DIV:
            a, b = (known.get(v) or 0.0 for v in node.inputs)
            return a - b
        case Op.ADD | Op.SUB:
            return _sum_degree(graph, node, known, ds)
        case Op.POINTWISE | Op.REDUCE:
            return ds[0] * node.degree if len(ds) == 1 and node.degree is not None else None
        case Op.NORMALIZE:
            return 0.0 if moving == [node.inputs[0]] else None
    return None


def _sum_degree(graph: Graph, node: Node, known: dict[int, float | None], ds: list[float]) -> float | None:
    if len(ds) == len(node.inputs):
        return ds[0] if len(set(ds)) == 1 else None
    other = next(v for v in node.inputs if v not in known)
    number = graph.values[other].number
    epsilon = number is not None and abs(number) <= SMALL and node.op is Op.ADD
    return ds[0] if epsilon else None


def stream_before(graph: Graph, flags: list[int], value: int) -> int | None:
    """The value whose normalisation `value` is (gain and bias passed through), or None."""
    v = value
    for _ in range(CONE):
        node = graph.producer(v)
        if node is None:
            return None
        if node.op is Op.NORMALIZE:
            return node.inputs[0]
        moving = [x for x in node.inputs if flags[x] & INPUT]
        if len(moving) == 2 and is_mask(graph, flags, moving[1]):
            moving = moving[:1]
        if node.op in (Op.ADD, Op.SUB):  # a sum of multiples of one value is a multiple of it
            moving = moving if len({multiple(graph, flags, x)[0] for x in moving}) > 1 else moving[:1]
        if node.op in (Op.MUL, Op.DIV) and len(moving) == 2:
            return _decomposed(graph, flags, node)
        if node.op in (Op.ADD, Op.SUB) and len(moving) == 2:
            return _multiplied_out(graph, flags, node)
        if node.op not in (
            Op.LAYOUT,
            Op.CAST,
            Op.DROPOUT,
            Op.MASK,
            Op.ADD,
            Op.SUB,
            Op.MUL,
            Op.DIV,
            Op.GATHER,
        ) or (len(moving) != 1 and node.op not in (Op.MASK, Op.GATHER, Op.LAYOUT)):
            return None
        v = moving[0]
    return None


def _decomposed(graph: Graph, flags: list[int], node: Node) -> int | None:
    for operand in node.inputs:
        for root in _roots(graph, operand):
            if _degree_behind(graph, flags, node, root) == 0.0:
                return root
    return None


def _multiplied_out(graph: Graph, flags: list[int], node: Node) -> int | None:
    """The root of x*r + (bias - mean*r): a normalisation whose centring was multiplied out."""
    products = [graph.producer(v) for v in node.inputs]
    factors = [v for p in products if p is not None and p.op in (Op.MUL, Op.DIV) for v in p.inputs]
    for root in (r for v in factors for r in _roots(graph, v)):
        if flags[root] & INPUT and _degree_behind(graph, flags, node, root) == 0.0:
            return root
    return None


def _roots(graph: Graph, value: int) -> list[int]:
    """`value` and what it is a cast, a rearrangement or a centring of."""
    roots = [value]
    for _ in range(8):
        node = graph.producer(roots[-1])
        if node is None or node.op not in (Op.LAYOUT, Op.CAST, Op.SUB, Op.MUL):
            break
        if node.op is Op.SUB and not _is_mean(graph, node.inputs[1]):
            break
        if node.op is Op.MUL and graph.values[node.inputs[1]].size != 1:
            break
        roots.append(node.inputs[0])
    return roots[::-1]


def _is_mean(graph: Graph, value: int) -> bool:
    node = graph.producer(value)
    while node is not None and (node.op in (Op.LAYOUT, Op.CAST) or _by_a_number(graph, node)):
        node = graph.producer(node.inputs[0])
    return node is not None and node.op is Op.REDUCE


def _by_a_number(graph: Graph, node: Node) -> bool:
    return node.op in (Op.MUL, Op.DIV) and graph.values[node.inputs[1]].number is not None


def _degree_behind(graph: Graph, flags: list[int], node: Node, root: int) -> float | None:
    """Degree of the node's output in `root`, looking at a bounded piece of graph between the two."""
    start = graph.values[root].producer
    inside: set[int] = set()
    stack = list(node.inputs)
    while stack:
        v = stack.pop()
        behind = graph.producer(v)
        if v == root or v in inside or not flags[v] & INPUT:
            continue
        if behind is None or behind.index <= start or len(inside) > CONE:
            return None  # something else than the root comes in
        inside.add(v)
        stack += behind.inputs
    known: dict[int, float | None] = {root: 1.0}
    for v in sorted(inside, key=lambda x: graph.values[x].producer):
        known[v] = degree(graph, graph.nodes[graph.values[v].producer], known)
    return degree(graph, node, known)


def normalized_upstream(graph: Graph, flags: list[int], value: int) -> int | None:
    """The stream entering the last normalisation that `value` depends on, or None.

    Products with weights, biases and activations in between are passed through: what stands behind them
    no longer depends on the scale of the table.
    """
    v = value
    for _ in range(CONE):
        stream = stream_before(graph, flags, v)
        if stream is not None:
            return stream
        node = graph.producer(v)
        if node is None:
            return None
        moving = [x for x in node.inputs if flags[x] & INPUT]
        if node.op in (Op.LAYOUT, Op.GATHER, Op.MASK):
            moving = moving[:1]
        same = _gated(graph, flags, node, moving)
        if same is not None:
            v = same
        elif len(moving) == 1 and node.op is not Op.OPAQUE:
            v = moving[0]
        else:
            return None
    return None


def _gated(graph: Graph, flags: list[int], node: Node, moving: list[int]) -> int | None:
    """The one value behind both operands of an activation such as x * sigmoid(x), or None."""
    if node.op not in (Op.MUL, Op.ADD) or len(moving) != 2:
        return None
    for candidate, other in (moving, moving[::-1]):
        v = other
        for _ in range(16):
            behind = graph.producer(v)
            if v == candidate:
                return candidate
            if behind is None:
                break
            inner = [x for x in behind.inputs if flags[x] & INPUT]
            if not inner or behind.op in (Op.DOT, Op.OPAQUE):
                break
            v = next((x for x in inner if x == candidate), inner[0])
    common = [graph.producer(x) for x in moving]
    sources = [{x for x in n.inputs if flags[x] & INPUT} if n is not None else set() for n in common]
    shared = sources[0] & sources[1]
    return next(iter(shared), None)


def every_use_normalizes(graph: Graph, value: int, lookup: str = "") -> bool:
    """Whether all that is computed from `value` starts with a normalisation of it.

    Args:
        lookup: Path of the module that read the rows. A normalisation that belongs to a block of the body
            (an indexed module that the lookup is no part of) is that block's own, not the embedding's.
    """
    known: dict[int, float | None] = {value: 1.0}
    queue = sorted(graph.consumers[value])
    if value in graph.returned or not queue:
        return False
    seen: set[int] = set()
    while queue:
        index = heapq.heappop(queue)
        node = graph.nodes[index]
        if index in seen or not graph.live[index]:
            continue
        seen.add(index)
        d = None if node.op is Op.DOT else degree(graph, node, known)
        if d is None:
            return False
        if d == 0.0:
            if _in_a_block(node.where, lookup):
                return False
            continue
        for out in node.outputs:
            if out in graph.returned:
                return False
            known[out] = d
            for consumer in graph.consumers[out]:
                heapq.heappush(queue, consumer)
    return True


def _in_a_block(where: str, lookup: str) -> bool:
    """Whether a path leads into an indexed module ("layers.0.norm") that does not hold `lookup`."""
    parts, other = where.split("."), lookup.split(".")
    return any(p.isdigit() and parts[: i + 1] != other[: i + 1] for i, p in enumerate(parts[:-1]))
