"""The readout loss in JAX: a scan over blocks of tokens, whose gradients come with it."""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tiebeam.blocks.readout_loss import options as say
from tiebeam.blocks.readout_loss.jax_mesh import automatic, varying_alike
from tiebeam.blocks.readout_loss.options import NAME, Options, check_shapes, checked_factor
from tiebeam.blocks.readout_loss.sizes import choose
from tiebeam.errors import RangeError

Array = jax.Array
COPIES = 4  # of a block's logits: a compiled step makes new arrays of them


class ReadoutStats(NamedTuple):
    """What was seen on the way, of the shape of the targets; no gradient flows through it.

    Attributes:
        logsumexp: Log of the softmax's denominator. Unit: nats.
        best: Whether no other logit is larger than the target's; False where ignored.
        own_logit: The logit of the token read, or None where `ids` were not given. Unit: nats.
        counted: Where the target counts.
    """

    logsumexp: Array
    best: Array
    own_logit: Array | None
    counted: Array

    @property
    def accuracy(self) -> Array:
        """The largest logit is the target's at this share of the targets that count; a scalar."""
        return self.best.sum() / self.counted.sum()

    @property
    def own_mass(self) -> Array | None:
        """Share of probability on the token read, of the targets' shape."""
        return None if self.own_logit is None else jnp.exp(self.own_logit - self.logsumexp)


@dataclass(frozen=True)
class _How:
    """What a compiler may know."""

    options: Options
    wide: Any  # dtype that is summed in
    chunk: int


class _Given(NamedTuple):
    """Arrays, tokens flattened; the first four have gradients."""

    hidden: Array
    table: Array
    bias: Array | None
    factor: Array
    targets: Array
    weight: Array | None
    ids: Array | None


class _Found(NamedTuple):
    """Of each token, or (loss) reduced."""

    loss: Array
    lse: Array
    best: Array
    own: Array | None


def readout_loss(
    hidden: Any,
    table: Any,
    targets: Any,
    *,
    factor: Any = 1.0,
    soft_cap: float | None = None,
    bias: Any = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    weight: Any = None,
    reduction: str = "mean",
    chunk: int | str = "auto",
    ids: Any = None,
    returns: str = "loss",
) -> Any:
    """Return the cross entropy of a readout; its logits are never held beyond one block of tokens.

    What `tiebeam.torch.readout_loss` is in PyTorch. Where it is differentiated, the gradients of hidden, table,
    bias and factor are computed block by block along with the loss. Works under `jit`, `checkpoint` and sharding:
    with a table sharded over its vocabulary and tokens over a batch axis, blocks hold tokens of every device.

    Args:
        hidden: (..., width), floating.
        table: (vocab, width), floating.
        targets: (...), integers; `ignore_index` does not count (it is computed and dropped: shapes are static).
        factor: Multiplies the product, before bias and soft cap: a number, or an array of no axes that is learned.
        soft_cap: c of `c * tanh(z / c)` on the logits, or None.
        bias: (vocab,), or None.
        ignore_index, label_smoothing, z_loss, weight, reduction: As in PyTorch's; `weight` is not differentiated.
        chunk: Tokens whose logits are held at a time; "auto" goes by the size of the table.
        ids: (...), of the tokens read, for `ReadoutStats.own_logit`.
        returns: "loss", or "stats" for `(loss, ReadoutStats)`.

    Returns:
        A scalar, or of the targets' shape; float32, float64 where hidden or table is. Unit: nats.

    Raises:
        ShapeError: Shapes do not fit.
        InputError: The batch is empty or a dtype does not fit; outside of `jit`, where numbers are known, also a target
            outside the table and NaN or infinity in what is read. Within `jit` such a target makes the loss NaN.
        RangeError: A number lies outside its range.

    Example:
        >>> table = jax.random.normal(jax.random.key(0), (11, 8))
        >>> ids = jnp.array([[1, 2, 3], [4, 5, 6]])
        >>> loss, grad = jax.value_and_grad(lambda t: readout_loss(t[ids], t, (ids + 1) % 11))(table)
        >>> loss.shape, grad.shape
        ((), (11, 8))
    """
    options = Options.of(
        soft_cap=soft_cap,
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        z_loss=z_loss,
        reduction=reduction,
        chunk=chunk,
    )
    if returns not in ("loss", "stats"):
        raise say.no_such_returns(returns)
    learned = isinstance(factor, (jax.Array, np.ndarray)) or hasattr(factor, "__jax_array__")  # an `nnx.Param`
    factor = factor if learned else checked_factor(factor)
    given = _checked(hidden, table, bias, factor, targets, weight, ids, options)
    shape, (vocab, width) = given.targets.shape, given.table.shape
    tokens = math.prod(shape)
    together = jnp.result_type(given.hidden, given.table)
    wide = jnp.float64 if together == jnp.float64 else jnp.float32
    copies = COPIES if jax.default_backend() == "cpu" else 1  # an accelerator has more memory, and wants large blocks
    how = _How(options, wide, choose(tokens, vocab, width, chunk=options.chunk, copies=copies).tokens)
    each: Any = True
    single: Any = options.reduction == "none"
    per_target = _Found(single, each, each, None if given.ids is None else each)

    def compute(given: _Given) -> _Found:
        found: _Found = _loss(how, varying_alike(_flat(given, wide)))
        return _Found(*jax.tree.map(lambda a, each: a.reshape(shape) if each else a, found, per_target))

    found = automatic(compute, given, given.targets, per_target)
    if returns == "loss":
        return found.loss
    counted = _counted(given.targets, options)
    stats = ReadoutStats(found.lse, found.best, found.own, counted)
    return found.loss, jax.tree.map(jax.lax.stop_gradient, stats)


