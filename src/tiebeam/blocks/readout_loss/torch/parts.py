"""A table, a block of tokens, what is seen of them and which gradients are wanted."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from tiebeam.blocks.readout_loss.sizes import Blocks
from tiebeam.blocks.readout_loss.torch.ranks import Ranks


@dataclass(frozen=True)
class Table:
    """A table, or this process's rows of it, and how it is read.

    Attributes:
        rows: (rows, width).
        bias, weight: (rows,), or None.
        first: Id of the first row.
        vocab: Rows in all processes.
        total: Sum of the weights of all of them; `vocab` where there are none.
        smoothing, soft_cap, z_loss: As asked for.
        product: Dtype of what is multiplied.
        wide: Dtype of products that are added up.
        exact: Dtype of what there is one number of for each token.
        column_sums: (width,), the weighted sum of this process's rows, where labels are smoothed without a soft cap.
    """

    rows: Tensor
    bias: Tensor | None
    weight: Tensor | None
    first: int
    vocab: int
    total: float
    smoothing: float
    soft_cap: float | None
    z_loss: float
    product: torch.dtype
    wide: torch.dtype
    exact: torch.dtype
    blocks: Blocks
    ranks: Ranks
    column_sums: Tensor | None = None

    def pieces(self) -> Iterator[slice]:
        """Rows that are worked on at a time."""
        for lo in range(0, len(self.rows), self.blocks.rows):
            yield slice(lo, min(lo + self.blocks.rows, len(self.rows)))

    def aim(self, ids: Tensor) -> "Aim":
        """The rows that ids point at, as far as this process has them."""
        local = ids - self.first
        if self.ranks.alone:
            return Aim(None, local, self.rows[local])
        at = ((local >= 0) & (local < len(self.rows))).nonzero().flatten()
        return Aim(at, local[at], self.rows[local[at]])

    def summed(self, column_sums: Tensor) -> "Table":
        """The same with the sums of its columns."""
        return replace(self, column_sums=column_sums)

    @property
    def dense_smoothing(self) -> bool:
        """Whether label smoothing differs from row to row, through the slope of a soft cap."""
        return self.smoothing > 0 and self.soft_cap is not None


@dataclass(frozen=True)
class Aim:
    """One row of the table for each token.

    Attributes:
        at: The tokens whose row is in this process, (k,); None where each one's is.
        ids: Places of the rows among those of this process, (k,).
        rows: (k, width), of the table's dtype.
    """

    at: Tensor | None
    ids: Tensor
    rows: Tensor

    def of(self, t: Tensor) -> Tensor:
        """What a tensor holds of these tokens."""
        return t if self.at is None else t[self.at]

    def subtract(self, out: Tensor, rows: Tensor, column: Tensor) -> None:
        """Take `rows * column` from what belongs to these tokens; `column` is (k, 1)."""
        if self.at is None:
            out.addcmul_(rows, column, value=-1.0)
        else:
            out.index_add_(0, self.at, rows * column, alpha=-1.0)


@dataclass(frozen=True)
class Tokens:
    """A block of tokens.

    Attributes:
        read: (n, width), the hidden state times the factor, of dtype `wide`.
        targets: (n,).
        aim: At their rows.
        inputs: (n,), ids of the tokens read, or None.
        share: (n,), what the cross entropy of each counts in the sum.
        share_z: (n,), what its z-loss counts.
        kept: (n,), the weight of each target times one less the smoothing.
    """

    read: Tensor
    targets: Tensor
    aim: Aim
    inputs: Tensor | None
    share: Tensor
    share_z: Tensor
    kept: Tensor

    def pull(self, table: Table, lse: Tensor) -> Tensor:
        """Derivative of the sum with respect to the log of each denominator, (n,)."""
        return self.share * self.kept + self.beside(table, lse)

    def beside(self, table: Table, lse: Tensor) -> Tensor:
        """What label smoothing and z-loss are of `pull`, (n,)."""
        spread = table.smoothing * table.total / table.vocab
        return self.share * spread + 2.0 * table.z_loss * self.share_z * lse

    def smoothed(self, table: Table) -> Tensor:
        """What label smoothing takes from every logit, (n,), of dtype `wide`; before weights."""
        return (self.share * (table.smoothing / table.vocab)).to(table.wide)


@dataclass
class Seen:
    """What is known of a block of tokens: (n,) each, of dtype `exact`.

    Attributes:
        lse: Log of the softmax's denominator.
        target, own: Logits of the target, and of the token read.
        spread: Weighted sum of all logits, where labels are smoothed.
        best: Whether no logit is above the target's.
    """

    lse: Tensor
    target: Tensor
    own: Tensor | None
    spread: Tensor | None
    best: Tensor | None


@dataclass
class Wanted:
    """What is asked for, filled block by block.

    Attributes:
        hidden: Whether the gradient of the hidden state is.
        table: (rows, width), of dtype `wide`: its gradient, or None.
        bias: (rows,), of dtype `wide`: likewise.
        best: Whether `Seen.best` is.
        started: Whether `table` holds anything yet.
        careful: Whether `quick` has given up.
        smoothed: (width,), what label smoothing without a soft cap takes from every row, before weights.
        smoothed_bias: The same of every bias.
    """

    hidden: bool
    table: Tensor | None
    bias: Tensor | None
    best: bool = False
    started: bool = False
    careful: bool = False
    smoothed: Tensor | None = None
    smoothed_bias: float = 0.0
    _memory: dict[torch.dtype, Tensor] = field(default_factory=dict)

    @property
    def any(self) -> bool:
        """Whether any gradient is."""
        return self.hidden or self.table is not None or self.bias is not None

    def gradient(self, read: Tensor, table: Table) -> Tensor | None:
        """Memory for that of `read`; zero where this process has no row of the table to fill it from."""
        if not self.hidden:
            return None
        return torch.empty_like(read) if len(table.rows) else torch.zeros_like(read)

    def room(self, tokens: int, table: Table, dtype: torch.dtype) -> "Room":
        """Memory for logits: against all rows where gradients are wanted, else against one piece of them."""
        size = tokens * (len(table.rows) if self.any else table.blocks.rows)
        memory = self._memory.get(dtype)
        if memory is None or memory.numel() < size:
            self._memory.clear()
            memory = self._memory[dtype] = torch.empty(size, dtype=dtype, device=table.rows.device)
        return Room(memory, tokens, keeps=self.any)


@dataclass(frozen=True)
class Room:
    """Memory in which pieces lie one behind another, each contiguous; or one in place of another."""

    memory: Tensor
    tokens: int
    keeps: bool

    def piece(self, piece: slice) -> Tensor:
        """(tokens, rows of the piece)."""
        start = piece.start * self.tokens if self.keeps else 0
        rows = piece.stop - piece.start
        return self.memory[start : start + self.tokens * rows].view(self.tokens, rows)


@dataclass(frozen=True)
class Own:
    """What each token's target has in a piece, (n, 1); of another piece's targets, what stands somewhere in this one.

    Attributes:
        at, here: The place, and whether it is the target's.
        value: What stood there.
    """

    at: Tensor
    here: Tensor
    value: Tensor

    @classmethod
    def taken_out(cls, values: Tensor, targets: Tensor, piece: slice, left: float) -> "Own":
        """Leave something else in the places of targets.

        What a target counts is known exactly from its one logit. Where nearly all of a softmax lies on it, the rest
        would be lost as a difference of sums, and all of it to the rounding of a narrow product.

        Args:
            values: (n, rows), written to.
            targets: (n,), as rows of this process's table.
        """
        at = (targets - piece.start).clamp(0, values.shape[1] - 1).unsqueeze(-1)
        here = ((targets >= piece.start) & (targets < piece.stop)).unsqueeze(-1)
        own = cls(at, here, values.gather(1, at))
        values.scatter_(1, at, own.value.masked_fill(here, left))
        return own

    def put_back(self, values: Tensor) -> None:
        """Make `values` what they were."""
        values.scatter_(1, self.at, self.value)


class Top:
    """Whether each target's logit is the largest: told from the logits as they pass, or what grows with them."""

    def __init__(self, targets: Tensor, table: Table) -> None:
        self._ranks = table.ranks
        self._most = torch.full(targets.shape, -math.inf, dtype=table.wide, device=targets.device)
        self._own = torch.zeros_like(self._most)

    def see(self, values: Tensor) -> None:
        """Take a piece, (n, rows), into account, out of which the targets' own values were taken."""
        self._most = torch.maximum(self._most, values.amax(-1))

    def own(self, at: Tensor, values: Tensor) -> None:
        """Note what targets themselves have: `at` are their tokens, or whether each token's is among `values`."""
        if at.dtype == torch.bool:
            self._own = torch.where(at, values, self._own)
        else:
            self._own[at] = values

    def best(self) -> Tensor:
        """(n,), bool; an equal logit takes nothing from it."""
        return self._ranks.sum_(self._own) >= self._ranks.max_(self._most)


