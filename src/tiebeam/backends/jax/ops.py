"""Primitives in core's words: one table from names to small rules.

Most primitives say in their parameters what becomes of each axis. What stands in no table is `Op.OPAQUE`
and foreign: its body is unknown.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from tiebeam.backends.jax.axes import identity, regrouped, spread
from tiebeam.backends.jax.indexing import dynamic_slice, gather
from tiebeam.backends.jax.lower import Equation, Lowering
from tiebeam.core.norms import SMALL
from tiebeam.ir import Axes, Op, Origin

Rule = Callable[[Lowering, Equation], Any]

#: f(t*x) = t**degree * f(x) for t > 0.
DEGREES = {"abs": 1.0, "sqrt": 0.5, "rsqrt": -0.5, "cbrt": 1 / 3, "sign": 0.0, "square": 2.0}
POINTWISE = frozenset(
    "exp exp2 expm1 log log1p sin cos tan asin acos atan sinh cosh asinh acosh atanh atan2 erf erfc erf_inv lgamma "
    "digamma floor ceil round is_finite not and or xor eq ne lt le gt ge rem nextafter shift_left "
    "shift_right_logical shift_right_arithmetic population_count clz clamp real imag conj complex "
    "bitcast_convert_type eq_to lt_to le_to regularized_incomplete_beta igamma igammac polygamma bessel_i0e".split()
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
        low.emit(at, Op.CAST, [v], [identity(len(low.shape(out)))], [out])


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
        rank = len(low.shape(out))
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
        low.emit(at, Op.CAST, [v], [identity(len(low.shape(out)))], [out], attached=(False,))


def _arithmetic(op: Op) -> Rule:
    def rule(low: Lowering, at: Equation) -> None:
        a, b = at.inputs
        if op is Op.MUL and a == b:
            low.elementwise(at, Op.POINTWISE, [a], degree=2.0, label="square")
        elif op is Op.SUB and low.uniform(b) == 0.0 and low.shape(a) == low.shape(at.outputs[0]):
            low.elementwise(at, Op.CAST, [a])  # a norm that has a mean to subtract, and subtracts none
        else:
            low.elementwise(at, op, at.inputs)

    return rule


def _neg(low: Lowering, at: Equation) -> None:
    low.elementwise(at, Op.MUL, [at.inputs[0], low.number(-1.0, low.drafts[at.inputs[0]].dtype)])


def _power(low: Lowering, at: Equation) -> None:
    exponent = at.params["y"] if at.name == "integer_pow" else low.drafts[at.inputs[1]].number
    if exponent is None:
        low.elementwise(at, Op.POINTWISE, at.inputs)
    else:
        low.elementwise(at, Op.POINTWISE, at.inputs[:1], degree=float(exponent))


def _bounded(low: Lowering, at: Equation) -> None:
    """`max` and `min` with 0 or an epsilon keep the degree; with another number they do not."""
    numbers = [n for v in at.inputs if (n := low.uniform(v)) is not None]
    keeps = all(abs(n) <= SMALL or n == -np.inf for n in numbers)
    low.elementwise(at, Op.POINTWISE, at.inputs, degree=1.0 if keeps else None)


def _transpose(low: Lowering, at: Equation) -> None:
    low.emit(at, Op.LAYOUT, at.inputs, [tuple(at.params["permutation"])])


def _of_scalar(low: Lowering, at: Equation) -> bool:
    """Whether one element was spread out, in however many steps: then it is shown as one step."""
    source, out = low.scalar_behind(at.inputs[0]), low.shape(at.outputs[0])
    if source is None or source == at.inputs[0]:
        return False
    low.emit(at, Op.LAYOUT, [source], [(-1,) * len(out)])
    return True


def _reshape(low: Lowering, at: Equation) -> None:
    if _of_scalar(low, at):
        return
    low.emit(at, Op.LAYOUT, at.inputs[:1], [regrouped(low.shape(at.inputs[0]), low.shape(at.outputs[0]))])


def _broadcast(low: Lowering, at: Equation) -> None:
    if _of_scalar(low, at):
        return
    source, out = low.shape(at.inputs[0]), low.shape(at.outputs[0])
    low.emit(at, Op.LAYOUT, at.inputs[:1], [spread(source, out, at.params["broadcast_dimensions"])])


def _squeeze(low: Lowering, at: Equation) -> None:
    gone = {d % len(low.shape(at.inputs[0])) for d in at.params["dimensions"]}
    low.emit(at, Op.LAYOUT, at.inputs, [tuple(i for i in range(len(low.shape(at.inputs[0]))) if i not in gone)])


def _same_axes(op: Op) -> Rule:
    def rule(low: Lowering, at: Equation) -> None:
        for out in at.outputs:
            low.emit(at, op, at.inputs[:1], [identity(len(low.shape(out)))], [out])

    return rule


def _stack(low: Lowering, at: Equation) -> None:
    new, rank = at.params["axis"], len(low.shape(at.outputs[0]))
    axes = tuple(i if i < new else i - 1 if i > new else -1 for i in range(rank))
    low.emit(at, Op.CONCAT, at.inputs, [axes] * len(at.inputs), axis=new)


def _unstack(low: Lowering, at: Equation) -> None:
    gone, rank = at.params["axis"], len(low.shape(at.inputs[0]))
    for out in at.outputs:
        low.emit(at, Op.LAYOUT, at.inputs, [tuple(i for i in range(rank) if i != gone)], [out])


def _tile(low: Lowering, at: Equation) -> None:
    axes = tuple(i if n == 1 else -1 for i, n in enumerate(at.params["reps"]))
    low.emit(at, Op.LAYOUT, at.inputs, [axes])


def _concatenate(low: Lowering, at: Equation) -> None:
    axes = identity(len(low.shape(at.outputs[0])))
    low.emit(at, Op.CONCAT, at.inputs, [axes] * len(at.inputs), axis=at.params["dimension"])


def _all_gather(low: Lowering, at: Equation) -> None:
    dim, rank = at.params["all_gather_dimension"], len(low.shape(at.outputs[0]))
    tiled = at.params.get("tiled", False)
    axes = identity(rank) if tiled else tuple(i if i < dim else i - 1 if i > dim else -1 for i in range(rank))
    low.emit(at, Op.LAYOUT, at.inputs[:1], [axes])


def _select(low: Lowering, at: Equation) -> None:
    """A choice between a signal and a constant masks the signal; between two signals one updates the other."""
    condition, *cases = at.inputs
    signals = [v for v in cases if low.drafts[v].varying or (low.drafts[v].leafy and low.uniform(v) is None)]
    if len(signals) == 1 and low.drafts[condition].random and not low.drafts[condition].given:
        low.elementwise(at, Op.DROPOUT, [_before_dropout(low, signals[0], condition)])
    elif len(signals) == 1:
        low.elementwise(at, Op.MASK, [signals[0], condition])
    else:
        low.elementwise(at, Op.UPDATE, [*cases[::-1], condition])


def _before_dropout(low: Lowering, value: int, condition: int) -> int:
    """What was divided by the share that a dropout keeps: on average nothing is scaled."""
    share = _share(low, condition)
    producer = low.drafts[value].producer
    if share is None or producer < 0 or low.nodes[producer].op not in (Op.DIV, Op.MUL):
        return value
    node = low.nodes[producer]
    by = low.uniform(node.inputs[1])
    if by is None or low.shape(node.inputs[0]) != low.shape(value):
        return value
    return node.inputs[0] if np.isclose(by if node.op is Op.DIV else 1 / (by or np.inf), share, rtol=1e-3) else value


def _share(low: Lowering, condition: int) -> float | None:
    """The number that uniform draws were compared with."""
    for _ in range(4):
        producer = low.drafts[condition].producer
        if producer < 0:
            return None
        node = low.nodes[producer]
        if node.label in ("lt", "le"):
            return low.uniform(node.inputs[1])
        condition = node.inputs[0]
    return None


def _update(low: Lowering, at: Equation) -> None:
    operand, *rest = at.inputs
    if at.name.startswith("scatter"):
        rest = [rest[1], rest[0]]
    rank = len(low.shape(operand))
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
    rank, gone = len(low.shape(at.inputs[0])), set(at.params["axes"])
    axes = tuple(i for i in range(rank) if i not in gone)
    low.emit(at, Op.REDUCE, at.inputs[:1], [axes], degree=REDUCTIONS[at.name], sums=at.name == "reduce_sum")


def _dot(low: Lowering, at: Equation) -> None:
    (left, right), (left_batch, right_batch) = at.params["dimension_numbers"]
    a, b = (len(low.shape(v)) for v in at.inputs[:2])
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
    "add": _arithmetic(Op.ADD),
    "add_any": _arithmetic(Op.ADD),
    "sub": _arithmetic(Op.SUB),
    "mul": _arithmetic(Op.MUL),
    "div": _arithmetic(Op.DIV),
    "neg": _neg,
    "integer_pow": _power,
    "pow": _power,
    "max": _bounded,
    "min": _bounded,
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
