"""ATen in core's words: one table from operation names to small rules.

Elementwise operations need no entry: ATen tags them. What is neither here nor tagged is `Op.OPAQUE`.
"""

from collections.abc import Callable
from typing import Any

import torch

from tiebeam.backends.torch.lowering import indexing, products
from tiebeam.backends.torch.lowering.barriers import opaque
from tiebeam.backends.torch.lowering.builder import Lowering, refs_of
from tiebeam.backends.torch.lowering.views import identity
from tiebeam.backends.torch.recording.record import MADE_FROM_NOTHING, Record, Ref
from tiebeam.ir import Axes, Op, Origin

Rule = Callable[[Lowering, Record], Any]

#: f(t*x) = t**degree * f(x) for t > 0.
DEGREES = {"abs": 1.0, "relu": 1.0, "leaky_relu": 1.0, "neg": 1.0, "sqrt": 0.5, "rsqrt": -0.5, "reciprocal": -1.0,
           "square": 2.0, "sign": 0.0, "clamp_min": 1.0, "maximum": 1.0}  # fmt: skip
REDUCTIONS = {"sum": 1.0, "mean": 1.0, "amax": 1.0, "amin": 1.0, "max": 1.0, "min": 1.0, "var": 2.0, "std": 1.0,
              "linalg_vector_norm": 1.0, "norm": 1.0, "var_mean": 2.0, "std_mean": 1.0, "logsumexp": None, "prod": None,
              "nansum": 1.0, "all": None, "any": None, "argmax": 0.0, "argmin": 0.0}  # fmt: skip
ELEMENTWISE_LOSSES = frozenset(
    "mse_loss binary_cross_entropy binary_cross_entropy_with_logits huber_loss smooth_l1_loss soft_margin_loss".split()
)
FILLED_WITH = {**dict.fromkeys(("ones", "new_ones", "ones_like"), 1.0),
               **dict.fromkeys(("zeros", "new_zeros", "zeros_like", "zero"), 0.0)}  # fmt: skip
FILL_ARGUMENT = {"full": 1, "full_like": 1, "fill": 1, "new_full": 2}
VIEWS = frozenset(
    "t transpose permute view _unsafe_view _reshape_alias expand slice select squeeze unsqueeze unbind split chunk "
    "split_with_sizes unsafe_split unsafe_split_with_sizes as_strided unfold narrow diagonal alias detach movedim "
    "swapaxes".split()
)
COPIES = frozenset("clone contiguous _to_copy lift_fresh_copy lift_fresh _conj_physical _foreach_copy copy".split())
REARRANGED = frozenset("flip roll upsample_nearest1d upsample_nearest2d upsample_nearest3d".split())
#: What a sharded tensor's owner does to its parts so that they are the whole again.
COLLECTIVES = frozenset(
    f"_c10d_functional.{op}"
    for op in ("all_reduce", "wait_tensor", "all_gather_into_tensor", "reduce_scatter_tensor", "_wrap_tensor_autograd")
)
MASKS = frozenset("tril triu constant_pad_nd".split())


def lower_record(low: Lowering, record: Record) -> None:
    """Append the nodes of one record."""
    name = record.schema.name
    if name in MADE_FROM_NOTHING and name not in RULES:
        at = FILL_ARGUMENT.get(name, len(record.args))
        low.filled(record.args[at] if at < len(record.args) else FILLED_WITH.get(name))
        return
    rule = RULES.get(name)
    if rule is not None:
        rule(low, record)
    elif name in VIEWS:
        _views(low, record)
    elif name in REDUCTIONS:
        _reduce(low, record)
    elif record.schema.pointwise and refs_of(record.args):
        low.elementwise(Op.POINTWISE, refs_of(record.args), degree=DEGREES.get(name))
        low.barrier(record.outputs[1:])
    else:
        opaque(low, record)


def _eye(low: Lowering, record: Record) -> None:
    """Row and column numbers compared, as other frameworks write it: its rows are one-hot."""
    out = record.outputs[0]
    low.drafts[out].origin = Origin.NODE
    equal = low.temporary(low.shape(out), out)
    low.drafts[equal].geometry = (0, low.shape(out), (), torch.bool)
    low.emit(Op.POINTWISE, [0.0], [None], [equal])
    low.elementwise(Op.CAST, [(equal, None)])


def _views(low: Lowering, record: Record) -> None:
    source = refs_of(record.args)[0]
    for out in record.outputs:
        low.view(source, out)


