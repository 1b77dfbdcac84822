"""A block of tokens by the book: logits are held, their maximum is found on the way, and probabilities are made.

Serves logits that `quick` cannot exponentiate as they are, and a soft cap together with label smoothing, which no
scaling of rows can express.
"""

import math

import torch
from torch import Tensor

from tiebeam.blocks.readout_loss.torch.parts import (
    Own,
    Room,
    Seen,
    Table,
    Tokens,
    Top,
    Wanted,
    logits_of,
    multiply,
    seen,
)


def careful(tokens: Tokens, table: Table, wanted: Wanted) -> tuple[Seen, Tensor | None]:
    """Look at a block of tokens, and add the gradients of table and bias to what is wanted.

    Returns:
        What was seen and the gradient of `tokens.read`, both without what the targets' own logits contribute.
    """
    count, device = len(tokens.targets), table.rows.device
    room = wanted.room(count, table, table.wide)
    targets, target = tokens.targets - table.first, logits_of(tokens.aim, tokens, table)
    most = target.to(table.wide)
    sums = torch.zeros(count, dtype=table.exact, device=device)
    spread = torch.zeros_like(sums) if table.smoothing else None
    top = Top(tokens.targets, table) if wanted.best else None
    read = tokens.read.to(table.product)
    for piece in table.pieces():
        z = room.piece(piece)
        _logits(z, read, table, piece)
        if spread is not None:
            spread += z.sum(-1) if table.weight is None else torch.mv(z, table.weight[piece].to(z.dtype))
        own = Own.taken_out(z, targets, piece, -math.inf)
        if top is not None:
            top.see(z)
            top.own(own.here.squeeze(-1), own.value.squeeze(-1))
        above = torch.maximum(most, z.amax(-1))
        e = (z - above.unsqueeze(-1)).clamp_(min=math.log(_least(z))).exp_()
        sums = sums * (most - above).exp() + torch.threshold_(e, 1.1 * _least(z), 0.0).sum(-1)
        most = above
        own.put_back(z)
    above = table.ranks.max_(most.clone())
    sums = table.ranks.sum_(sums * (most - above).exp())
    if spread is not None:
        table.ranks.sum_(spread)
    above = above.to(table.exact)
    found = seen(tokens, table, above + (sums + (target - above).exp()).log(), target, top, spread)
    grad = wanted.gradient(tokens.read, table)
    if wanted.any:
        _gradients(tokens, table, wanted, room, found, grad)
    return found, grad


def _logits(z: Tensor, read: Tensor, table: Table, piece: slice) -> None:
    multiply(z, read, table.rows[piece].to(table.product).mT, add=False)
    if table.bias is not None:
        z += table.bias[piece]
    if table.soft_cap is not None:
        z.div_(table.soft_cap).tanh_().mul_(table.soft_cap)


def _least(like: Tensor) -> float:
    """The smallest probability that is computed with, the smallest normal number of a dtype and a little more.

    A processor takes a hundred times as long for an exponential, a product or a sum that is subnormal.
    """
    return 2.0 * torch.finfo(like.dtype).tiny


def _gradients(tokens: Tokens, table: Table, wanted: Wanted, room: Room, found: Seen, grad: Tensor | None) -> None:
    row = tokens.pull(table, found.lse).to(table.wide).unsqueeze(-1)
    lse = found.lse.to(table.wide).unsqueeze(-1)
    read = tokens.read.to(table.product)
    # What a row makes subnormal is nothing: see `_least`. No weight below 0 is worth another pass.
    low = (_least(row) / row.abs().clamp(1e-30, 1.0)).log_()
    flushes = bool((row >= 0.0).all())
    smoothed, targets = tokens.smoothed(table).unsqueeze(-1), tokens.targets - table.first
    for number, piece in enumerate(table.pieces()):
        z = room.piece(piece)
        slope = None if table.soft_cap is None else (z / table.soft_cap).square_().neg_().add_(1.0)
        p = torch.maximum(z.sub_(lse), low, out=z).exp_().mul_(row)
        if flushes:
            torch.threshold_(p, 1.1 * _least(p), 0.0)
        Own.taken_out(p, targets, piece, 0.0)
        if table.dense_smoothing:
            p -= smoothed if table.weight is None else smoothed * table.weight[piece].to(p.dtype)
        if slope is not None:
            p.mul_(slope)
        if wanted.bias is not None:
            wanted.bias[piece] += p.sum(0)
        narrow = p.to(table.product)
        if grad is not None:
            multiply(grad, narrow, table.rows[piece].to(table.product), add=number > 0)
        if wanted.table is not None:
            multiply(wanted.table[piece], narrow.mT, read, add=wanted.started)
