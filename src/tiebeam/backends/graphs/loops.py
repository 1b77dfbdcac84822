"""What a loop carries from round to round."""

from collections.abc import Collection, Sequence
from typing import Any

from tiebeam.backends.graphs.building import Building
from tiebeam.ir import Node, Op

DEPTH = 32  # operations of a loop's body looked at behind its carry
SHORT = 4  # and behind a constant in it
UNKNOWN_POWER = "a loop that multiplies what it carries"
"""Label of the node that such a factor comes from: its exponent is a number of rounds that is not known."""

_KEEP = (Op.LAYOUT, Op.CAST, Op.DROPOUT, Op.MASK)
_SCALES = (Op.MUL, Op.DIV, Op.ADD, Op.SUB)


def rescaled(
    low: Building[Any, Any],
    value: int,
    carries: Sequence[int],
    results: Sequence[int],
    fixed: Collection[int] = (),
) -> bool:
    """Whether the value is one of the carries, multiplied by or added to something that is the same in every round.

    A carry that comes out as it went in is the same in every round: what is made of it is no power.

    Args:
        carries: What goes into a round.
        results: What it carries on, one for each of them.
        fixed: What each round reads as it stands outside of the loop.
    """
    if not low.drafts[value].varying:  # a counter
        return False
    changing = {c for c, r in zip(carries, results, strict=True) if c != r}
    same = {*fixed, *carries} - changing
    scaled = False
    for _ in range(DEPTH):
        if value in carries:
            return scaled and value in changing
        producer = low.drafts[value].producer
        if producer < 0:
            return False
        node = low.nodes[producer]
        moving = _moving(low, node, changing)
        if len(moving) == 2 and node.op in (Op.ADD, Op.SUB):
            moving = {v for v in moving if not _scaled_of(low, v, same, changing)}
        if node.op not in (*_KEEP, *_SCALES) or len(moving) != 1:
            return False
        scaled |= node.op in _SCALES
        [value] = moving
    return False


def shifted(low: Building[Any, Any], carries: Sequence[int], results: Sequence[int]) -> dict[int, int]:
    """What a round hands on in one place of what came to it in another: each round has it somewhere else.

    Returns:
        For each such result, what the round puts where it came in.
    """
    made = {c: r for c, r in zip(carries, results, strict=True) if c != r}
    given = {c for c, r in made.items() if low.drafts[c].given or (r >= 0 and low.drafts[r].given)}
    sources = {r: _behind(low, r, made) for r in made.values() if r >= 0}
    return {r: made[sources[r]] for c, r in made.items() if r in sources and sources[r] in given - {c}}


def _behind(low: Building[Any, Any], value: int, carries: Collection[int]) -> int:
    """What a value is a copy of, as far as a carry."""
    while value not in carries and (producer := low.drafts[value].producer) >= 0 and low.nodes[producer].op is Op.CAST:
        [value] = low.nodes[producer].inputs
    return value


def _scaled_of(low: Building[Any, Any], value: int, sources: Collection[int], other: Collection[int]) -> bool:
    """Whether the value is one of the sources, and not of the others, rearranged or scaled at most."""
    for _ in range(DEPTH):
        if value in sources or value in other:
            return value not in other
        producer = low.drafts[value].producer
        if producer < 0 or low.nodes[producer].op not in (*_KEEP, *_SCALES):
            return False
        moving = _moving(low, low.nodes[producer], other)
        if len(moving) != 1:
            return False
        [value] = moving
    return False


def _moving(low: Building[Any, Any], node: Node, changing: Collection[int]) -> set[int]:
    """Operands that inputs reached, or earlier rounds: a sum that a loop fills is empty at first."""
    return {v for v in node.inputs if low.drafts[v].varying or _reached(low, v, changing, SHORT)}


def _reached(low: Building[Any, Any], value: int, changing: Collection[int], depth: int) -> bool:
    """Whether a value that no input reached is one of a loop's carries, rearranged or scaled at most."""
    producer = low.drafts[value].producer
    if value in changing or producer < 0 or depth == 0 or low.nodes[producer].op not in (*_KEEP, *_SCALES):
        return value in changing
    return any(_reached(low, v, changing, depth - 1) for v in low.nodes[producer].inputs)
