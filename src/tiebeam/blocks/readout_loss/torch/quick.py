"""A block of tokens whose logits are exponentiated as they are.

Nothing but three products, an exponential and a sum touches the logits: the denominator of a softmax scales the
hidden state, which is smaller, and not the probabilities. Logits come out of the product in base 2, the factor having
gone into the hidden state, because `exp2` costs half of `exp`. Gives up where a denominator leaves the range in which
all of this is exact.
"""

import math

import torch
from torch import Tensor

from tiebeam.blocks.readout_loss.torch.parts import (
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

LOG2E = math.log2(math.e)
LARGEST_CAP = 64.0  # its sigmoid is rounded at 1/2, where small logits are a difference: to 1e-8 of the cap
LEAST, MOST = 2.0**-30, 2.0**60  # denominators whose product with a hidden state stays a normal number
LEAST_ROW = 2.0**-100  # the same of one over them, times what a token counts


def quick(tokens: Tokens, table: Table, wanted: Wanted) -> tuple[Seen, Tensor | None] | None:
    """Look at a block of tokens, and add the gradients of table and bias to what is wanted.

    Returns:
        What was seen and the gradient of `tokens.read` (both without what the targets' own logits contribute), or
        None: nothing was added then.
    """
    count, device = len(tokens.targets), table.rows.device
    room = wanted.room(count, table, table.product)
    exponentials = _Exponentials(tokens, table, wanted)
    targets, target = _Targets(tokens, table), logits_of(tokens.aim, tokens, table)
    sums = torch.zeros(count, dtype=table.exact, device=device)
    top = Top(tokens.targets, table) if wanted.best else None
    grad = wanted.gradient(tokens.read, table)
    for number, piece in enumerate(table.pieces()):
        rows, kept = table.rows[piece].to(table.product), room.piece(piece)
        e = exponentials.of(rows, piece, kept)
        targets.take_out(number, e, top)
        sums += e.sum(-1)
        if number == 0 and table.ranks.alone and not bool((sums <= MOST).all()):
            return None  # before the rest is computed for nothing
        if top is not None:
            top.see(e)
        if wanted.any:
            exponentials.slope(e)
            if kept is not e:
                kept.copy_(e)
        if grad is not None:
            multiply(grad, kept, rows, add=number > 0)
    sums = table.ranks.sum_(sums) + target.exp()
    lse = sums.log()
    by = (tokens.pull(table, lse) / sums).mul_(exponentials.unit)
    vanishes = (by != 0.0) & (by.abs() < LEAST_ROW)
    if not bool(((sums >= LEAST) & (sums <= MOST) & ~vanishes).all()):
        return None
    found = seen(tokens, table, lse, target, top, _spread(tokens, table))
    if wanted.any:
        row = by.to(table.wide).unsqueeze(-1)
        if grad is not None:
            grad.mul_(row)
        _tables(tokens, table, wanted, room, row)
    return found, grad


class _Targets:
    """Which targets stand in which piece, and where: see `Own`, whose work it does with one operation for a piece."""

    def __init__(self, tokens: Tokens, table: Table) -> None:
        count, rows = len(table.rows), table.blocks.rows
        ids, self.tokens = (tokens.targets - table.first).sort()
        ends = torch.arange(0, count + rows, rows, device=ids.device)  # of pieces, and where the first begins
        self.bounds = torch.searchsorted(ids, ends.clamp_(max=count)).tolist()
        last = (count - 1) // rows * rows
        self.places = self.tokens * rows + ids % rows
        at = self.bounds[-2] if count else 0
        self.places[at:] = self.tokens[at:] * (count - last) + ids[at:] - last  # the last piece is narrower

    def take_out(self, number: int, values: Tensor, top: Top | None) -> None:
        """Leave 0 in the places of targets of a piece, (n, rows), contiguous."""
        here = slice(*self.bounds[number : number + 2])
        if here.start == here.stop:
            return
        places, flat = self.places[here], values.view(-1)
        if top is not None:
            top.own(self.tokens[here], flat[places])
        flat.index_fill_(0, places, 0.0)


class _Exponentials:
    """Makes exponentials of logits, piece by piece.

    Attributes:
        unit: What the slope of a soft cap, as `slope` leaves it, is to be multiplied by.
    """

    def __init__(self, tokens: Tokens, table: Table, wanted: Wanted) -> None:
        self.table, cap = table, table.soft_cap
        self.narrow = table.product != table.wide
        self.scale = LOG2E if cap is None else 2.0 / cap  # tanh(z) is 2 * sigmoid(2 * z) - 1, which is cheaper
        self.unit = 1.0 if cap is None else 4.0
        self.read = (tokens.read if self.narrow else tokens.read * self.scale).to(table.product)
        size = len(tokens.targets) * table.blocks.rows if cap is not None else 0
        self.sigmoids = torch.empty(size, dtype=table.wide, device=table.rows.device)
        self.last = self.sigmoids

    def of(self, rows: Tensor, piece: slice, out: Tensor) -> Tensor:
        """(tokens, rows), of dtype `wide`: `out` itself where that is its dtype."""
        torch.mm(self.read, rows.mT, out=out)
        e = out.to(self.table.wide).mul_(self.scale) if self.narrow else out
        if self.table.bias is not None:
            e.add_(self.table.bias[piece], alpha=self.scale)
        if self.table.soft_cap is not None:
            self.last = self.sigmoids[: e.numel()].view_as(e)
            torch.sigmoid(e, out=self.last)
            torch.sub(self.last, 0.5, out=e).mul_(2.0 * self.table.soft_cap * LOG2E)
        return e.exp2_()

    def slope(self, e: Tensor) -> None:
        """Multiply the exponentials by a quarter of the soft cap's slope at each."""
        if self.table.soft_cap is not None:
            e.mul_(self.last.addcmul_(self.last, self.last, value=-1.0))


def _spread(tokens: Tokens, table: Table) -> Tensor | None:
    """Weighted sum of all logits: one product, for without a soft cap they are linear in the rows."""
    if table.column_sums is None:
        return None
    spread = (tokens.read @ table.column_sums).to(table.exact)
    if table.bias is not None:
        spread += (table.bias if table.weight is None else table.bias * table.weight).sum(dtype=table.exact)
    return table.ranks.sum_(spread)


def _tables(tokens: Tokens, table: Table, wanted: Wanted, room: Room, row: Tensor) -> None:
    weighted = (tokens.read * row).to(table.product)
    for piece in table.pieces():
        e = room.piece(piece)
        if wanted.table is not None:
            multiply(wanted.table[piece], e.mT, weighted, add=wanted.started)
        if wanted.bias is not None:
            wanted.bias[piece] += torch.mv(e.to(table.wide).mT, row.squeeze(-1))  # what targets take is near this sum
