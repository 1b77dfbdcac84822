"""The readout loss in TensorFlow: a loop over blocks of tokens, whose gradients come with it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tiebeam.blocks.readout_loss import options as say
from tiebeam.blocks.readout_loss.options import NAME, Options, check_shapes
from tiebeam.blocks.readout_loss.sight import in_sight
from tiebeam.blocks.readout_loss.sizes import choose
from tiebeam.errors import RangeError, ShapeError

IDS = ("targets", "ids")
COPIES = 4  # of a block's logits: each operation makes a new array of them
GUESS = 1024  # tokens, where a graph does not know how many there will be


class Found(NamedTuple):
    """The loss, and what was seen: (tokens,) each."""

    loss: Any
    lse: Any
    best: Any
    own: Any


@dataclass(frozen=True)
class _Given:
    hidden: Any
    table: Any
    bias: Any
    factor: Any
    targets: Any
    weight: Any
    ids: Any
    options: Options
    wide: Any
    chunk: int

    @property
    def kept(self) -> Any:
        """What the hidden state's gradient is kept in; float16 would lose what a gradient scaler has yet to reach."""
        return self.wide if self.hidden.dtype == tf.float16 else self.hidden.dtype


def loss_of(
    hidden: Any,
    table: Any,
    targets: Any,
    factor: Any,
    bias: Any,
    weight: Any,
    ids: Any,
    options: Options,
) -> Found:
    """Return the loss of flattened tokens; arguments as those of `tiebeam.keras.readout_loss`.

    Args:
        hidden: (tokens, width).
        targets, ids: (tokens,).

    Raises:
        ShapeError, InputError: They do not fit; where numbers are known, also a target outside the table. In a graph
            such a target makes the loss NaN.
    """
    named = {"hidden": hidden, "table": table, "targets": targets, "bias": bias, "weight": weight, "ids": ids}
    named = {name: None if t is None else tf.convert_to_tensor(t) for name, t in named.items()}
    check({name: t for name, t in named.items() if t is not None}, options)
    hidden, table, targets, bias, weight, ids = named.values()
    wide = tf.float64 if tf.float64 in (hidden.dtype, table.dtype) else tf.float32
    vocab, width = table.shape
    copies = 1 if tf.config.list_physical_devices("GPU") else COPIES
    chunk = choose(hidden.shape[0] or GUESS, vocab, width, chunk=options.chunk, copies=copies).tokens
    factor = _checked_factor(factor, wide)
    if _seen():
        rows = tf.cast(targets, tf.int64)
        return _whole(_Given(hidden, table, bias, factor, rows, weight, ids, options, wide, chunk))
    zero = tf.zeros((), wide)

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def run(hidden: Any, table: Any, bias: Any, factor: Any) -> Any:
        known, rows = None if no_bias else bias, tf.cast(targets, tf.int64)
        given = _Given(hidden, table, known, factor, rows, weight, ids, options, wide, chunk)
        none = options.reduction == "none"
        found, gradients = _sweep(given, None, gradients=not none)

        def backward(upstream: Any, *_: Any) -> Any:
            by = tf.reshape(tf.cast(upstream, wide), (-1,) if none else ())
            mine = gradients
            if none:
                mine, by = _sweep(given, by, gradients=True)[1], tf.ones((), wide)
            of = zip(mine, (hidden, table, bias, factor), strict=True)
            return [tf.cast(tf.cast(g, wide) * by, a.dtype) for g, a in of]

        return tuple(found), backward

    no_bias = bias is None
    return Found(*run(hidden, table, zero if no_bias else bias, factor))


def flat(hidden: Any, table: Any, targets: Any, ids: Any) -> tuple[Any, Any, Any]:
    """Return hidden state, targets and ids of flattened tokens: what belongs together lies beside one another.

    Where sizes are known only when a graph runs, it is then that others than the hidden state's are refused. XLA leaves
    such a check out: there it is the number of tokens that does not fit.

    Raises:
        ShapeError: As far as a graph knows, they do not fit.
    """
    named = {"targets": targets} if ids is None else {"targets": targets, "ids": ids}
    for name, t in {"hidden": hidden, **named}.items():
        if t.shape.rank is None:
            hint = "tf.ensure_shape(tensor, (None, None, width)) says how many axes there are"
            raise ShapeError(f"{name} of {NAME}", got="a tensor of any shape", expected="known axes", hint=hint)
    shapes = {name: tuple(t.shape) for name, t in named.items()}
    check_shapes(tuple(hidden.shape), tuple(table.shape), shapes["targets"], ids=shapes.get("ids"))
    checks = []
    if None in (size for shape in (hidden.shape[:-1], *shapes.values()) for size in shape):
        like = tf.shape(hidden)[:-1]
        checks = [tf.debugging.assert_equal(tf.shape(t), like, say.not_beside(name)) for name, t in named.items()]
    read = tf.reshape(hidden, (-1, table.shape[-1]))
    tokens = read.shape[0] or tf.shape(read)[0]
    with tf.control_dependencies(checks):
        return read, tf.reshape(targets, (tokens,)), None if ids is None else tf.reshape(ids, (tokens,))


