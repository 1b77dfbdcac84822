"""All tokens, block by block, against the whole table: each loss, and every gradient of their sum."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tiebeam.blocks.readout_loss.torch.careful import careful
from tiebeam.blocks.readout_loss.torch.parts import Seen, Table, Tokens, Wanted
from tiebeam.blocks.readout_loss.torch.quick import LARGEST_CAP, quick


@dataclass(frozen=True)
class Batch:
    """The tokens that count.

    Attributes:
        hidden: (n, width), as it came.
        factor: Multiplies it.
        targets, inputs: (n,), int64; the latter, ids of the tokens read, or None.
        share, share_z, kept: (n,), of dtype `exact`: see `Tokens`.
    """

    hidden: Tensor
    factor: float
    targets: Tensor
    inputs: Tensor | None
    share: Tensor
    share_z: Tensor
    kept: Tensor

    def block(self, at: slice, table: Table) -> Tokens:
        """The tokens of a block."""
        read = self.hidden[at].to(table.wide)
        read = read * self.factor if self.factor != 1.0 else read
        inputs = None if self.inputs is None else self.inputs[at]
        targets = self.targets[at]
        return Tokens(read, targets, table.aim(targets), inputs, self.share[at], self.share_z[at], self.kept[at])


@dataclass
class Found:
    """What came of all tokens.

    Attributes:
        losses: (n,), of dtype `exact`: each token's own, smoothed, weighted and with its z-loss, not yet reduced.
        total: Sum of the losses, each times its share.
        lse, own, best: (n,): see `Seen`.
        hidden: (n, width): the gradient of what is read, times the factor; of the dtype asked for.
        factor: The factor's gradient.
    """

    losses: Tensor
    total: Tensor
    lse: Tensor
    own: Tensor | None
    best: Tensor | None
    hidden: Tensor | None
    factor: Tensor


def sweep(batch: Batch, table: Table, wanted: Wanted, dtype: torch.dtype) -> Found:
    """Look at all tokens; gradients of table and bias are left in `wanted`.

    Args:
        dtype: Of the gradient of the hidden state.
    """
    count, device = len(batch.targets), table.rows.device
    found = Found(
        losses=torch.empty(count, dtype=table.exact, device=device),
        total=torch.zeros((), dtype=table.exact, device=device),
        lse=torch.empty(count, dtype=table.exact, device=device),
        own=None if batch.inputs is None else torch.empty(count, dtype=table.exact, device=device),
        best=torch.empty(count, dtype=torch.bool, device=device) if wanted.best else None,
        hidden=torch.empty(batch.hidden.shape, dtype=dtype, device=device) if wanted.hidden else None,
        factor=torch.zeros((), dtype=table.exact, device=device),
    )
    large_cap = table.soft_cap is not None and table.soft_cap > LARGEST_CAP
    wanted.careful |= table.dense_smoothing or large_cap
    start = 0
    while start < count:
        at = slice(start, start + (table.blocks.wide_tokens if wanted.careful else table.blocks.tokens))
        tokens = batch.block(at, table)
        looked = careful(tokens, table, wanted) if wanted.careful else quick(tokens, table, wanted)
        if looked is None:
            wanted.careful = True  # what one block is like, the next will be
            continue
        start, (seen, grad) = at.stop, looked
        if wanted.any:
            _targets(tokens, table, wanted, seen, grad)
            wanted.started = True
        _note(found, at, tokens, table, seen)
        if grad is not None and found.hidden is not None:
            found.factor += (grad * batch.hidden[at].to(grad.dtype)).sum(dtype=table.exact)
            found.hidden[at] = grad.mul_(batch.factor) if batch.factor != 1.0 else grad
    if wanted.started:
        _finish(table, wanted)
    return found


def _note(found: Found, at: slice, tokens: Tokens, table: Table, seen: Seen) -> None:
    losses = tokens.kept * (seen.lse - seen.target)
    if seen.spread is not None:
        losses += (table.total * seen.lse - seen.spread) * (table.smoothing / table.vocab)
    z = table.z_loss * seen.lse.square()
    found.total += (losses * tokens.share).sum() + (z * tokens.share_z).sum()
    found.losses[at], found.lse[at] = losses + z, seen.lse
    if found.own is not None and seen.own is not None:
        found.own[at] = seen.own
    if found.best is not None and seen.best is not None:
        found.best[at] = seen.best


def _targets(tokens: Tokens, table: Table, wanted: Wanted, seen: Seen, grad: Tensor | None) -> None:
    """What the targets' own logits, and label smoothing without a soft cap, contribute to gradients."""
    log = seen.target - seen.lse
    pull = tokens.share * tokens.kept * -torch.expm1(log) - tokens.beside(table, seen.lse) * log.exp()
    if table.soft_cap is not None:
        pull = pull * (1.0 - (seen.target / table.soft_cap).square())
    aim = tokens.aim
    pull = aim.of(pull.to(table.wide))
    column = pull.unsqueeze(-1)
    if grad is not None:
        aim.subtract(grad, aim.rows.to(table.wide), column)
    if wanted.table is not None:
        wanted.table.index_add_(0, aim.ids, aim.of(tokens.read) * column, alpha=-1.0)
    if wanted.bias is not None:
        wanted.bias.index_add_(0, aim.ids, pull, alpha=-1.0)
    if table.column_sums is not None:
        smoothed = tokens.smoothed(table)
        if grad is not None:
            grad.addcmul_(smoothed.unsqueeze(-1), table.column_sums, value=-1.0)
        taken = smoothed @ tokens.read
        wanted.smoothed = taken if wanted.smoothed is None else wanted.smoothed + taken
        wanted.smoothed_bias += float(smoothed.sum(dtype=table.exact))


def _finish(table: Table, wanted: Wanted) -> None:
    """Take what label smoothing takes from every row alike."""
    if wanted.smoothed is None:
        return
    weight = None if table.weight is None else table.weight.to(table.wide)
    if wanted.table is not None and weight is None:
        wanted.table.sub_(wanted.smoothed)
    elif wanted.table is not None and weight is not None:
        wanted.table.addr_(weight, wanted.smoothed, alpha=-1.0)
    if wanted.bias is not None:
        wanted.bias.sub_(wanted.smoothed_bias if weight is None else weight * wanted.smoothed_bias)
