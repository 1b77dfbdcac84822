"""From an operand back to the table: through views, casts and the table's own factor."""

from dataclasses import dataclass, replace

from tiebeam.core.reading.chains import made_of
from tiebeam.core.reading.numbers import ONE, OWN, Factor, scalar
from tiebeam.core.reading.provenance import INPUT, RANDOM
from tiebeam.core.reading.switches import NO_DROPOUT, Dropping, mask_levels
from tiebeam.ir import Axes, Graph, Leaf, Node, Op, Value

_ADDED = "something is added to the table"
DEPTH = 64  # operations between a parameter and its use: parametrisations have a dozen


@dataclass(frozen=True, slots=True)
class Source:
    """A leaf matrix as one operand holds it.

    Attributes:
        leaf: The parameter or buffer.
        shape: Its shape.
        axes: For each axis of the operand the leaf's axis, or -1.
        factor: Constant factor on the way.
        altered: Why the operand's values are not the leaf's ("" where they are).
        attached: Whether gradients flow all the way.
    """

    leaf: Leaf
    shape: tuple[int, ...]
    dtype: str
    axes: Axes
    factor: Factor
    altered: str
    attached: bool


@dataclass(frozen=True, slots=True)
class _Step:
    value: int
    axes: Axes
    factor: Factor
    altered: str
    attached: bool
    dropping: Dropping = NO_DROPOUT
    scalars: tuple[int, ...] = ()  # values whose number went into the factor


def source_of(graph: Graph, flags: list[int], node: Node, operand: int) -> Source | None:
    """The leaf matrix behind operand number `operand` of `node` (the first of several), or None."""
    return next(iter(sources_of(graph, flags, node, operand)), None)


def sources_of(graph: Graph, flags: list[int], node: Node, operand: int) -> list[Source]:
    """Every leaf matrix that operand number `operand` of `node` is made of: parts that are concatenated are several."""
    value = node.inputs[operand]
    attached = node.attached[operand] is not False or not node.recorded
    rank = len(graph.values[value].shape)
    return _back(graph, flags, _Step(value, tuple(range(rank)), ONE, "", attached), DEPTH)


def _back(graph: Graph, flags: list[int], step: _Step, depth: int) -> list[Source]:
    while depth > 0 and not flags[step.value] & INPUT:
        depth -= 1
        value = graph.values[step.value]
        if value.leaf is not None:
            return _arrive(graph, flags, value, step)
        node = graph.producer(step.value)
        if node is None or sum(a >= 0 for a in step.axes) < 2:
            return []
        choices = [s for i in range(len(node.inputs)) if (s := _through(graph, flags, node, i, step)) is not None]
        if not choices:
            return []
        if len(choices) > 1:
            return _several(node, step, [f for c in choices for f in _back(graph, flags, c, depth)])
        step = choices[0]
    return []


def _several(node: Node, step: _Step, found: list[Source]) -> list[Source]:
    """Of what several operands lead to: the parts of a concatenation, a sum, or the one that counts."""
    if node.op is Op.CONCAT and node.axis in step.axes:
        return list({f.leaf.key: f for f in reversed(found)}.values())[::-1]
    if node.op in (Op.ADD, Op.SUB) and len(found) == 2 and found[0].leaf.key == found[1].leaf.key:
        return [_summed(*found)]
    return [f for f in found if f.leaf.parameter][:1] or found[:1]


def _summed(a: Source, b: Source) -> Source:
    """The table plus a multiple of itself."""
    if a.axes != b.axes or {a.altered, b.altered} != {_ADDED}:
        return replace(a, factor=Factor(None, "the table is added to a rearrangement of itself"))
    return replace(a, factor=a.factor.plus(b.factor), altered="", attached=a.attached and b.attached)


def _arrive(graph: Graph, flags: list[int], value: Value, step: _Step) -> list[Source]:
    long = [i for i, n in enumerate(value.shape) if n != 1]
    if len(value.shape) < 2 or len(long) > 2 or value.leaf is None:
        return []
    own = any(made_of(graph, flags, x, value.leaf) for x in step.scalars)  # a multiple of it would change the number
    factor = step.factor.times(OWN) if own else step.factor
    return [Source(value.leaf, value.shape, value.dtype, step.axes, factor, step.altered, step.attached)]