def _copy(low: Lowering, record: Record) -> None:
    refs = refs_of(record.args) or record.args[:1]  # a number, where each element is mapped by itself
    source = refs[-1] if record.schema.name == "copy" else refs[0]
    low.elementwise(Op.CAST, [source])


def _as_complex(low: Lowering, record: Record) -> None:
    """Pairs along the last axis as complex numbers, or back."""
    rank, source = len(low.shape(record.outputs[0])), refs_of(record.args)[0]
    back = rank > len(low.shape(source.value))
    low.emit(Op.LAYOUT, [source], [(*range(rank - 1), -1) if back else identity(rank)], record.outputs)


def _same_place(op: Op) -> Rule:
    def rule(low: Lowering, record: Record) -> None:
        source = refs_of(record.args)[0]
        out = record.outputs[0]
        rank = len(low.shape(out))
        low.emit(op, [source], [identity(rank)], [out])
        low.barrier(record.outputs[1:])

    return rule


def _repeat(low: Lowering, record: Record) -> None:
    source, repeats = record.args[0], record.args[1]
    shift = len(repeats) - len(low.shape(source.value))
    axes = tuple(i - shift if i >= shift and r == 1 else -1 for i, r in enumerate(repeats))
    low.emit(Op.LAYOUT, [source], [axes], record.outputs)


def _concat(low: Lowering, record: Record) -> None:
    parts = refs_of(record.args[0])
    rank = len(low.shape(record.outputs[0]))
    axis = record.args[1] if len(record.args) > 1 else record.kwargs.get("dim", 0)
    axis = axis % rank if rank else 0
    if record.schema.name == "stack":
        axes: Axes = tuple(i if i < axis else i - 1 if i > axis else -1 for i in range(rank))
    else:
        axes = identity(rank)
    parts = [p for p in parts if len(low.shape(p.value)) == len([a for a in axes if a >= 0])] or parts
    low.emit(Op.CONCAT, parts, [axes] * len(parts), record.outputs, axis=axis)


def _dropout(low: Lowering, record: Record) -> None:
    low.elementwise(Op.DROPOUT, [record.args[0]])
    low.barrier(record.outputs[1:])


def _masked_fill(low: Lowering, record: Record) -> None:
    low.elementwise(Op.MASK, [record.args[0], record.args[1]])


def _where(low: Lowering, record: Record) -> None:
    if len(record.args) < 3:
        opaque(low, record)
        return
    condition, a, b = record.args
    sizes = [0 if not isinstance(x, Ref) else _size(low, x.value) for x in (a, b)]
    if sizes[0] <= 1 or sizes[1] <= 1:
        kept = b if sizes[0] <= sizes[1] else a
        if isinstance(kept, Ref) and max(sizes) > 1:  # of two numbers both are needed: a mask of them scales
            low.elementwise(Op.MASK, [kept, condition])
            return
    low.elementwise(Op.UPDATE, [a, b, condition])


def _size(low: Lowering, value: int) -> int:
    n = 1
    for d in low.shape(value):
        n *= d
    return n


def _add(low: Lowering, record: Record) -> None:
    a, b = record.args[:2]
    alpha = record.args[2] if len(record.args) > 2 else record.kwargs.get("alpha", 1)
    if record.schema.name == "rsub":
        a, b = b, low.scaled(a, alpha) if isinstance(a, Ref) else a
    elif isinstance(b, Ref):
        b = low.scaled(b, alpha)
    else:
        b = float(b) * float(alpha)
    low.elementwise(Op.ADD if record.schema.name == "add" else Op.SUB, [a, b])


def _mul(low: Lowering, record: Record) -> None:
    a, b = record.args[:2]
    if isinstance(a, Ref) and isinstance(b, Ref) and a.value == b.value:
        low.elementwise(Op.POINTWISE, [a], degree=2.0, label="square")
    else:
        low.elementwise(Op.MUL, [a, b])


def _div(low: Lowering, record: Record) -> None:
    if record.kwargs.get("rounding_mode") is not None:
        low.elementwise(Op.POINTWISE, refs_of(record.args))
    else:
        low.elementwise(Op.DIV, list(record.args[:2]))


def _neg(low: Lowering, record: Record) -> None:
    low.elementwise(Op.MUL, [record.args[0], -1.0])


