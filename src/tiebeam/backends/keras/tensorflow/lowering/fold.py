"""Numbers that a program computes from numbers alone: sizes, indices and constants."""

from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from tiebeam.backends.graphs.building import TINY
from tiebeam.backends.graphs.rules import hoisted

if TYPE_CHECKING:
    from tiebeam.backends.keras.tensorflow.lowering.lower import Lowering, Step

Compute = Callable[..., Any]

#: On each element alone, whatever the shape. What NumPy does to the bit alike is left to it: nothing is launched.
ELEMENTWISE: dict[str, Compute] = {
    **dict.fromkeys(("Add", "AddV2"), np.add),
    "Sub": np.subtract,
    "Mul": np.multiply,
    "RealDiv": np.divide,
    "FloorDiv": np.floor_divide,
    "FloorMod": np.mod,
    "Neg": np.negative,
    "Maximum": np.maximum,
    "Minimum": np.minimum,
    "Abs": np.abs,
    "Sign": np.sign,
    "Floor": np.floor,
    "Ceil": np.ceil,
    "Square": np.square,
    "Sqrt": np.sqrt,
    "Rsqrt": tf.math.rsqrt,
    **dict.fromkeys(("Reciprocal", "Inv"), tf.math.reciprocal),
    "Pow": tf.pow,
    "Exp": tf.exp,
    "Expm1": tf.math.expm1,
    "Log": tf.math.log,
    "Log1p": tf.math.log1p,
    "Tanh": tf.tanh,
    "Sigmoid": tf.sigmoid,
    "Softplus": tf.math.softplus,
    "Less": np.less,
    "LessEqual": np.less_equal,
    "Greater": np.greater,
    "GreaterEqual": np.greater_equal,
    "Equal": np.equal,
    "NotEqual": np.not_equal,
    "LogicalAnd": np.logical_and,
    "LogicalOr": np.logical_or,
    "LogicalNot": np.logical_not,
    "SelectV2": np.where,
    **dict.fromkeys(("Cast", "Identity", "Snapshot", "StopGradient", "EnsureShape"), lambda a: a),  # see `_rounded`
}
REDUCTIONS: dict[str, Compute] = {
    "Sum": np.sum, "Prod": np.prod, "Max": np.max, "Min": np.min, "Mean": np.mean, "All": np.all, "Any": np.any
}  # fmt: skip
SHAPED: dict[str, Compute] = {
    "ConcatV2": lambda *parts: np.concatenate(parts[:-1], int(parts[-1])),
    "Range": lambda start, limit, delta: np.arange(start, limit, delta),
    "GatherV2": lambda a, index, axis: np.take(a, index, int(axis)),
    "Transpose": lambda a, order: np.transpose(a, order),
}
SIZES: dict[str, Compute] = {"Shape": lambda s: s, "Size": prod, "Rank": len}


def fold(low: "Lowering", at: "Step") -> None:
    """Settle what is computed from known numbers alone."""
    if at.name == "Const":
        if 0 < prod(low.shape(at.outputs[0])) <= TINY:
            low.settle(at.outputs[0], tf.make_ndarray(at.attr("value")))
        return
    if len(at.outputs) != 1 or not at.inputs or min(*at.inputs, *at.outputs) < 0:
        return
    out = at.outputs[0]
    if at.name in SIZES and at.operation.inputs[0].shape.is_fully_defined():
        low.drafts[out].given = False  # a size of what came in is a number of the program: see `inputs.shorter`
        low.settle(out, _rounded(low, out, SIZES[at.name](low.shape(at.inputs[0]))))
        return
    operands = [low.known(v) for v in at.inputs]
    small = 0 < prod(low.shape(out)) <= TINY
    if small and not low.drafts[out].varying and not any(c is None for c in operands):
        found = computed(at, operands, low.shape(out))
        if found is not None:
            low.settle(out, _rounded(low, out, found))


def _rounded(low: "Lowering", value: int, found: Any) -> Any:
    with np.errstate(all="ignore"):
        return np.asarray(found).astype(tf.as_dtype(low.drafts[value].dtype).as_numpy_dtype)


def computed(at: "Step", operands: Sequence[Any], shape: tuple[int, ...]) -> Any:
    """What an operation makes of known operands, or None where no table says."""
    if any(np.asarray(c).dtype.kind in "SUO" for c in operands):
        return None
    with np.errstate(all="ignore"):
        if at.name in ELEMENTWISE:
            return ELEMENTWISE[at.name](*operands)
        if at.name in REDUCTIONS:
            axes = tuple(int(a) for a in np.reshape(operands[1], -1))
            return np.reshape(REDUCTIONS[at.name](operands[0], axis=axes), shape)
        if at.name in SHAPED:
            return SHAPED[at.name](*operands)
        if at.name == "Pack":
            return np.stack(operands, at.attr("axis"))
        if at.name in ("Reshape", "ExpandDims", "Squeeze"):
            return np.reshape(operands[0], shape)
        if at.name == "Fill":
            return np.full(shape, operands[1])
        if at.name == "StridedSlice":
            return _strided(at, operands)
    return None


def _strided(at: "Step", operands: Sequence[Any]) -> Any:
    array, begin, end, strides = operands
    masks = {n: at.attr(f"{n}_mask") for n in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")}

    def entry(i: int) -> Any:
        on = {n for n, bits in masks.items() if bits >> i & 1}
        if "ellipsis" in on:
            return Ellipsis
        if "new_axis" in on:
            return None
        if "shrink_axis" in on:
            return int(begin[i])
        return slice(None if "begin" in on else int(begin[i]), None if "end" in on else int(end[i]), int(strides[i]))

    return array[tuple(entry(i) for i in range(len(begin)))]


def hoist(low: "Lowering", at: "Step") -> bool:
    """Whether an operation was on numbers that were spread out, and is shown as one on the numbers."""

    def compute(operands: list[Any]) -> Any:
        return _rounded(low, at.outputs[0], computed(at, operands, ()))

    return at.name in ELEMENTWISE and hoisted(low, at, compute)