def _through(graph: Graph, flags: list[int], node: Node, i: int, step: _Step) -> _Step | None:
    """The step before `node` if operand `i` is the table, or None."""
    axes = _every_row(graph, flags, node) if node.op is Op.GATHER and i == 0 else node.axes[i]
    if axes is None:
        return None
    mapped = tuple(axes[a] if a >= 0 else -1 for a in step.axes)
    attached = step.attached and (node.attached[i] is not False or not node.recorded)
    back = replace(step, value=node.inputs[i], axes=mapped, attached=attached)
    match node.op:
        case Op.LAYOUT | Op.CAST | Op.GATHER:
            return back if i == 0 else None
        case Op.DROPOUT:
            return back if i == 0 else None
        case Op.MASK:
            return replace(back, altered=step.altered or _masked(graph, node)) if i == 0 else None
        case Op.UPDATE:
            return replace(back, altered=step.altered or "some rows are replaced") if i == 0 else None
        case Op.CONCAT:
            return back
        case Op.MUL | Op.DIV:
            return _scaled(graph, flags, node, i, back)
        case Op.ADD | Op.SUB:
            sign = Factor(-1.0 if node.op is Op.SUB and i == 1 else 1.0)
            return replace(back, factor=back.factor.times(sign), altered=step.altered or _ADDED)
        case Op.POINTWISE | Op.TANH | Op.SIGMOID | Op.NORMALIZE | Op.SOFTMAX:
            bent = Factor(None, f"{node.label} on the table is no multiplication")
            return replace(back, factor=bent.times(back.factor), altered=step.altered or f"{node.label} on the table")
    return None


def _masked(graph: Graph, node: Node) -> str:
    """What a mask does to the table: something, unless it puts rows of a constant behind the table's own."""
    padded = len(node.inputs) == 1 and graph.values[node.output].size > graph.values[node.inputs[0]].size
    return "" if padded else f"{node.label} on the table"


def _every_row(graph: Graph, flags: list[int], node: Node) -> Axes | None:
    """The axes of a table that is read at as many fixed places as it has rows: all of it, in some order; else None."""
    axes, index = node.axes[0], graph.values[node.inputs[1]]
    rows = graph.values[node.inputs[0]].shape[node.axis]
    if axes is None or not index.integral or index.size != rows or rows < 2 or flags[index.id] & (INPUT | RANDOM):
        return None
    shape = graph.values[node.output].shape
    taken = [i for i, (a, n) in enumerate(zip(axes, shape, strict=True)) if a < 0 and n == rows]
    return None if len(taken) != 1 else tuple(node.axis if i == taken[0] else a for i, a in enumerate(axes))


def _scaled(graph: Graph, flags: list[int], node: Node, i: int, back: _Step) -> _Step | None:
    other = node.inputs[1 - i]
    if graph.values[node.inputs[i]].size == 1 and graph.values[other].size != 1:
        return None
    by = scalar(graph, flags, other)
    levels = mask_levels(graph, flags, other) if by is None and node.op is Op.MUL else None
    if levels is not None:  # dropout written as a product
        on, dropping = back.dropping.masked(levels)
        return replace(back, factor=back.factor.times(on), dropping=dropping)
    if by is None:
        if graph.values[other].size > graph.values[node.inputs[i]].size:
            return None
        vector = Factor(None, f"the table is multiplied by a tensor of shape {graph.values[other].shape}")
        return replace(back, factor=back.factor.times(vector), altered=back.altered or f"{node.label} by a tensor")
    if node.op is Op.DIV:
        if i == 1:
            return None
        by = by.inverse()
    by, dropping = back.dropping.scaled(by)
    return replace(back, factor=back.factor.times(by), dropping=dropping, scalars=(*back.scalars, other))
