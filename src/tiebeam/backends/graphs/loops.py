"""What a loop carries from round to round."""

from collections.abc import Sequence
from typing import Any

from tiebeam.backends.graphs.building import Building
from tiebeam.ir import Op

DEPTH = 32  # operations of a loop's body looked at behind its carry
UNKNOWN_POWER = "a loop that multiplies what it carries"
"""Label of the node that such a factor comes from: its exponent is a number of rounds that is not known."""

_KEEP = (Op.LAYOUT, Op.CAST, Op.DROPOUT, Op.MASK)
_SCALES = (Op.MUL, Op.DIV, Op.ADD, Op.SUB)


def rescaled(low: Building[Any, Any], value: int, carries: Sequence[int], results: Sequence[int]) -> bool:
    """Whether the value is one of the carries, multiplied by or added to something constant.

    A carry that comes out as it went in is the same in every round: what is made of it is no power.

    Args:
        carries: What goes into a round.
        results: What it carries on, one for each of them.
    """
    changing = {c for c, r in zip(carries, results, strict=True) if c != r}
    scaled = False
    for _ in range(DEPTH):
        if value in carries:
            return scaled and value in changing
        producer = low.drafts[value].producer
        if producer < 0:
            return False
        node = low.nodes[producer]
        moving = [v for v in node.inputs if low.drafts[v].varying]
        if node.op not in (*_KEEP, *_SCALES) or len(set(moving)) != 1:
            return False
        scaled |= node.op in _SCALES
        value = moving[0]
    return False