def check(given: dict[str, Any], options: Options) -> None:
    """Raise where arguments do not fit, as far as a graph knows.

    Raises:
        ShapeError, InputError: They do not.
    """
    for name, t in given.items():
        if name in IDS and not t.dtype.is_integer:
            raise say.not_integers(name, t.dtype.name)
        if name not in IDS and not t.dtype.is_floating:
            raise say.not_floating(name, t.dtype.name)
    shapes = {name: tuple(t.shape) for name, t in given.items()}
    first = [shapes.pop(name) for name in ("hidden", "table", "targets")]
    check_shapes(first[0], first[1], first[2], **shapes)
    if tf.executing_eagerly():
        _check_numbers(given, options)


def _checked_factor(factor: Any, wide: Any) -> Any:
    """A number, or a tensor of no axes, as one of dtype `wide`."""
    if isinstance(factor, float):
        return tf.constant(factor, wide)  # a cast would make it float32 first
    shape, dtype = tuple(factor.shape), tf.as_dtype(factor.dtype)
    if shape:
        raise RangeError(f"a learned factor of {NAME}", got=f"shape {shape}", expected="shape ()")
    if not (dtype.is_floating or dtype.is_integer):
        raise say.not_floating("factor", dtype.name)
    if tf.executing_eagerly() and dtype != tf.float16 and not np.isfinite(np.asarray(tf.cast(factor, tf.float64))):
        raise say.not_finite("factor", ())
    return tf.cast(factor, wide)


def _check_numbers(given: dict[str, Any], options: Options) -> None:
    for name in [name for name in given if name not in IDS]:
        t = given[name]
        if t.dtype != tf.float16 and not bool(tf.reduce_all(tf.math.is_finite(t))):
            raise say.not_finite(name, tuple(np.argwhere(~np.isfinite(np.asarray(tf.cast(t, tf.float64))))[0].tolist()))
    counted, vocab = np.asarray(given["targets"]) != options.ignore_index, given["table"].shape[0]
    for name in [name for name in given if name in IDS]:
        values = np.asarray(given[name])
        bad = np.argwhere(counted & ((values < 0) | (values >= vocab)))[:, 0]
        if len(bad):
            raise say.outside(name, (int(bad[0]),), int(values[bad[0]]), len(bad), vocab)


def _seen() -> bool:
    """Whether logits are to be seen; not in a `tf.function` of the model's own, which keeps what it made for later."""
    outer = getattr(tf.compat.v1.get_default_graph(), "outer_graph", None)
    return in_sight() and outer is not None and not outer.building_function


def _whole(given: _Given) -> Found:
    """Look at all tokens at once, and leave gradients to TensorFlow: the logits are in sight."""
    whole, sums = _laid_out(given, None)
    (ce, z, lse, best, own), *_ = _block(given, given.hidden, given.ids, whole, gradients=False)
    return Found(_loss(ce, z, sums, given.options), lse, best, own)


def _sweep(given: _Given, scale: Any, *, gradients: bool) -> tuple[Found, list[Any]]:
    """Look at all tokens; `scale`, (tokens,), multiplies their losses before they are summed."""
    options, wide, vocab = given.options, given.wide, given.table.shape[0]
    whole, sums = _laid_out(given, scale)
    cut = _Blocks.of(given.hidden, given.chunk)
    whole |= {"hidden": given.hidden} if given.ids is None else {"hidden": given.hidden, "ids": given.ids}
    whole = {name: cut.padded(a) for name, a in whole.items()}
    kinds = (wide, wide, wide, tf.bool, wide, given.kept)
    arrays = [tf.TensorArray(kind, cut.count, infer_shape=False, element_shape=None) for kind in kinds]
    sizes = (given.table.shape, (vocab,), ()) if gradients else ((), (), ())
    state = [tf.zeros(size, wide) for size in sizes]

    def look(i: Any, arrays: Any, state: Any) -> Any:
        part = {name: cut.block(a, i) for name, a in whole.items()}
        seen, more, grad = _block(given, part["hidden"], part.get("ids"), part, gradients)
        filled = [a.write(i, t) for a, t in zip(arrays, (*seen, grad), strict=True)]
        return i + 1, filled, [a + b for a, b in zip(state, more, strict=True)] if gradients else state

    _, arrays, state = tf.while_loop(
        lambda i, *_: i < cut.count, look, (0, arrays, state), parallel_iterations=1, swap_memory=False
    )
    ce, z, lse, best, own, hidden = (a.concat()[: cut.tokens] for a in arrays)
    table, bias, factor = state
    gradients_of = [hidden, table, factor * 0 if given.bias is None else bias, factor]
    return Found(_loss(ce, z, sums, options), lse, best, own), gradients_of


