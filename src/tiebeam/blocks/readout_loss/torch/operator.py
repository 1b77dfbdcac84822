"""The kernel as an operator of PyTorch: opaque to compilers, with shapes that they can infer."""

from typing import NamedTuple

import torch
from torch import Tensor

from tiebeam.blocks.readout_loss.options import NAME
from tiebeam.blocks.readout_loss.sizes import choose
from tiebeam.blocks.readout_loss.torch.checks import check_ids, check_numbers
from tiebeam.blocks.readout_loss.torch.kernel import Batch, Found, sweep
from tiebeam.blocks.readout_loss.torch.parts import Table, Wanted
from tiebeam.blocks.readout_loss.torch.ranks import Ranks
from tiebeam.errors import InputError


class Numbers(NamedTuple):
    """What the operator takes beside tensors, in its order.

    Attributes:
        constant: The factor, where it is no tensor.
        soft_cap, ignore_index, smoothing, z_loss, reduction, chunk: See `Options`.
        gradients: Whether those of hidden, table, bias and factor are wanted.
        best: Whether to say which targets have the largest logit.
        product: Dtype of products.
        shape: Of the targets, before they were flattened.
        first, vocab, group: Id of the table's first row, rows in all processes, and these processes.
    """

    constant: float
    soft_cap: float | None
    ignore_index: int
    smoothing: float
    z_loss: float
    reduction: str
    chunk: int
    gradients: list[bool]
    best: bool
    product: torch.dtype
    shape: list[int]
    first: int
    vocab: int
    group: str


class Results(NamedTuple):
    """What the operator returns; what was not asked for has no element.

    Attributes:
        loss: (), or (tokens,) where nothing is reduced; float32, or float64 from float64.
        hidden, table, bias, factor: Gradients of the loss. In float32 where the tensor is float16, whose range
            they are brought into when the scale of the loss is known.
        lse, own: (tokens,): the log of the softmax's denominator, and the logit of the token read; NaN where ignored.
        best: (tokens,), bool.
    """

    loss: Tensor
    hidden: Tensor
    table: Tensor
    bias: Tensor
    factor: Tensor
    lse: Tensor
    own: Tensor
    best: Tensor


_Eight = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


