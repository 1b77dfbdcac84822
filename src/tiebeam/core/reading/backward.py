"""The walk backwards from a readout's input to where its size is measured."""

from dataclasses import dataclass

from tiebeam.core.reading.chains import computed_from, counted, equal_terms, made_of, mean_of, multiple
from tiebeam.core.reading.numbers import ONE, OWN, Factor, is_constant, scalar, uniform
from tiebeam.core.reading.provenance import INPUT
from tiebeam.core.reading.switches import NO_DROPOUT, Levels, mask_levels
from tiebeam.ir import Graph, Leaf, Node, Op

_PASS = (Op.LAYOUT, Op.CAST, Op.DROPOUT, Op.MASK)


@dataclass(frozen=True, slots=True)
class Backward:
    """Where the walk ended.

    Attributes:
        value: The value there.
        factor: Constants collected on the way.
    """

    value: int
    factor: Factor


def backward(
    graph: Graph, flags: list[int], value: int, *, normalized: bool, table: Leaf | None = None
) -> Backward:  # fmt: skip
    """Walk back from `value` through layout, masks, adds of biases and scalars.

    Args:
        normalized: A normalisation stands right behind (gains apart): a vector that multiplies is its gain.
        table: What is read: a number computed from it is no constant.
    """
    factor, v, dropping = ONE, value, NO_DROPOUT
    while (node := graph.producer(v)) is not None:
        behind = _behind(graph, flags, node, normalized=normalized)
        if behind is None:
            break
        v, by = behind
        if isinstance(by, Levels):
            by, dropping = dropping.masked(by)
        else:
            if table is not None and by is not ONE and any(made_of(graph, flags, x, table) for x in node.inputs):
                by = OWN
            by, dropping = dropping.scaled(by)
        factor = factor.times(by)
    return Backward(v, factor)


def _behind(graph: Graph, flags: list[int], node: Node, *, normalized: bool) -> tuple[int, Factor | Levels] | None:
    """The value before `node` and the constant or mask between, or None where the walk ends."""
    if node.op is Op.CONCAT and len(set(node.inputs)) == 1:  # copies side by side
        return node.inputs[0], ONE
    if node.op in _PASS or (node.op is Op.GATHER and flags[node.inputs[0]] & INPUT):
        return node.inputs[0], ONE
    if node.op in (Op.MUL, Op.DIV):
        return None if mean_of(graph, flags, node) else _unscaled(graph, flags, node, normalized=normalized)
    if node.op is Op.REDUCE:
        count = equal_terms(graph, node)
        return None if count is None else (node.inputs[0], counted(float(count), node))
    if node.op in (Op.ADD, Op.SUB):
        return _less(graph, flags, node)
    return None


def _unscaled(graph: Graph, flags: list[int], node: Node, *, normalized: bool) -> tuple[int, Factor | Levels] | None:
    moving = [x for x in node.inputs if not is_constant(graph, flags, x)]
    i = 0 if node.op is Op.DIV or node.inputs[0] in moving else 1
    mine, other = node.inputs[i], node.inputs[1 - i]
    by = scalar(graph, flags, other)
    levels = mask_levels(graph, flags, other) if by is None and node.op is Op.MUL else None
    if levels is not None:
        return mine, levels
    if by is None and other not in moving and not normalized:
        vector = Factor(None, f"the hidden state is multiplied by a tensor of shape {graph.values[other].shape}")
        by = uniform(graph, flags, other) or vector
    if by is None or graph.values[mine].size < graph.values[node.output].size:
        return None
    if by.value is None and flags[other] & INPUT and computed_from(graph, other, mine):
        return None  # divided by its own size, all at once
    return mine, by.inverse() if node.op is Op.DIV else by


def _less(graph: Graph, flags: list[int], node: Node) -> tuple[int, Factor] | None:
    """Behind an added bias, or a sum of multiples of one value."""
    sign = Factor(-1.0 if node.op is Op.SUB else 1.0)
    moving = [x for x in node.inputs if not is_constant(graph, flags, x)]
    if len(moving) == 2:
        (a, fa), (b, fb) = (multiple(graph, flags, x) for x in node.inputs)
        return (a, fa.plus(fb.times(sign)).times(counted(1.0, node))) if a == b else None
    if len(moving) != 1:
        return None
    return moving[0], sign if moving[0] == node.inputs[1] else ONE
