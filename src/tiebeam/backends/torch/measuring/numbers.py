"""Numbers about logits, tables and gradients, without a second copy of any."""

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tiebeam.backends.torch.parts import sharded
from tiebeam.core.measuring.passes import Drift, Role, Sent

ROWS = 64  # rows of logits compared at a time
CHUNK = 1 << 20  # elements of a table added or multiplied at a time: what a cache holds


def dense(t: Tensor) -> Tensor:
    """The tensor without sparsity, and whole where it lies in shards: every process then has to ask for it."""
    if sharded(t):
        return t.full_tensor()
    return t.to_dense() if t.layout is not torch.strided else t


def wide(t: Tensor) -> torch.dtype:
    """What its entries are added up in."""
    return torch.float64 if t.dtype == torch.float64 else torch.float32


def rows_reached(grad: Tensor) -> tuple[float, Tensor]:
    """Frobenius norm, and the rows that are not all zero.

    Args:
        grad: (vocab, width), any float dtype.

    Example:
        >>> rows_reached(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
        (5.0, tensor([0]))
    """
    norms = torch.linalg.vector_norm(grad, dim=1, dtype=wide(grad))
    reached = norms != 0
    norm = float(torch.linalg.vector_norm(norms))
    if not bool(reached.all()):  # the squares of tiny entries vanish: the largest entry does not
        reached = _filled(grad)
        if not norm and bool(reached.any()):
            norm = float(torch.linalg.vector_norm(grad[reached].double()))
    return norm, reached.nonzero().flatten()


def adds_up(whole: Tensor, few: Tensor, full: Tensor, at: Tensor) -> bool:
    """Whether `whole` is exactly the sum of the two, `few` being zero outside of the rows `at`: in one pass.

    Args:
        at: In rising order. Where it is most of the rows, nothing is gained, and the answer is False.

    Example:
        >>> full, at = torch.ones(9, 2), torch.tensor([4])
        >>> few = torch.zeros(9, 2).index_fill(0, at, 2.0)
        >>> adds_up(full + few, few, full, at), adds_up(full, few, full, at)
        (True, False)
    """
    if len(at) > len(whole) // 8 or not torch.equal(whole[at], few[at] + full[at]):
        return False
    edges = [-1, *at.tolist(), len(whole)]
    return all(torch.equal(whole[a + 1 : b], full[a + 1 : b]) for a, b in pairwise(edges))


def _filled(rows: Tensor) -> Tensor:
    """Which rows hold anything but zeros; a maximum is a sixth of the price of the norm that is one."""
    return (rows.amax(1) != 0) | (rows.amin(1) != 0)


def inner(a: Tensor, b: Tensor) -> float:
    """Inner product of two matrices of one shape, summed in float64, chunk by chunk."""
    rows = max(1, CHUNK // max(1, a.shape[1]))

    def added(dtype: torch.dtype) -> float:
        pairs = zip(a.split(rows), b.split(rows), strict=True)
        return sum(float((x.to(dtype) * y).sum(dtype=torch.float64)) for x, y in pairs)

    return added(wide(a)) or added(torch.float64)  # products of tiny entries vanish in float32


def own_token(logits: Tensor, own: Tensor) -> tuple[float, float]:
    """Mean logit and mean rank of a token in each row, 1 being first; equal logits share their mean rank.

    Args:
        logits: (rows, vocab).
        own: (rows,), the tokens.

    Example:
        >>> own_token(torch.tensor([[0.0, 2.0, 1.0]]), torch.tensor([2]))
        (1.0, 2.0)
    """
    mine = logits.gather(1, own[:, None])
    rank = 0.0
    for rows, at in zip(logits.split(ROWS), mine.split(ROWS), strict=True):
        above, upto = torch.count_nonzero(rows > at), torch.count_nonzero(rows >= at)
        rank += float(above + upto + len(rows)) / 2
    return float(mine.sum(dtype=torch.float64)) / len(own), rank / len(own)


def gram(table: Tensor, vocab_axis: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """`table.T @ table` of a (vocab, width) table, chunk by chunk."""
    whole = dense(table.detach())
    rows = whole if vocab_axis == 0 else whole.mT
    total = torch.zeros(rows.shape[1], rows.shape[1], dtype=torch.float64)
    for chunk in rows.split(max(1, CHUNK // max(1, rows.shape[1]))):
        exact = chunk.to(wide(chunk))
        total += (exact.mT @ exact).double().cpu()
    return total.numpy()


def drift(before: Tensor, table: Tensor, vocab_axis: int, sent: Mapping[tuple[int, Role], Sent], index: int) -> Drift:
    """Where a table went, and how much of that is either role's descent."""
    old, now = (t if vocab_axis == 0 else t.mT for t in (dense(before), dense(table.detach())))
    change = now.to(wide(now)) - old.to(now.device, wide(now))
    norm, rows = rows_reached(change)
    size = float(torch.linalg.vector_norm(old, dtype=wide(old)))

    def along(role: Role) -> float | None:
        found = sent.get((index, role))
        if found is None or found.grad is None or not found.norm * norm or found.grad.shape != change.shape:
            return None
        return -inner(change, found.grad) / (found.norm * norm)

    return Drift(norm / size if size else math.inf, along("lookup"), along("readout"), len(change) - len(rows))


def silent_rows(optimizer: Any, table: Tensor, vocab_axis: int) -> int | None:
    """Rows that are zero in every state of the table's shape, or None where there is none."""
    state = getattr(optimizer, "state", {}).get(table, {}) if optimizer is not None else {}
    moments = [v for v in state.values() if isinstance(v, Tensor) and v.shape == table.shape]
    if not moments:
        return None
    heard = torch.zeros(table.shape[vocab_axis], dtype=torch.bool, device=table.device)
    for moment in moments:
        rows = dense(moment) if vocab_axis == 0 else dense(moment).mT
        heard |= _filled(rows).to(heard.device)
    return int((~heard).sum())
