"""Sums over processes that each hold some rows of one table."""

from dataclasses import dataclass
from weakref import WeakValueDictionary

import torch
import torch.distributed as dist
from torch import Tensor

_GROUPS: WeakValueDictionary[str, "dist.ProcessGroup"] = WeakValueDictionary()


def remember(group: "dist.ProcessGroup") -> str:
    """Return the name by which an operator, which takes no objects, finds a group again."""
    _GROUPS[group.group_name] = group
    return str(group.group_name)


@dataclass(frozen=True, slots=True)
class Ranks:
    """The processes that share a table; "" is this one alone."""

    name: str = ""

    @property
    def alone(self) -> bool:
        return not self.name

    def most_rows(self, vocab: int) -> int:
        """Rows of the first process, of which none has more: all of them, or what `torch.chunk` cuts off first."""
        return -(-vocab // _GROUPS[self.name].size()) if self.name else vocab

    def sum_(self, t: Tensor) -> Tensor:
        """Sum over processes, in place."""
        if self.name:
            dist.all_reduce(t, dist.ReduceOp.SUM, group=_GROUPS[self.name])
        return t

    def max_(self, t: Tensor) -> Tensor:
        """Maximum over processes, in place."""
        if self.name:
            dist.all_reduce(t, dist.ReduceOp.MAX, group=_GROUPS[self.name])
        return t

    def any(self, mine: bool, device: torch.device) -> bool:
        """Whether it is so in any process."""
        return mine if self.alone else bool(self.max_(torch.tensor(int(mine), device=device)))