def _pow(low: Lowering, record: Record) -> None:
    base, exponent = record.args[:2]
    if isinstance(exponent, Ref):  # a tensor of one number
        exponent = low.drafts[exponent.value].number
    if isinstance(base, Ref) and exponent == 1:
        low.elementwise(Op.CAST, [base])
    elif isinstance(base, Ref) and exponent is not None:
        low.elementwise(Op.POINTWISE, [base], degree=float(exponent))
    else:
        low.elementwise(Op.POINTWISE, refs_of(record.args))


def _addcmul(low: Lowering, record: Record) -> None:
    total, a, b = record.args[:3]
    by = record.kwargs.get("value", 1)
    out = record.outputs[0]
    product = low.temporary(low.shape(out), out)
    op = Op.MUL if record.schema.name == "addcmul" else Op.DIV
    low.elementwise(op, [low.scaled(a, by), b], product)
    low.elementwise(Op.ADD, [total, (product, None)])


def _lerp(low: Lowering, record: Record) -> None:
    """`start * (1 - by) + end * by`: both are multiplied, and added."""
    start, end, by = record.args[:3]
    out = record.outputs[0]
    rest: Any = by
    if isinstance(by, Ref):
        rest = (low.temporary(low.shape(by.value), by.value), by.attached)
        low.elementwise(Op.SUB, [1.0, by], rest[0])
        draft = low.drafts[by.value]
        low.drafts[rest[0]].number = None if draft.number is None else 1.0 - draft.number
        low.drafts[rest[0]].lost = draft.lost
    else:
        rest = 1.0 - by
    terms = [low.temporary(low.shape(out), out) for _ in (start, end)]
    low.elementwise(Op.MUL, [start, rest], terms[0])
    low.elementwise(Op.MUL, [end, by], terms[1])
    low.elementwise(Op.ADD, [(terms[0], start.attached), (terms[1], end.attached)])


def _reduce(low: Lowering, record: Record) -> None:
    source = refs_of(record.args)[0]
    out = record.outputs[0]
    rank, kept = len(low.shape(source.value)), len(low.shape(out))
    dims = next((a for a in record.args[1:] if isinstance(a, tuple) or type(a) is int), None)
    if record.schema.name in ("linalg_vector_norm", "norm"):
        dims = record.args[2] if len(record.args) > 2 else None
    if dims is None or dims == ():
        reduced = set(range(rank))
    else:
        reduced = {d % rank for d in (dims if isinstance(dims, tuple) else (dims,))} if rank else set()
    if kept == rank:
        axes = tuple(-1 if i in reduced else i for i in range(rank))
    else:
        axes = tuple(i for i in range(rank) if i not in reduced)
    degree = REDUCTIONS[record.schema.name]
    axes = axes if len(axes) == kept else (-1,) * kept
    if record.schema.name == "mean":  # a sum and a factor, so that core sees both
        total = low.temporary(low.shape(out), out)
        low.emit(Op.REDUCE, [source], [axes], [total], degree=1.0, sums=True)
        low.elementwise(Op.MUL, [(total, source.attached), _size(low, out) / max(_size(low, source.value), 1)], out)
        return
    places = record.outputs if record.schema.name in ("max", "min") else [out]  # of the one chosen
    low.emit(Op.REDUCE, [source], [axes], places, degree=degree, sums=record.schema.name == "sum")
    low.barrier(record.outputs[len(places) :])


def _first_alone(low: Lowering, record: Record) -> None:
    """A function of each entry of the first argument, whatever the others are."""
    low.emit(Op.POINTWISE, [record.args[0]], [identity(len(low.shape(record.outputs[0])))], record.outputs[:1])
    low.barrier(record.outputs[1:])


def _softmax(low: Lowering, record: Record) -> None:
    source, axis = record.args[0], record.args[1]
    rank = len(low.shape(source.value))
    low.emit(Op.SOFTMAX, [source], [identity(rank)], record.outputs, axis=axis % rank if rank else 0)


def _normalize(low: Lowering, record: Record) -> None:
    refs = [r for r in record.args if isinstance(r, Ref)]
    rank = len(low.shape(record.outputs[0]))
    axes: list[Axes | None] = [identity(rank), *[None] * (len(refs) - 1)]
    low.emit(Op.NORMALIZE, refs, axes, record.outputs[:1])
    low.barrier(record.outputs[1:])


def _weight_norm(low: Lowering, record: Record) -> None:
    v, g = record.args[:2]
    rank = len(low.shape(record.outputs[0]))
    low.emit(Op.POINTWISE, [v, g], [identity(rank), None], record.outputs[:1], degree=0.0)


