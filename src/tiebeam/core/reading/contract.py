"""Products written as multiply and sum, additions as stack and sum: a pass that shows them as what they are."""

import math
from dataclasses import replace

from tiebeam.ir import Axes, Graph, Node, Op

_BY_ELEMENT = (Op.CAST, Op.MUL, Op.DIV, Op.ADD, Op.SUB, Op.POINTWISE)


def contracted(graph: Graph) -> Graph:
    """The graph with each sum over a broadcast product (h[..., None, :] * E).sum(-1) as one `Op.DOT`.

    A sum over two stacked tensors becomes the addition that it is.

    It is a product only where both factors have the summed axis and each brings an axis that the other lacks:
    otherwise it is a reduction of one signal, such as a norm's.
    """
    nodes = [_product(graph, n) or _addition(graph, n) or n for n in graph.nodes]
    return (
        replace(graph, nodes=tuple(nodes))
        if any(a is not b for a, b in zip(nodes, graph.nodes, strict=True))
        else graph
    )


def _product(graph: Graph, node: Node) -> Node | None:
    if node.op is not Op.REDUCE or not node.sums or node.axes[0] is None:
        return None
    inner = graph.producer(node.inputs[0])
    if inner is None or inner.op is not Op.MUL or None in inner.axes or len(inner.inputs) != 2:
        return None
    outer = node.axes[0]
    summed = set(range(len(graph.values[inner.output].shape))) - set(outer)
    a, b = (_varying(graph, v, axes) for v, axes in zip(inner.inputs, inner.axes, strict=True) if axes is not None)
    if not summed or any(a[i] < 0 or b[i] < 0 for i in summed):
        return None
    kept = [i for i in outer if i >= 0]
    if all(a[i] >= 0 for i in kept) or all(b[i] >= 0 for i in kept):
        return None

    def composed(axes: Axes) -> Axes:
        return tuple(axes[i] if i >= 0 else -1 for i in outer)

    return node._replace(
        op=Op.DOT, inputs=inner.inputs, axes=(composed(a), composed(b)), attached=inner.attached, degree=None,
        sums=False, label=f"{inner.label} and {node.label}",
    )  # fmt: skip


def _addition(graph: Graph, node: Node) -> Node | None:
    if node.op is not Op.REDUCE or not node.sums or node.axes[0] is None:
        return None
    inner, outer = graph.producer(node.inputs[0]), node.axes[0]
    if inner is None or inner.op is not Op.CONCAT or len(inner.inputs) != 2 or None in inner.axes:
        return None
    rank = len(graph.values[inner.output].shape)
    stacked = all(axes is not None and axes[inner.axis] < 0 for axes in inner.axes)
    if not stacked or set(range(rank)) - set(outer) != {inner.axis} or len(outer) != rank - 1:
        return None
    axes = [tuple(along[i] for i in outer) for along in inner.axes if along is not None]
    return node._replace(
        op=Op.ADD, inputs=inner.inputs, axes=tuple(axes), attached=inner.attached, degree=None, sums=False,
        label=f"{inner.label} and {node.label}",
    )  # fmt: skip


def _varying(graph: Graph, value: int, axes: Axes, depth: int = 8) -> Axes:
    """`axes` without those along which the value only repeats itself: it was expanded, and perhaps scaled then."""
    node = graph.producer(value)
    if node is None or depth == 0 or node.axes[0] is None:
        return axes
    whole = graph.values[value].shape
    if node.op is Op.LAYOUT and len(node.inputs) == 1:
        kept = math.prod(n for n, a in zip(whole, node.axes[0], strict=True) if a >= 0)
        if kept != graph.values[node.inputs[0]].size:  # something was cut or merged
            return axes
        inner = _varying(graph, node.inputs[0], node.axes[0], depth - 1)
    elif node.op in _BY_ELEMENT or (node.op is Op.REDUCE and len(node.inputs) == 1):
        along = [
            (-1,) * len(whole) if x is None else _varying(graph, v, x, depth - 1)
            for v, x in zip(node.inputs, node.axes, strict=True)
        ]
        inner = tuple(max(of) for of in zip(*along, strict=True))
    else:
        return axes
    return tuple(a if a >= 0 and (inner[a] >= 0 or whole[a] == 1) else -1 for a in axes)
