"""Where values come from: from an input, through integers alone, from a leaf."""

from collections.abc import Sequence

from tiebeam.ir import Graph, Node, Op, Origin

INPUT = 1  # an input of the model reached it
INTS = 2  # ... through integer operations alone (a mask, a position, a one-hot matrix)
IDS = 4  # ... and it still is a token id, moved or shifted, no comparison or count
LEAF = 8  # a parameter or buffer reached it
RANDOM = 16  # a random draw reached it
MASK = 32  # INTS, and never counted or added up: it can switch elements on and off
PATTERN = 128  # no input, parameter or draw reached it, and it was made by a comparison: an identity matrix
RAW = 64  # an input as it came, floats too, moved at most: made integers it is what the caller wrote, ids as floats

HALF = ("bfloat16", "float16")
_GIVEN = INPUT | LEAF

_MOVES = (Op.LAYOUT, Op.CAST, Op.MASK, Op.UPDATE, Op.CONCAT, Op.DROPOUT)
_ARITHMETIC = (Op.ADD, Op.SUB, Op.MUL, Op.POINTWISE, Op.GATHER)
_SWITCHES = (*_MOVES, Op.MUL, Op.SUB, Op.ADD)


def provenance(graph: Graph) -> list[int]:
    """Flags of every value, in one pass over the nodes."""
    flags = [0] * len(graph.values)
    for value in graph.values:
        if value.origin is Origin.INPUT:
            flags[value.id] = INPUT | RAW | (INTS | IDS | MASK if value.integral else 0)
        elif value.origin is Origin.LEAF:
            flags[value.id] = LEAF
        elif value.origin is Origin.RANDOM:
            flags[value.id] = RANDOM
    for node in graph.nodes:
        read = [flags[v] for v in node.inputs]
        out = 0
        for f in read:
            out |= f & (INPUT | LEAF | RANDOM)
        if out & INPUT:
            out |= _of_inputs(graph, node, read)
        elif not out and _is_pattern(graph, node, read):
            out = PATTERN
        for v in node.outputs:
            flags[v] = out if v == node.output else out & ~IDS  # beside chosen ids: where they stood
    return flags


def coarsest(graph: Graph, table: int, end: int | None = None, *, constants: bool = True) -> str | None:
    """The coarsest float that something on the way is rounded to; None where all are float64.

    Many programs cast in their norms, and those of mixed precision everywhere. Half precision counts where it is
    between the table and the loss: masks, rotations and what is returned beside are the same however the table moves.

    Args:
        table: Key of the leaf that is moved.
        end: What the loss is taken of; None where it may be all that is returned.
        constants: Whether float32 counts where no input and no parameter is seen to have reached it.
    """
    flags = provenance(graph)
    between = _between(graph, table, graph.outputs if end is None else (end,))
    made = {
        graph.values[v].dtype
        for n in graph.nodes
        if graph.live[n.index]
        for v in n.outputs
        if (between[v] and not flags[v] & INTS if graph.values[v].dtype in HALF else constants or flags[v] & _GIVEN)
    }
    return next((dtype for dtype in (*HALF, "float32") if dtype in made), None)


def _between(graph: Graph, leaf: int, ends: Sequence[int]) -> list[bool]:
    """For each value whether it was computed from a leaf, and an end from it."""
    moves = [v.leaf is not None and v.leaf.key == leaf for v in graph.values]
    for node in graph.nodes:
        if any(moves[v] for v in node.inputs):
            for v in node.outputs:
                moves[v] = True
    matters = [False] * len(graph.values)
    for v in ends:
        matters[v] = True
    for node in reversed(graph.nodes):
        if any(matters[v] for v in node.outputs):
            for v in node.inputs:
                matters[v] = True
    return [a and b for a, b in zip(moves, matters, strict=True)]


def _of_inputs(graph: Graph, node: Node, read: list[int]) -> int:
    out = _integers(graph, node, read)
    if node.op in (Op.LAYOUT, Op.CAST) and read[0] & RAW:
        out |= RAW | (INTS | IDS | MASK if graph.values[node.output].integral else 0)
    if node.op is Op.GATHER and read[0] & PATTERN and read[1] & IDS:
        out |= INTS | MASK  # rows of an identity matrix are one-hot
    return out


def _is_pattern(graph: Graph, node: Node, read: list[int]) -> bool:
    """Whether a node compares what depends on nothing, or passes such a comparison on as it is or times a number."""
    if node.op is Op.POINTWISE and graph.values[node.output].dtype == "bool":
        return True
    whole = [f for v, f in zip(node.inputs, read, strict=True) if graph.values[v].size > 1]
    return (node.op in _MOVES or node.op in (Op.MUL, Op.DIV)) and bool(whole) and all(f & PATTERN for f in whole)


def _integers(graph: Graph, node: Node, read: list[int]) -> int:
    reached = [f for f in read if f & INPUT]
    if not all(f & INTS for f in reached):
        return 0
    out = graph.values[node.output]
    by_numbers = node.op is Op.DIV and not read[1] & INPUT
    switches = by_numbers or node.op in _SWITCHES
    masks = MASK if out.dtype == "bool" or (switches and all(f & MASK for f in reached)) else 0
    if not out.integral and node.op not in _MOVES:
        # Arithmetic on a mask with numbers leaves it a mask; with weights or positions it is a float signal.
        plain = by_numbers or node.op in (Op.MUL, Op.SUB, Op.ADD, Op.REDUCE)
        return INTS | masks if plain and all(f & INPUT or not f & LEAF for f in read) else 0
    chosen = node.op is Op.REDUCE and not node.sums and node.degree == 1.0  # the largest, the median: one of them
    keeps = node.op in _MOVES or ((node.op in _ARITHMETIC or chosen) and out.integral)
    if node.op in (Op.MUL, Op.SUB) and not all(f & (IDS | MASK) for f in reached):
        keeps = False  # a count times a mask is a position, whatever integers the mask came as
    if keeps and out.dtype != "bool" and any(f & IDS for f in reached):
        return INTS | IDS | masks
    return INTS | masks