def _elementwise_loss(low: Lowering, record: Record) -> None:
    refs = refs_of(record.args[:2])
    low.emit(Op.LOSS, refs, [None] * len(refs), record.outputs, axis=-1)


def _loss(low: Lowering, record: Record) -> None:
    logp, target = record.args[:2]
    axis = 1 if len(low.shape(logp.value)) > 1 else 0
    refs = [logp, target]
    low.emit(Op.LOSS, refs, [None, None], record.outputs[:1], axis=axis)
    low.barrier(record.outputs[1:])


RULES: dict[str, Rule] = {
    **dict.fromkeys(COPIES, _copy),
    **dict.fromkeys(REARRANGED, _same_place(Op.LAYOUT)),
    **dict.fromkeys(COLLECTIVES, _same_place(Op.LAYOUT)),
    **dict.fromkeys(MASKS, _same_place(Op.MASK)),
    **dict.fromkeys(("view_as_complex", "view_as_real"), _as_complex),
    "eye": _eye,
    "repeat": _repeat,
    "cat": _concat,
    "stack": _concat,
    "native_dropout": _dropout,
    "_fused_dropout": _dropout,
    "masked_fill": _masked_fill,
    "where": _where,
    **dict.fromkeys(("add", "sub", "rsub"), _add),
    **dict.fromkeys(("mul", "multiply"), _mul),
    **dict.fromkeys(("div", "true_divide", "divide"), _div),
    "neg": _neg,
    **dict.fromkeys(("lt", "le", "gt", "ge"), lambda low, r: low.elementwise(Op.POINTWISE, list(r.args[:2]))),
    "pow": _pow,
    **dict.fromkeys(("addcmul", "addcdiv"), _addcmul),
    "lerp": _lerp,
    "tanh": lambda low, r: low.elementwise(Op.TANH, [r.args[0]]),
    "sigmoid": lambda low, r: low.elementwise(Op.SIGMOID, [r.args[0]]),
    **dict.fromkeys(("_softmax", "_log_softmax", "_safe_softmax"), _softmax),
    **dict.fromkeys(("mm", "bmm", "mv", "dot", "matmul"), products.product),
    **dict.fromkeys(("addmm", "baddbmm", "addmv"), products.add_product),
    "linear": products.linear,
    "embedding": indexing.embedding,
    **dict.fromkeys(("_embedding_bag", "_embedding_bag_forward_only"), indexing.embedding_bag),
    "index": indexing.index,
    "index_select": indexing.index_select,
    "gather": indexing.gather,
    **dict.fromkeys(
        "index_put _unsafe_index_put scatter scatter_add index_copy index_add index_fill masked_scatter slice_scatter "
        "select_scatter scatter_reduce index_reduce".split(),
        indexing.update,
    ),
    **dict.fromkeys(
        "native_layer_norm native_group_norm native_batch_norm cudnn_batch_norm _native_batch_norm_legit "
        "_batch_norm_with_update _batch_norm_no_update _fused_rms_norm _native_batch_norm_legit_no_training".split(),
        _normalize,
    ),
    "embedding_renorm": lambda low, r: low.elementwise(Op.UPDATE, [(r.args[0].value, None)]),
    "convolution": products.convolution,
    "_weight_norm_interface": _weight_norm,
    **dict.fromkeys(
        ("nll_loss_forward", "nll_loss2d_forward", "multi_margin_loss", "multilabel_margin_loss_forward"), _loss
    ),
    **dict.fromkeys(ELEMENTWISE_LOSSES, _elementwise_loss),
    **dict.fromkeys(indexing.CHOICES, indexing.choice),
    **dict.fromkeys(("sort", "cummax", "cummin"), indexing.in_order),
    **dict.fromkeys(("masked_select", "_unique2", "unique_consecutive", "unique_dim"), indexing.some),
    **dict.fromkeys(("bucketize", "searchsorted"), indexing.binned),
    "floor_divide": lambda low, r: low.elementwise(Op.POINTWISE, refs_of(r.args)),
    **dict.fromkeys(
        "fake_quantize_per_tensor_affine_cachemask fake_quantize_per_channel_affine_cachemask "
        "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams _fake_quantize_learnable_per_tensor_affine "
        "_fake_quantize_learnable_per_channel_affine _fused_moving_avg_obs_fq_helper log_sigmoid_forward".split(),
        _first_alone,
    ),
}