def _checked(
    hidden: Any, table: Any, bias: Any, factor: Any, targets: Any, weight: Any, ids: Any, options: Options
) -> _Given:
    arrays = {"hidden": hidden, "table": table, "bias": bias, "weight": weight}
    made: dict[str, Any] = {name: _array(name, a) for name, a in arrays.items()}
    whole: dict[str, Any] = {name: _array(name, a) for name, a in {"targets": targets, "ids": ids}.items()}
    shapes = {name: None if a is None else tuple(a.shape) for name, a in (made | whole).items()}
    more = {name: shapes[name] for name in ("bias", "weight", "ids")}
    check_shapes(shapes["hidden"] or (), shapes["table"] or (), shapes["targets"] or (), **more)
    if jnp.ndim(factor):
        raise RangeError(f"a learned factor of {NAME}", got=f"shape {jnp.shape(factor)}", expected="shape ()")
    made["factor"] = jnp.asarray(factor)
    if jnp.issubdtype(made["factor"].dtype, jnp.integer):
        made["factor"] = made["factor"].astype(jnp.float32)
    for name, a in made.items():
        if a is not None and not jnp.issubdtype(a.dtype, jnp.floating):
            raise say.not_floating(name, a.dtype)
    for name, a in whole.items():
        if a is not None and not jnp.issubdtype(a.dtype, jnp.integer):
            raise say.not_integers(name, a.dtype)
        if a is not None and a.dtype.itemsize < 4:  # neither the vocabulary nor ignore_index may fit a byte
            whole[name] = a.astype(jnp.int32)
    _check_numbers({k: a for k, a in made.items() if a is not None}, whole, made["table"].shape[0], options)
    return _Given(
        made["hidden"], made["table"], made["bias"], made["factor"], whole["targets"], made["weight"], whole["ids"]
    )


def _array(name: str, given: Any) -> Any:
    try:
        return None if given is None else jnp.asarray(given)
    except (TypeError, ValueError) as error:
        raise say.no_array(name, given) from error


def _check_numbers(arrays: dict[str, Array], ids: dict[str, Array | None], vocab: int, options: Options) -> None:
    """Where they are known."""
    for name, a in arrays.items():
        if isinstance(a, jax.core.Tracer) or a.dtype == jnp.float16:
            continue
        with jax.ensure_compile_time_eval():  # a jitted function may hold arrays of its own
            finite = bool(jnp.isfinite(a).all())
        if not finite:
            raise say.not_finite(name, tuple(int(i) for i in np.argwhere(~np.isfinite(np.asarray(a, np.float64)))[0]))
    if isinstance(ids["targets"], jax.core.Tracer):
        return
    counted = np.asarray(ids["targets"]) != options.ignore_index
    for name, one in ids.items():
        if one is None or isinstance(one, jax.core.Tracer):
            continue
        values = np.asarray(one)
        bad = np.argwhere(counted & ((values < 0) | (values >= vocab)))
        if len(bad):
            first = tuple(int(i) for i in bad[0])
            raise say.outside(name, first, int(values[first]), len(bad), vocab)


def _counted(targets: Array, options: Options) -> Array:
    """Where targets count; an ignore_index that their dtype cannot hold would come round to a token."""
    kind: Any = jnp.iinfo(targets.dtype)  # type: ignore[no-untyped-call]
    fits = kind.min <= options.ignore_index <= kind.max
    return targets != options.ignore_index if fits else jnp.ones_like(targets, bool)


