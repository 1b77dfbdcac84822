"""Whether the logits that a product gives come to anything: an output, a loss, a choice of tokens."""

from collections.abc import Iterator

from tiebeam.core.reading.provenance import IDS, INTS
from tiebeam.core.reading.roles import Read
from tiebeam.ir import Graph, Node, Op

_CURVES = (Op.POINTWISE, Op.TANH, Op.SIGMOID, Op.SOFTMAX)


def reaches(graph: Graph, flags: list[int], read: Read, *, plainly: bool = False, own: bool = False) -> bool:
    """Whether the vocabulary axis of a product gets to an output or a loss without being summed over.

    An axis that a reshape splits or merges (-1 below) is still all there.

    Args:
        plainly: It must come out as the last axis of an output, as logits do: not cut into heads and cached.
        own: The table is looked up as well. Then a choice along the axis (argmax, one entry) or any nonlinear
            reduction of it tells logits too; of a matrix that could be a layer of the body only what follows a
            softmax over the axis does.
    """
    start = (read.node.output, read.axis, False)
    stack, seen = [start], {start}
    while stack:
        v, a, curved = stack.pop()
        shape = graph.values[v].shape
        if v in graph.returned and (not plainly or (a == len(shape) - 1 and shape[-1] == read.vocab)):
            return True
        for index in graph.consumers[v]:
            node = graph.nodes[index]
            if not plainly and graph.live[index] and _decides(graph, flags, node, v, a, curved=curved, own=own):
                return True
            bends = node.op in _CURVES if own else node.op is Op.SOFTMAX and node.axis == a
            for out_axis in _carried(graph, flags, node, v, a):
                if out_axis is None:
                    return True
                for out in node.outputs[: None if node.op is Op.LAYOUT else 1]:  # a sort gives the order as well
                    state = (out, out_axis, curved or bends)
                    if state not in seen:
                        seen.add(state)
                        stack.append(state)
    return False


def _decides(graph: Graph, flags: list[int], node: Node, v: int, a: int, *, curved: bool, own: bool) -> bool:
    """Whether the axis ends in a loss or a choice: one entry is picked, or what became of all is summed up."""
    if node.op is Op.LOSS:
        return node.axis < 0 and (own or curved)
    axes = node.axes[0]
    gone = axes is not None and (a not in axes if a >= 0 else graph.values[node.output].size == 1)
    if node.inputs[0] != v or not gone or graph.values[v].size <= graph.values[node.output].size:
        return False
    if node.op is Op.REDUCE:
        return curved or (own and not node.sums)
    if node.op is not Op.LAYOUT or a < 0:
        return False
    return own or curved or any(flags[x] & IDS for x in node.inputs[1:])


def _carried(graph: Graph, flags: list[int], node: Node, v: int, a: int) -> Iterator[int | None]:
    """Where the axis goes through a node; None where it meets a loss."""
    for i, x in enumerate(node.inputs):
        if x != v:
            continue
        axes = node.axes[i]
        if (i == 0 and _meets_loss(flags, node, a)) or _meets_one_hot(graph, flags, node, i, a):
            yield None
        elif axes is None or node.op is Op.NORMALIZE or (node.op is Op.GATHER and i == 0 and a == node.axis):
            continue
        elif a >= 0 and a in axes:
            yield axes.index(a)
        elif _smeared(graph, node, v, a):
            yield -1


def _smeared(graph: Graph, node: Node, v: int, a: int) -> bool:
    """Whether the axis is cut or merged, with all its elements still there."""
    keeps = node.op is Op.LAYOUT or (a < 0 and node.op not in (Op.DOT, Op.REDUCE))
    return keeps and graph.values[node.output].size >= graph.values[v].size


def _meets_loss(flags: list[int], node: Node, a: int) -> bool:
    """Whether one entry of each row is picked by a label along the axis, as a cross entropy does."""
    if node.op is Op.LOSS:
        return node.axis >= 0 and a in (node.axis, -1)
    return node.op is Op.GATHER and a in (node.axis, -1) and bool(flags[node.inputs[1]] & IDS)


def _meets_one_hot(graph: Graph, flags: list[int], node: Node, i: int, a: int) -> bool:
    """Whether the axis is summed against a one-hot matrix of labels, which picks an entry as well."""
    if node.op is Op.REDUCE:
        product = graph.producer(node.inputs[0])
        axes = node.axes[0] or ()
        if not node.sums or a in axes or a < 0 or product is None or product.op is not Op.MUL:
            return False
        return any(
            flags[x] & INTS and along is not None and along[a] >= 0
            for x, along in zip(product.inputs, product.axes, strict=True)
        )
    if node.op is not Op.DOT or a < 0 or a in (node.axes[i] or ()):
        return False
    return bool(flags[node.inputs[1 - i]] & INTS)
