"""What operations mean that every framework has: rules for their tables."""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from tiebeam.backends.graphs.building import Building, Step
from tiebeam.core.reading.norms import SMALL
from tiebeam.ir import Op

Low = Building[Any, Any]
Rule = Callable[[Low, Any], None]


def arithmetic(op: Op) -> Rule:
    """Addition, subtraction, multiplication or division of two operands."""

    def rule(low: Low, at: Step) -> None:
        a, b = at.inputs
        if op is Op.MUL and a == b:
            low.elementwise(at, Op.POINTWISE, [a], degree=2.0, label="square")
        elif op is Op.SUB and low.uniform(b) == 0.0 and low.shape(a) == low.shape(at.outputs[0]):
            low.elementwise(at, Op.CAST, [a])  # a norm that has a mean to subtract, and subtracts none
        else:
            low.elementwise(at, op, at.inputs)

    return rule


def negated(low: Low, at: Step) -> None:
    """A multiplication by -1."""
    low.elementwise(at, Op.MUL, [at.inputs[0], low.number(-1.0, low.drafts[at.inputs[0]].dtype)])


def bits_read_anew(low: Low, at: Step) -> None:
    """Bits read as another dtype: a narrower one adds a last axis, a wider one takes the last axis up."""
    rank, made = len(low.shape(at.inputs[0])), len(low.shape(at.outputs[0]))
    low.emit(at, Op.POINTWISE, at.inputs, [tuple(i if i < rank else -1 for i in range(made))])


def bounded(low: Low, at: Step) -> None:
    """`max` and `min` with 0 or an epsilon keep the degree; with another number they do not."""
    numbers = [n for v in at.inputs if (n := low.uniform(v)) is not None]
    keeps = all(abs(n) <= SMALL or n == -np.inf for n in numbers)
    low.elementwise(at, Op.POINTWISE, at.inputs, degree=1.0 if keeps else None)


def spread_from_one(low: Low, at: Step, operand: int = 0) -> bool:
    """Whether one element was spread out, in however many steps: then it is shown as one step."""
    source, out = low.scalar_behind(at.inputs[operand]), low.shape(at.outputs[0])
    if source is None or source == at.inputs[operand]:
        return False
    low.emit(at, Op.LAYOUT, [source], [(-1,) * len(out)])
    return True


def hoisted(low: Low, at: Step, compute: Callable[[list[Any]], Any]) -> bool:
    """Do arithmetic on numbers that were spread out before they are: the result is a number, spread out.

    Args:
        at: An operation that works on each element alone, whatever the shape.
        compute: Its result on scalars.
    """
    shape = low.shape(at.outputs[0])
    if prod(shape) == 1:
        return False
    sources = [low.scalar_behind(v) for v in at.inputs]
    scalars = [s for s in sources if s is not None]
    operands: list[Any] = [low.drafts[s].concrete for s in scalars]
    if len(scalars) < len(sources) or any(c is None for c in operands):
        return False
    out = low.drafts[at.outputs[0]]
    result = low.add((), out.dtype, out.origin, leafy=out.leafy)
    low.settle(result, compute([np.reshape(c, ()) for c in operands]))
    low.emit(at, Op.POINTWISE, scalars, [None] * len(scalars), [result])
    low.emit(at, Op.LAYOUT, [result], [(-1,) * len(shape)])
    return True


def columns(low: Low, indices: int) -> list[int] | None:
    """The values that were joined into index vectors, one for each component; None where none were."""
    value, components = indices, low.shape(indices)[-1:]
    for _ in range(8):
        producer = low.drafts[value].producer
        if producer < 0:
            return None
        node = low.nodes[producer]
        if node.op is Op.CONCAT and node.axis == low.rank(value) - 1 and (len(node.inputs),) == components:
            return list(node.inputs)
        if node.op not in (Op.CAST, Op.MASK):
            return None
        value = node.inputs[0]
    return None


def chosen(low: Low, at: Step, condition: int, cases: Sequence[int], kept: Mapping[str, bool]) -> None:
    """A choice between a signal and a constant masks the signal; between two signals one updates the other.

    Args:
        cases: What stands where the condition is, in this order, what the node updates last.
        kept: By the name of a comparison, whether a dropout by it keeps draws below the bound, else those above.
    """
    signals = [v for v in cases if low.drafts[v].varying or (low.drafts[v].leafy and low.uniform(v) is None)]
    if len(signals) == 1 and low.drafts[condition].random and not low.drafts[condition].given:
        low.elementwise(at, Op.DROPOUT, [_before_dropout(low, signals[0], _share(low, condition, kept))])
    elif len(signals) == 1:
        low.elementwise(at, Op.MASK, [signals[0], condition])
    else:
        low.elementwise(at, Op.UPDATE, [*cases[::-1], condition])


def _before_dropout(low: Low, value: int, share: float | None) -> int:
    """What was divided by the share that a dropout keeps: on average nothing is scaled."""
    producer = low.drafts[value].producer
    if share is None or producer < 0 or low.nodes[producer].op not in (Op.DIV, Op.MUL):
        return value
    node = low.nodes[producer]
    by = low.uniform(node.inputs[1])
    if by is None or low.shape(node.inputs[0]) != low.shape(value):
        return value
    return node.inputs[0] if np.isclose(by if node.op is Op.DIV else 1 / (by or np.inf), share, rtol=1e-3) else value


def _share(low: Low, condition: int, kept: Mapping[str, bool]) -> float | None:
    """The share that uniform draws leave on: those below a share, or at or above a rate."""
    for _ in range(4):
        producer = low.drafts[condition].producer
        if producer < 0:
            return None
        node = low.nodes[producer]
        if node.label in kept:
            bound = low.uniform(node.inputs[1])
            return bound if bound is None or kept[node.label] else 1 - bound
        condition = node.inputs[0]
    return None
