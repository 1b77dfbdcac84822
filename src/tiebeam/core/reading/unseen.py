"""Signs of a readout that was not recognised: ways, other than lookups, in which the pass uses a looked-up table.

A table that is only looked up wants a std of 1, with which a readout would give logits of std sqrt(width). So
"only looked up" has to mean that nothing else was seen to happen to it.
"""

from collections.abc import Iterable

from tiebeam.core.reading.chains import computed_from
from tiebeam.core.reading.numbers import scalar
from tiebeam.core.reading.provenance import INPUT, INTS
from tiebeam.core.reading.roles import Read
from tiebeam.core.reading.source import source_of
from tiebeam.ir import Axes, Graph, Node, Op


def unseen_readouts(
    graph: Graph, flags: list[int], lookups: Iterable[Read], readouts: Iterable[Read]
) -> dict[int, str]:
    """By leaf key, of tables that are looked up and not seen to be read out: what could be a readout of them."""
    known = {r.source.leaf.key for r in readouts}
    found: dict[int, str] = {}
    for read in lookups:
        key = read.source.leaf.key
        if key not in known and key not in found:
            why = _product_of_the_table(graph, flags, read) or _product_of_rows(graph, flags, read)
            why = why or (not known and _of_unknown_body(graph, flags, read)) or ""
            if why:
                found[key] = why
    return found


def _product_of_the_table(graph: Graph, flags: list[int], read: Read) -> str:
    """A product, or an operation of unknown body, of something of the inputs and something made of the table."""
    stack = [v.id for v in graph.values if v.leaf is not None and v.leaf.key == read.source.leaf.key]
    seen = set(stack)
    while stack:
        v = stack.pop()
        for index in graph.consumers[v]:
            node = graph.nodes[index]
            if not graph.live[index] or index == read.node.index:
                continue
            if flags[node.output] & INPUT:
                if node.op is Op.OPAQUE or (node.op is Op.DOT and not _mixes_rows(graph, flags, node, v, read)):
                    return f"{node.label}{_place(node)} reads it together with the inputs, and is seen to be no readout"
            else:
                new = {x for x in node.outputs if graph.values[x].size > 1} - seen
                seen |= new
                stack += new
    return ""


def _mixes_rows(graph: Graph, flags: list[int], node: Node, value: int, read: Read) -> bool:
    """Whether a product sums over the vocabulary axis: one row for each set of weights, as a lookup gives."""
    source = source_of(graph, flags, node, node.inputs.index(value))
    axes = node.axes[node.inputs.index(value)]
    if source is None or axes is None or source.leaf.key != read.source.leaf.key:
        return False
    return all(a < 0 or source.axes[a] != read.vocab_axis for a in axes)


def scores_alone(graph: Graph, flags: list[int], read: Read, others: Iterable[Read]) -> bool:
    """Whether the rows just read meet nothing but a hidden state made of other rows of the table.

    Such products are logits of the tokens asked for, as a loss that never makes all of them needs for its targets.
    """
    products, rows = _products_of_rows(graph, flags, read)
    mine = [r.node.output for r in others if r.source.leaf.key == read.source.leaf.key and r.node is not read.node]
    ends = {node.index for node, _ in products}
    uses = [graph.nodes[i] for v in rows for i in graph.consumers[v] if graph.live[i]]
    if not products or rows & graph.returned or any(n.index not in ends and n.output not in rows for n in uses):
        return False
    return all(
        other not in rows and any(computed_from(graph, other, v) for v in mine) and not _from_any(graph, other, rows)
        for _, other in products
    )


def _from_any(graph: Graph, value: int, origins: set[int]) -> bool:
    return any(computed_from(graph, value, v) for v in origins)


def _product_of_rows(graph: Graph, flags: list[int], read: Read) -> str:
    """A product over the width of the rows just read with an activation: logits of the tokens asked for alone."""
    products, rows = _products_of_rows(graph, flags, read)
    for node, other in products:
        if flags[other] & INPUT and not flags[other] & INTS and other not in rows:
            return f"{node.label}{_place(node)} multiplies rows of it by a hidden state: logits of some tokens"
    return ""


def _products_of_rows(graph: Graph, flags: list[int], read: Read) -> tuple[list[tuple[Node, int]], set[int]]:
    """Products over the width of the rows just read, with what they are multiplied by; and all values that are rows."""
    axes = read.node.axes[0 if read.node.op is Op.GATHER else read.node.inputs.index(_operand(read))] or ()
    width = next((i for i, a in enumerate(axes) if a >= 0 and _is_width(read, a)), None)
    if width is None:
        return [], set()
    stack, rows = [(read.node.output, width)], {read.node.output}
    products: list[tuple[Node, int]] = []
    while stack:
        v, axis = stack.pop()
        for index in graph.consumers[v]:
            node = graph.nodes[index]
            i = node.inputs.index(v)
            along = node.axes[i]
            if not graph.live[index] or along is None:
                continue
            if _sums_product(graph, node, along, axis):
                products.append((node, node.inputs[1 - i]))
            elif axis in along and _still_rows(graph, flags, node, i) and node.output not in rows:
                rows.add(node.output)
                stack.append((node.output, along.index(axis)))
    return products, rows


def _sums_product(graph: Graph, node: Node, along: Axes, axis: int) -> bool:
    """Whether `node` is a product that is summed over the operand's `axis`, at once or by the next operation."""
    if node.op is Op.DOT:
        return axis not in along
    if node.op is not Op.MUL or axis not in along:
        return False
    after = [graph.nodes[i] for i in graph.consumers[node.output]]
    return any(n.op is Op.REDUCE and n.sums and along.index(axis) not in (n.axes[0] or ()) for n in after)


def _operand(read: Read) -> int:
    return next(x for x in read.node.inputs if x != read.other)


def _is_width(read: Read, a: int) -> bool:
    return a < len(read.source.axes) and read.source.axes[a] >= 0 and read.source.axes[a] != read.vocab_axis


def _still_rows(graph: Graph, flags: list[int], node: Node, i: int) -> bool:
    if node.op in (Op.MUL, Op.DIV):
        return i == 0 and scalar(graph, flags, node.inputs[1]) is not None
    return node.op in (Op.LAYOUT, Op.CAST, Op.DROPOUT) and i == 0


def _of_unknown_body(graph: Graph, flags: list[int], read: Read) -> str:
    """An operation from outside the framework that gives an axis of the vocabulary's size."""
    for node in graph.nodes:
        if node.foreign and graph.live[node.index] and flags[node.output] & INPUT:
            shape = graph.values[node.output].shape
            if shape and shape[-1] == read.vocab:
                return f"{node.label}{_place(node)}, whose body is unknown, gives {read.vocab} numbers as logits do"
    return ""


def _place(node: Node) -> str:
    return f" in {node.where}" if node.where else ""