def _kept(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype == torch.float16 else dtype


@torch.library.custom_op("tiebeam::readout_loss", mutates_args=())
def readout_loss_op(
    hidden: Tensor,
    table: Tensor,
    bias: Tensor | None,
    factor: Tensor | None,
    targets: Tensor,
    weight: Tensor | None,
    inputs: Tensor | None,
    scale: Tensor | None,
    constant: float,
    soft_cap: float | None,
    ignore_index: int,
    smoothing: float,
    z_loss: float,
    reduction: str,
    chunk: int,
    gradients: list[bool],
    best: bool,
    product: torch.dtype,
    shape: list[int],
    first: int,
    vocab: int,
    group: str,
) -> _Eight:
    """See `Numbers` and `Results`; `scale`, (tokens,), multiplies each token's loss before it is summed."""
    numbers = Numbers(
        constant, soft_cap, ignore_index, smoothing, z_loss, reduction, chunk, gradients, best, product, shape, first,
        vocab, group,
    )  # fmt: skip
    with torch.no_grad(), torch.autocast(hidden.device.type, enabled=False):
        return _run(hidden, table, bias, factor, targets, weight, inputs, scale, numbers)


@readout_loss_op.register_fake
def _(
    hidden: Tensor,
    table: Tensor,
    bias: Tensor | None,
    factor: Tensor | None,
    targets: Tensor,
    weight: Tensor | None,
    inputs: Tensor | None,
    scale: Tensor | None,
    constant: float,
    soft_cap: float | None,
    ignore_index: int,
    smoothing: float,
    z_loss: float,
    reduction: str,
    chunk: int,
    gradients: list[bool],
    best: bool,
    product: torch.dtype,
    shape: list[int],
    first: int,
    vocab: int,
    group: str,
) -> _Eight:
    out = torch.float64 if product == torch.float64 else torch.float32
    tokens = hidden.shape[0]
    none = hidden.new_empty
    return Results(
        loss=hidden.new_empty((tokens,) if reduction == "none" else (), dtype=out),
        hidden=none(hidden.shape, dtype=_kept(hidden.dtype)) if gradients[0] else none(0),  # not as `hidden` lies
        table=table.new_empty(table.shape, dtype=_kept(table.dtype)) if gradients[1] else none(0),
        bias=none(0) if bias is None or not gradients[2] else bias.new_empty(bias.shape, dtype=_kept(bias.dtype)),
        factor=none(0) if factor is None or not gradients[3] else factor.new_empty((), dtype=_kept(factor.dtype)),
        lse=none((tokens,), dtype=out),
        own=none((tokens if inputs is not None else 0,), dtype=out),
        best=none((tokens if best else 0,), dtype=torch.bool),
    )


def _run(
    hidden: Tensor,
    table: Tensor,
    bias: Tensor | None,
    factor: Tensor | None,
    targets: Tensor,
    weight: Tensor | None,
    inputs: Tensor | None,
    scale: Tensor | None,
    numbers: Numbers,
) -> Results:
    counted = targets != numbers.ignore_index
    _refuse(
        {"hidden": hidden, "table": table, "bias": bias, "weight": weight, "factor": factor},
        {"targets": targets, "ids": inputs},
        counted,
        numbers,
    )
    rows = None if bool(counted.all()) else counted.nonzero().flatten()
    read = _table(table, bias, weight, numbers, hidden, len(hidden) if rows is None else len(rows))
    batch = _batch(hidden, factor, targets, weight, inputs, scale, numbers, rows, read.exact)
    wants = numbers.gradients
    wanted = Wanted(
        hidden=wants[0] or wants[3],
        table=torch.empty(table.shape, dtype=read.wide, device=table.device) if wants[1] else None,
        bias=torch.zeros(table.shape[:1], dtype=read.wide, device=table.device) if wants[2] else None,
        best=numbers.best,
        careful=hidden.device.type != "cpu",  # asking whether `quick` may go on makes an accelerator wait
    )
    found = sweep(batch, read, wanted, _kept(hidden.dtype))
    if wanted.table is not None and not wanted.started:
        wanted.table.zero_()
    return _results(found, wanted, numbers, (hidden, table, bias, factor), rows)


def _refuse(named: dict[str, Tensor | None], ids: dict[str, Tensor | None], counted: Tensor, numbers: Numbers) -> None:
    """Raise what is wrong with the numbers, in every process that shares the table."""
    error = None
    try:
        check_numbers({name: t for name, t in named.items() if t is not None}, counted)
        for name, t in ids.items():
            if t is not None:
                check_ids(name, t, counted, numbers.shape, numbers.vocab)
    except InputError as found:
        error = found
    if Ranks(numbers.group).any(error is not None, counted.device):  # or the others would wait for this one
        raise error or InputError(f"another process of {NAME} refused what it was given", hint="see its message")


def _table(
    table: Tensor, bias: Tensor | None, weight: Tensor | None, numbers: Numbers, hidden: Tensor, tokens: int
) -> Table:
    wide = torch.float64 if numbers.product == torch.float64 else torch.float32
    exact = wide if hidden.device.type == "mps" else torch.float64  # which has no float64
    ranks = Ranks(numbers.group)
    blocks = choose(
        max(tokens, 1),
        ranks.most_rows(numbers.vocab),  # not its own rows, nor caches: what is summed over processes has one shape
        table.shape[1],
        itemsize=numbers.product.itemsize,
        chunk=numbers.chunk,
        in_place=hidden.device.type == "cpu" and numbers.product == wide and ranks.alone,
    )
    own = None if weight is None else weight[numbers.first : numbers.first + len(table)].to(wide)
    read = Table(
        rows=table,
        bias=None if bias is None else bias.to(wide),
        weight=own,
        first=numbers.first,
        vocab=numbers.vocab,
        total=float(numbers.vocab) if weight is None else float(weight.sum(dtype=exact)),
        smoothing=numbers.smoothing,
        soft_cap=numbers.soft_cap,
        z_loss=numbers.z_loss,
        product=numbers.product,
        wide=wide,
        exact=exact,
        blocks=blocks,
        ranks=ranks,
    )
    if not numbers.smoothing or read.dense_smoothing:
        return read
    sums = torch.zeros(table.shape[1], dtype=wide, device=table.device)
    for piece in read.pieces():
        rows = table[piece].to(wide)
        sums += rows.sum(0) if own is None else own[piece] @ rows
    return read.summed(sums)


def _batch(
    hidden: Tensor,
    factor: Tensor | None,
    targets: Tensor,
    weight: Tensor | None,
    inputs: Tensor | None,
    scale: Tensor | None,
    numbers: Numbers,
    rows: Tensor | None,
    exact: torch.dtype,
) -> Batch:
    """Leave out what is ignored, and say what each token counts."""
    if rows is not None:
        hidden, targets = hidden[rows], targets[rows]
        inputs = None if inputs is None else inputs[rows]
        scale = None if scale is None else scale[rows]
    weights = torch.ones(len(targets), dtype=exact, device=hidden.device)
    weights = weights if weight is None else weight[targets].to(exact)
    share = torch.ones_like(weights) if scale is None else scale.to(exact)
    mean, total = numbers.reduction == "mean", weights.sum()
    total = total.where(total != 0, float("nan"))  # what smoothing leaves of weights that are all 0 is no mean either
    return Batch(
        hidden=hidden,
        factor=numbers.constant if factor is None else float(factor),
        targets=targets,
        inputs=inputs,
        share=share / total if mean else share,
        share_z=share / len(targets) if mean and len(targets) else share,
        kept=weights * (1.0 - numbers.smoothing),
    )


def _results(
    found: Found,
    wanted: Wanted,
    numbers: Numbers,
    given: tuple[Tensor, Tensor, Tensor | None, Tensor | None],
    rows: Tensor | None,
) -> Results:
    hidden, table, bias, factor = given
    out = torch.float64 if numbers.product == torch.float64 else torch.float32
    count = len(hidden)
    loss = found.total
    if numbers.reduction == "none":
        loss = _spread(found.losses, rows, count, 0.0)
    elif numbers.reduction == "mean" and not len(found.losses):
        loss = torch.full_like(loss, float("nan"))  # as the mean of nothing is
    none, nan = hidden.new_empty, float("nan")  # each made anew: results must not be one memory
    grad = found.hidden if numbers.gradients[0] else None
    return Results(
        loss=loss.to(out),
        hidden=none(0) if grad is None else _spread(grad, rows, count, 0.0),
        table=none(0) if wanted.table is None else wanted.table.to(_kept(table.dtype)),
        bias=none(0) if bias is None or wanted.bias is None else wanted.bias.to(_kept(bias.dtype)),
        factor=none(0) if factor is None or not numbers.gradients[3] else found.factor.to(_kept(factor.dtype)),
        lse=_spread(found.lse.to(out), rows, count, nan),
        own=none(0, dtype=out) if found.own is None else _spread(found.own.to(out), rows, count, nan),
        best=none(0, dtype=torch.bool) if found.best is None else _spread(found.best, rows, count, False),
    )


def _spread(kept: Tensor, rows: Tensor | None, count: int, fill: float | bool) -> Tensor:
    """Put what was kept back in its place."""
    if rows is None:
        return kept
    spread = torch.full((count, *kept.shape[1:]), fill, dtype=kept.dtype, device=kept.device)
    spread[rows] = kept
    return spread