def _laid_out(given: _Given, scale: Any) -> tuple[dict[str, Any], list[Any]]:
    """What goes with each token, (tokens,) each; and what losses, and z-losses, are divided by."""
    options, wide, vocab = given.options, given.wide, given.table.shape[0]
    counted = tf.not_equal(given.targets, options.ignore_index)
    outside = counted & ((given.targets < 0) | (given.targets >= vocab))
    rows = tf.where(counted & ~outside, given.targets, tf.zeros_like(given.targets))
    weights = tf.cast(counted, wide)
    if given.weight is not None:
        weights *= tf.cast(tf.gather(given.weight, rows), wide)
    mean = options.reduction == "mean"
    sums = [tf.reduce_sum(a) if mean else tf.ones((), wide) for a in (weights, tf.cast(counted, wide))]
    each = [tf.math.divide_no_nan(tf.ones((), wide), n) for n in sums] if scale is None else [scale] * 2
    whole = {"rows": rows, "outside": outside, "counted": counted, "weights": weights}
    whole |= {name: tf.cast(counted, wide) * a for name, a in zip(("share", "share_z"), each, strict=True)}
    # The gradient of a loss that is NaN.
    whole["share"] = tf.where(outside, tf.constant(math.nan, wide), whole["share"])
    return whole, sums


def _loss(ce: Any, z: Any, sums: Sequence[Any], options: Options) -> Any:
    return ce + z if options.reduction == "none" else tf.reduce_sum(ce) / sums[0] + tf.reduce_sum(z) / sums[1]


@dataclass(frozen=True)
class _Blocks:
    """Tokens in blocks of one size, without which XLA compiles no loop: what is missing to a whole one does not count.

    Attributes:
        tokens, count, size: Tokens in all, blocks, and tokens in each; numbers, or tensors that a graph finds out.
    """

    tokens: Any
    count: Any
    size: Any

    @classmethod
    def of(cls, hidden: Any, chunk: int) -> "_Blocks":
        """Equal blocks, of `chunk` tokens at most."""
        tokens = hidden.shape[0] or tf.shape(hidden)[0]
        count = -(-tokens // chunk)
        return cls(tokens, count, -(-tokens // count))

    def padded(self, a: Any) -> Any:
        """(tokens, ...) with zeros up to a whole block."""
        return tf.pad(a, [[0, self.count * self.size - self.tokens], *[[0, 0]] * (a.shape.rank - 1)])

    def block(self, a: Any, i: Any) -> Any:
        """The block of a number, of what was padded."""
        return tf.slice(a, [i * self.size, *[0] * (a.shape.rank - 1)], [self.size, *a.shape[1:]])


def _block(given: _Given, hidden: Any, ids: Any, part: dict[str, Any], gradients: bool) -> tuple[Any, Any, Any]:
    """What is seen of a block, what its gradients add to those of table, bias and factor, and the hidden state's."""
    options, wide, vocab = given.options, given.wide, given.table.shape[0]
    cap, smoothing = options.soft_cap, options.label_smoothing
    read, table = tf.cast(hidden, wide), tf.cast(given.table, wide)
    z = tf.matmul(read * given.factor, table, transpose_b=True)
    z = z if given.bias is None else z + tf.cast(given.bias, wide)
    z = z if cap is None else cap * tf.tanh(z / cap)
    most = tf.reduce_max(z, -1)
    e = tf.exp(z - most[:, None])
    sums = tf.reduce_sum(e, -1)
    lse = most + tf.math.log(sums)
    target = tf.gather(z, part["rows"], batch_dims=1)
    target = tf.where(part["outside"], tf.constant(math.nan, wide), target)
    kept = part["weights"] * (1.0 - smoothing)
    weight = None if given.weight is None else tf.cast(given.weight, wide)
    total = float(vocab) if weight is None else tf.reduce_sum(weight)
    ce = kept * (lse - target)
    if smoothing:
        spread = tf.reduce_sum(z if weight is None else z * weight, axis=-1)
        ce += tf.cast(part["counted"], wide) * (total * lse - spread) * (smoothing / vocab)
    z_loss = tf.cast(part["counted"], wide) * options.z_loss * lse**2
    own = lse
    if ids is not None:
        at = tf.clip_by_value(tf.cast(ids, tf.int64), 0, vocab - 1)
        strange = part["counted"] & tf.not_equal(at, tf.cast(ids, tf.int64))
        own = tf.where(strange, tf.constant(math.nan, wide), tf.gather(z, at, batch_dims=1))
    seen = (ce, z_loss, lse, (target >= most) & part["counted"], own)
    if not gradients:
        return seen, (), tf.zeros_like(hidden, given.kept)
    pull = part["share"] * (kept + smoothing * total / vocab) + 2.0 * options.z_loss * part["share_z"] * lse
    p = e * (pull / sums)[:, None]
    if smoothing:
        taken = part["share"][:, None] * (smoothing / vocab)
        p -= taken if weight is None else taken * weight
    places = tf.stack([tf.range(tf.shape(z, tf.int64)[0]), part["rows"]], -1)
    p = tf.tensor_scatter_nd_sub(p, places, part["share"] * kept)
    p = p if cap is None else p * (1.0 - (z / cap) ** 2)
    grad = tf.matmul(p, table)
    more = tf.matmul(p, read * given.factor, transpose_a=True), tf.reduce_sum(p, 0), tf.reduce_sum(grad * read)
    grad *= given.factor
    return seen, more, tf.cast(grad, given.kept)