def _flat(given: _Given, wide: Any) -> _Given:
    return given._replace(
        hidden=given.hidden.reshape(-1, given.hidden.shape[-1]),
        targets=given.targets.reshape(-1),
        ids=None if given.ids is None else given.ids.reshape(-1),
        factor=given.factor.astype(wide),
    )


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _loss(how: _How, given: _Given) -> _Found:
    return _sweep(how, given, None, gradients=False)[0]


def _loss_forward(how: _How, given: _Given) -> tuple[_Found, tuple[Any, ...]]:
    if how.options.reduction == "none":  # what each loss will be multiplied by is not known yet
        return _sweep(how, given, None, gradients=False)[0], (given, None)
    found, gradients = _sweep(how, given, None, gradients=True)
    kept = given._replace(hidden=_none(given.hidden), table=_none(given.table))  # for their dtypes
    return found, (kept, gradients)


def _loss_backward(how: _How, kept: tuple[Any, ...], cotangent: _Found) -> tuple[Any]:
    given, gradients = kept
    by = cotangent.loss
    if gradients is None:
        gradients = _sweep(how, given, by, gradients=True)[1]
        by = jnp.ones((), by.dtype)
    scaled: list[Any] = [
        None if grad is None else (grad.astype(by.dtype) * by).astype(of.dtype)
        for grad, of in zip(gradients, given[:4], strict=True)
    ]
    hidden, table, bias, factor = scaled
    return (given._replace(hidden=hidden, table=table, bias=bias, factor=factor, targets=None, weight=None, ids=None),)


_loss.defvjp(_loss_forward, _loss_backward)


def _none(a: Array) -> Array:
    return a[:0]


def _sweep(how: _How, given: _Given, scale: Array | None, *, gradients: bool) -> tuple[_Found, tuple[Any, ...]]:
    """Look at all tokens; `scale`, (tokens,), multiplies their losses before they are summed."""
    options, wide = how.options, how.wide
    vocab, tokens = given.table.shape[0], len(given.targets)
    counted = _counted(given.targets, options)
    outside = counted & ((given.targets < 0) | (given.targets >= vocab))
    rows = jnp.where(counted & ~outside, given.targets, 0)
    weights = counted.astype(wide) if given.weight is None else jnp.where(counted, given.weight[rows].astype(wide), 0)
    mean = options.reduction == "mean"
    sums = (weights.sum(), counted.sum().astype(wide)) if mean else (jnp.ones((), wide),) * 2
    share, share_z = (jnp.where(counted, 1 / s if scale is None else scale.astype(wide), 0) for s in sums)
    share = jnp.where(outside, jnp.nan, share)  # the gradient of a loss that is NaN
    parts = {"hidden": given.hidden, "rows": rows, "outside": outside, "counted": counted, "weights": weights,
             "share": share, "share_z": share_z}  # fmt: skip
    parts |= {} if given.ids is None else {"ids": given.ids}
    look = partial(_look, how, given, gradients)
    out = jnp.zeros(given.table.shape, wide), jnp.zeros(vocab, wide), jnp.zeros((), wide)
    marks = sum(jnp.zeros((), wide) * jnp.zeros_like(a, wide).sum() for a in jax.tree.leaves(given))
    carry = jax.tree.map(lambda a: a + marks, out if gradients else ())  # of the axes that the arrays differ over
    (carry, found) = jax.lax.scan(look, carry, _blocks(parts, how.chunk))
    whole: Any = [None if a is None else _together(a, tokens) for a in found]
    ce, z, lse, best, own, hidden = whole
    loss = ce + z if options.reduction == "none" else ce.sum() / sums[0] + z.sum() / sums[1]
    seen = _Found(loss, lse, best, own)
    if not gradients:
        return seen, ()
    table, bias, factor = carry
    return seen, (hidden, table, None if given.bias is None else bias, factor)