def multiply(out: Tensor, a: Tensor, b: Tensor, *, add: bool) -> None:
    """Write `a @ b` to `out`, or add it there; a narrower product is widened when it is whole."""
    if a.dtype == out.dtype:
        if add:
            out.addmm_(a, b)
        else:
            torch.mm(a, b, out=out)
    elif add:
        out.add_(torch.mm(a, b))
    else:
        out.copy_(torch.mm(a, b))


def logits_of(aim: Aim, tokens: Tokens, table: Table) -> Tensor:
    """The logit of one row for each token, (n,), of dtype `exact`."""
    products = (aim.of(tokens.read).to(table.exact) * aim.rows).sum(-1)
    if table.bias is not None:
        products += table.bias[aim.ids].to(table.exact)
    found = products
    if aim.at is not None:
        found = torch.zeros(tokens.targets.shape, dtype=table.exact, device=products.device)
        found[aim.at] = products
        table.ranks.sum_(found)
    return found if table.soft_cap is None else table.soft_cap * torch.tanh(found / table.soft_cap)


def seen(tokens: Tokens, table: Table, lse: Tensor, target: Tensor, top: Top | None, spread: Tensor | None) -> Seen:
    """What is known once the denominators are."""
    own = None if tokens.inputs is None else logits_of(table.aim(tokens.inputs), tokens, table)
    return Seen(lse, target, own, spread, None if top is None else top.best())
