"""Primitives in core's words: one table from names to small rules.

Most primitives say in their parameters what becomes of each axis. What stands in no table is `Op.OPAQUE`
and foreign: its body is unknown.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from tiebeam.backends.graphs.axes import identity, regrouped, with_new, without
from tiebeam.backends.graphs.rules import arithmetic, bits_read_anew, bounded, chosen, negated, spread_from_one
from tiebeam.backends.jax.lowering.axes import spread
from tiebeam.backends.jax.lowering.indexing import dynamic_slice, gather
from tiebeam.backends.jax.lowering.lower import Equation, Lowering
from tiebeam.ir import Axes, Op, Origin

Rule = Callable[[Lowering, Equation], Any]

#: f(t*x) = t**degree * f(x) for t > 0.
DEGREES = {"abs": 1.0, "sqrt": 0.5, "rsqrt": -0.5, "cbrt": 1 / 3, "sign": 0.0, "square": 2.0}
POINTWISE = frozenset(
    "exp exp2 expm1 log log1p sin cos tan asin acos atan sinh cosh asinh acosh atanh atan2 erf erfc erf_inv lgamma "
    "digamma floor ceil round is_finite not and or xor eq ne lt le gt ge rem nextafter shift_left "
    "shift_right_logical shift_right_arithmetic population_count clz clamp real imag conj complex "
    "eq_to lt_to le_to regularized_incomplete_beta igamma igammac polygamma bessel_i0e".split()
)
SAME = frozenset(
    "convert_element_type copy copy_p reduce_precision sharding_constraint mesh_cast reshard optimization_barrier "
    "device_put pvary pcast layout_constraint name "
    "pbroadcast preduced unreduced_psum reduced_vary_cast_p vary_unreduced_cast_p".split()
)
RANDOM = frozenset(
    "random_bits random_seed random_wrap random_unwrap random_fold_in random_split random_clone threefry2x32 "
    "rng_bit_generator rng_uniform random_gamma".split()
)
REDUCTIONS = {"reduce_sum": 1.0, "reduce_max": 1.0, "reduce_min": 1.0, "argmax": 0.0, "argmin": 0.0,
              "reduce_prod": None, "reduce_and": None, "reduce_or": None, "reduce_xor": None}  # fmt: skip
#: Whether a dropout by this comparison keeps the draws below its bound.
KEPT = {"lt": True, "le": True}
#: Known not to carry a factor on; nothing to remark.
BARRIERS = frozenset(
    "cumsum cumprod cummax cummin cumlogsumexp sort top_k approx_top_k conv_general_dilated reduce_window "
    "reduce_window_max reduce_window_sum ragged_dot ragged_dot_general fft cholesky triangular_solve lu qr eigh svd "
    "reduce reduce_window_min symmetric_product all_to_all ppermute pmax pmin".split()
)


def lower_equation(low: Lowering, at: Equation) -> None:
    """Append the node of one equation."""
    name = at.name
    if name in RULES:
        RULES[name](low, at)
    elif name in POINTWISE or name in DEGREES:
        low.elementwise(at, Op.POINTWISE, at.inputs, degree=DEGREES.get(name))
    elif name in SAME:
        _same(low, at)
    elif name in RANDOM:
        _random(low, at)
    elif name in REDUCTIONS:
        _reduce(low, at)
    else:
        low.opaque(at, foreign=name not in BARRIERS)


def _same(low: Lowering, at: Equation) -> None:
    for v, out in zip(at.inputs, at.outputs, strict=True):
        low.emit(at, Op.CAST, [v], [identity(low.rank(out))], [out])


def _random(low: Lowering, at: Equation) -> None:
    for out in at.outputs:
        low.drafts[out].origin, low.drafts[out].random = Origin.RANDOM, True


def _made(low: Lowering, at: Equation) -> None:
    low.drafts[at.outputs[0]].origin = Origin.CONSTANT


def _axis_index(low: Lowering, at: Equation) -> None:
    _made(low, at)
    names = at.params["axis_name"]
    low.drafts[at.outputs[0]].apart = frozenset(names if isinstance(names, tuple) else (names,))


def _psum(low: Lowering, at: Equation) -> None:
    """The sum over devices puts parts together; of what all of them hold alike it is a multiple."""
    groups = at.params.get("axis_index_groups")
    for v, out in zip(at.inputs, at.outputs, strict=True):
        alike = [low.mesh.get(a, 1) for a in at.params["axes"] if a not in low.drafts[v].apart]
        times = int(np.prod(alike)) if groups is None or not alike else len(groups[0])
        rank = low.rank(out)
        if times == 1:
            low.emit(at, Op.CAST, [v], [identity(rank)], [out])
        else:
            by = low.number(float(times), low.drafts[out].dtype)
            low.emit(at, Op.MUL, [v, by], [identity(rank), (-1,) * rank], [out])
        if groups is None:
            low.drafts[out].apart -= frozenset(at.params["axes"])


def _scattered(low: Lowering, at: Equation) -> None:
    """Every device gets a part of its own."""
    names = at.params["axis_name"]
    low.opaque(at)
    for out in at.outputs:
        low.drafts[out].apart |= frozenset(names if isinstance(names, tuple) else (names,))


def _stop_gradient(low: Lowering, at: Equation) -> None:
    for v, out in zip(at.inputs, at.outputs, strict=True):
        low.emit(at, Op.CAST, [v], [identity(low.rank(out))], [out], attached=(False,))


def _power(low: Lowering, at: Equation) -> None:
    exponent = at.params["y"] if at.name == "integer_pow" else low.drafts[at.inputs[1]].number
    if exponent is None:
        low.elementwise(at, Op.POINTWISE, at.inputs)
    else:
        low.elementwise(at, Op.POINTWISE, at.inputs[:1], degree=float(exponent))


def _transpose(low: Lowering, at: Equation) -> None:
    low.emit(at, Op.LAYOUT, at.inputs, [tuple(at.params["permutation"])])


def _reshape(low: Lowering, at: Equation) -> None:
    if spread_from_one(low, at):
        return
    low.emit(at, Op.LAYOUT, at.inputs[:1], [regrouped(low.shape(at.inputs[0]), low.shape(at.outputs[0]))])


def _broadcast(low: Lowering, at: Equation) -> None:
    if spread_from_one(low, at):
        return
    source, out = low.shape(at.inputs[0]), low.shape(at.outputs[0])
    low.emit(at, Op.LAYOUT, at.inputs[:1], [spread(source, out, at.params["broadcast_dimensions"])])


def _squeeze(low: Lowering, at: Equation) -> None:
    low.emit(at, Op.LAYOUT, at.inputs, [without(low.rank(at.inputs[0]), at.params["dimensions"])])


def _same_axes(op: Op) -> Rule:
    def rule(low: Lowering, at: Equation) -> None:
        for out in at.outputs:
            low.emit(at, op, at.inputs[:1], [identity(low.rank(out))], [out])

    return rule


def _stack(low: Lowering, at: Equation) -> None:
    new, rank = at.params["axis"], low.rank(at.outputs[0])
    low.emit(at, Op.CONCAT, at.inputs, [with_new(rank, new)] * len(at.inputs), axis=new)


def _unstack(low: Lowering, at: Equation) -> None:
    gone, rank = at.params["axis"], low.rank(at.inputs[0])
    for out in at.outputs:
        low.emit(at, Op.LAYOUT, at.inputs, [without(rank, [gone])], [out])


def _tile(low: Lowering, at: Equation) -> None:
    axes = tuple(i if n == 1 else -1 for i, n in enumerate(at.params["reps"]))
    low.emit(at, Op.LAYOUT, at.inputs, [axes])


def _concatenate(low: Lowering, at: Equation) -> None:
    axes = identity(low.rank(at.outputs[0]))
    low.emit(at, Op.CONCAT, at.inputs, [axes] * len(at.inputs), axis=at.params["dimension"])


def _all_gather(low: Lowering, at: Equation) -> None:
    dim, rank = at.params["all_gather_dimension"], low.rank(at.outputs[0])
    tiled = at.params.get("tiled", False)
    low.emit(at, Op.LAYOUT, at.inputs[:1], [identity(rank) if tiled else with_new(rank, dim)])


def _select(low: Lowering, at: Equation) -> None:
    condition, *cases = at.inputs
    chosen(low, at, condition, cases, KEPT)


def _update(low: Lowering, at: Equation) -> None:
    operand, *rest = at.inputs
    if at.name.startswith("scatter"):
        rest = [rest[1], rest[0]]
    rank = low.rank(operand)
    axes: list[Axes | None] = [identity(rank), _placed(low, at, operand, rest[0])]
    if at.name in ("scatter-mul", "scatter_mul"):  # what is put in is made of what was there
        product = low.fresh(low.drafts[operand], [operand, rest[0]])
        low.emit(at, Op.MUL, [operand, rest[0]], axes, [product])
        rest[0], axes[1] = product, identity(rank)
    low.emit(at, Op.UPDATE, [operand, *rest], [*axes, *[None] * (len(rest) - 1)])


def _placed(low: Lowering, at: Equation, operand: int, update: int) -> Axes | None:
    """Axes of what is written, in what it is written into: those that it fills."""
    shape, given = low.shape(operand), low.shape(update)
    if at.name == "dynamic_update_slice":
        return identity(len(shape)) if len(given) == len(shape) else None
    numbers = at.params["dimension_numbers"]
    kept = [d for d in range(len(shape)) if d not in (*numbers.inserted_window_dims, *numbers.operand_batching_dims)]
    axes = [-1] * len(shape)
    for d, window in zip(kept, numbers.update_window_dims, strict=True):
        axes[d] = window if given[window] == shape[d] else -1
    return tuple(axes)


def _reduce(low: Lowering, at: Equation) -> None:
    axes = without(low.rank(at.inputs[0]), at.params["axes"])
    low.emit(at, Op.REDUCE, at.inputs[:1], [axes], degree=REDUCTIONS[at.name], sums=at.name == "reduce_sum")


def _dot(low: Lowering, at: Equation) -> None:
    (left, right), (left_batch, right_batch) = at.params["dimension_numbers"]
    a, b = (low.rank(v) for v in at.inputs[:2])
    free_a = [i for i in range(a) if i not in (*left, *left_batch)]
    free_b = [i for i in range(b) if i not in (*right, *right_batch)]
    axes_a = (*left_batch, *free_a, *(-1,) * len(free_b))
    axes_b = (*right_batch, *(-1,) * len(free_a), *free_b)
    # Without a sum it is a multiplication; and where one operand is one element, its sum has one term.
    summed = left and all(np.prod(low.shape(v), initial=1) != 1 for v in at.inputs[:2])
    low.emit(at, Op.DOT if summed else Op.MUL, at.inputs[:2], [axes_a, axes_b])


UPDATES = (
    "scatter scatter-add scatter_add scatter-sub scatter-mul scatter_mul scatter-max scatter_max scatter-min "
    "scatter_min".split()
)

RULES: dict[str, Rule] = {
    "add": arithmetic(Op.ADD),
    "bitcast_convert_type": bits_read_anew,
    "add_any": arithmetic(Op.ADD),
    "sub": arithmetic(Op.SUB),
    "mul": arithmetic(Op.MUL),
    "div": arithmetic(Op.DIV),
    "neg": negated,
    "integer_pow": _power,
    "pow": _power,
    "max": bounded,
    "min": bounded,
    "tanh": lambda low, at: low.elementwise(at, Op.TANH, at.inputs),
    "logistic": lambda low, at: low.elementwise(at, Op.SIGMOID, at.inputs),
    "stop_gradient": _stop_gradient,
    "transpose": _transpose,
    "reshape": _reshape,
    "broadcast_in_dim": _broadcast,
    "squeeze": _squeeze,
    "slice": _same_axes(Op.LAYOUT),
    "split": _same_axes(Op.LAYOUT),
    "rev": _same_axes(Op.LAYOUT),
    "pad": _same_axes(Op.MASK),
    "concatenate": _concatenate,
    "stack": _stack,
    "unstack": _unstack,
    "tile": _tile,
    **dict.fromkeys(("all_gather", "all_gather_invariant", "all_gather_reduced"), _all_gather),
    "select_n": _select,
    **dict.fromkeys([*UPDATES, "dynamic_update_slice"], _update),
    "dot_general": _dot,
    "gather": gather,
    "dynamic_slice": dynamic_slice,
    **dict.fromkeys(("psum", "psum2", "psum_invariant"), _psum),
    "axis_index": _axis_index,
    "reduce_scatter": _scattered,
    **dict.fromkeys(("iota", "platform_index", "empty", "zeros_like"), _made),
}