def _blocks(parts: dict[str, Array], chunk: int) -> dict[str, Array]:
    """(tokens, ...) -> (blocks, chunk, ...); what is missing to a whole block is not counted.

    Each block is made of tokens from all over: of every device, where they lie on several.
    """
    count = -(-len(parts["rows"]) // chunk)

    def cut(a: Array) -> Array:
        padded = jnp.pad(a, ((0, count * chunk - len(a)), *((0, 0),) * (a.ndim - 1)))
        return padded.reshape(chunk, count, *a.shape[1:]).swapaxes(0, 1)

    return {name: cut(a) for name, a in parts.items()}


def _together(a: Array, tokens: int) -> Array:
    """The inverse: (blocks, chunk, ...) -> (tokens, ...)."""
    return a.swapaxes(0, 1).reshape(-1, *a.shape[2:])[:tokens]


class _Block(NamedTuple):
    """A block of tokens, (chunk, ...), and its logits, (chunk, vocab)."""

    part: dict[str, Array]
    hidden: Array
    table: Array
    z: Array
    lse: Array
    kept: Array
    weight: Array | None
    total: Any


def _look(how: _How, given: _Given, gradients: bool, carry: Any, part: dict[str, Array]) -> tuple[Any, Any]:
    """One block of tokens."""
    options, wide = how.options, how.wide
    hidden, table, cap = part["hidden"], given.table, options.soft_cap
    if hidden.dtype != table.dtype:
        hidden, table = hidden.astype(wide), table.astype(wide)
    z = _product(hidden, table, ((1,), (1,)), wide) * given.factor
    z = z if given.bias is None else z + given.bias.astype(wide)
    z = z if cap is None else cap * jnp.tanh(z / cap)
    lse = jax.scipy.special.logsumexp(z, axis=-1)
    weight = None if given.weight is None else given.weight.astype(wide)
    total = len(given.table) if weight is None else weight.sum()
    kept = part["weights"] * (1.0 - options.label_smoothing)
    block = _Block(part, hidden, table, z, lse, kept, weight, total)
    seen = _seen(options, block)
    if not gradients:
        return carry, (*seen, None)
    carry, grad = _gradients(options, wide, given, block, carry)
    return carry, (*seen, grad)


def _seen(options: Options, block: _Block) -> tuple[Array | None, ...]:
    """Cross entropy, z-loss, lse, whether the target is best, and the logit of the token read."""
    part, z, lse, vocab = block.part, block.z, block.lse, block.z.shape[-1]
    target = jnp.take_along_axis(z, part["rows"][:, None], axis=-1)[:, 0]
    target = jnp.where(part["outside"], jnp.nan, target)
    ce = block.kept * (lse - target)
    if options.label_smoothing:
        spread = z.sum(-1) if block.weight is None else z @ block.weight
        share = options.label_smoothing / vocab
        ce = ce + jnp.where(part["counted"], (block.total * lse - spread) * share, 0)
    z_loss = jnp.where(part["counted"], options.z_loss * lse**2, 0)
    own = None
    if "ids" in part:
        ids = part["ids"]
        own = jnp.take_along_axis(z, jnp.clip(ids, 0, vocab - 1)[:, None], axis=-1)[:, 0]
        own = jnp.where(part["counted"] & ((ids < 0) | (ids >= vocab)), jnp.nan, own)
    return ce, z_loss, lse, (target >= z.max(-1)) & part["counted"], own


def _gradients(options: Options, wide: Any, given: _Given, block: _Block, carry: Any) -> tuple[Any, Array]:
    """Add those of table, bias and factor to the carry; return that of the hidden state."""
    part, z, share = block.part, block.z, options.label_smoothing / block.z.shape[-1]
    pull = part["share"] * (block.kept + share * block.total) + 2.0 * options.z_loss * part["share_z"] * block.lse
    p = jnp.exp(z - block.lse[:, None]) * pull[:, None]
    if options.label_smoothing:
        spread = part["share"][:, None] * share
        p = p - (spread if block.weight is None else spread * block.weight)
    here = jax.lax.broadcasted_iota(part["rows"].dtype, z.shape, 1) == part["rows"][:, None]
    p = p - jnp.where(here, (part["share"] * block.kept)[:, None], 0)
    p = p if options.soft_cap is None else p * (1.0 - (z / options.soft_cap) ** 2)
    narrow = p.astype(block.hidden.dtype) if block.hidden.dtype == jnp.bfloat16 else p
    grad = _product(narrow, block.table.astype(narrow.dtype), ((1,), (0,)), wide)
    products = _product(narrow, block.hidden.astype(narrow.dtype), ((0,), (0,)), wide)
    table_grad, bias_grad, factor_grad = carry
    carry = (
        table_grad + given.factor * products,
        bias_grad + p.sum(0),
        factor_grad + (grad * block.hidden.astype(wide)).sum(),
    )
    grad = grad * given.factor
    return carry, grad if part["hidden"].dtype == jnp.float16 else grad.astype(part["hidden"].dtype)


def _product(a: Array, b: Array, axes: tuple[tuple[int], tuple[int]], wide: Any) -> Array:
    return jax.lax.dot_general(a, b, (axes, ((), ())), preferred_element_type=wide)
