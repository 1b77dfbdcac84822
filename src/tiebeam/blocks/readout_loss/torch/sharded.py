"""A table whose rows lie in several processes (DTensor): what each computes, and what is summed."""

import sys
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tiebeam.blocks.readout_loss.torch.ranks import Ranks, remember
from tiebeam.errors import InputError

HINT = "shard the vocab axis over one dimension of the mesh (RowwiseParallel of the lookup), and no other"


def is_sharded(t: object) -> bool:
    """Whether it is a DTensor, without loading what would make one."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(t, module.DTensor)


@dataclass(frozen=True)
class Shard:
    """This process's part of a call; gradients find their way back through DTensor.

    Attributes:
        first, vocab: Id of the first row here, and rows in all processes.
        group: See `ranks`; "" where the whole table is here.
    """

    hidden: Tensor
    table: Tensor
    bias: Tensor | None
    factor: float | Tensor
    first: int = 0
    vocab: int = 0
    group: str = ""


def shard(hidden: Tensor, table: Any, bias: Tensor | None, factor: float | Tensor, targets: Tensor) -> Shard:
    """Return this process's part.

    Every process sees all tokens: a hidden state that is itself spread is gathered.

    Args:
        table: A DTensor, (vocab, width), sharded by rows over one dimension of a mesh, or replicated.

    Raises:
        InputError: It is spread in another way, or processes were given different tokens.
    """
    from torch.distributed.tensor import DTensor, Partial, Replicate

    mesh, placements = table.device_mesh, tuple(table.placements)
    over = [i for i, p in enumerate(placements) if not p.is_replicate()]
    if len(over) > 1 or any(not placements[i].is_shard(0) for i in over):
        raise InputError(
            "readout_loss cannot read a table that is spread like this",
            got=f"placements {placements}",
            expected="Shard(0) over one dimension of the mesh, Replicate over the others",
            hint=HINT,
        )
    everywhere = [Replicate()] * mesh.ndim
    summed: list[Any] = [Partial() if i in over else Replicate() for i in range(mesh.ndim)]

    def whole(t: Tensor) -> Tensor:
        """All of a tensor in every process; its gradient is the sum of theirs."""
        spread = t if is_sharded(t) else DTensor.from_local(t, mesh, everywhere, run_check=False)
        return spread.redistribute(mesh, everywhere).to_local(grad_placements=summed)  # type: ignore[attr-defined,no-any-return]

    def rows(t: Any) -> Tensor:
        """This process's rows."""
        if not is_sharded(t):
            t = DTensor.from_local(t, mesh, everywhere, run_check=False)
        return t.redistribute(mesh, placements).to_local(grad_placements=placements)  # type: ignore[no-any-return]

    group = mesh.get_group(over[0]) if over else None
    if group is not None:
        _check_same(targets, group)
    return Shard(
        hidden=whole(hidden),
        table=rows(table),
        bias=None if bias is None else rows(bias),
        factor=whole(factor) if isinstance(factor, Tensor) else factor,
        first=_first(table.shape[0], mesh.size(over[0]), mesh.get_local_rank(over[0])) if over else 0,
        vocab=table.shape[0],
        group="" if group is None else remember(group),
    )


def gathered(t: Any) -> Any:
    """All of a tensor without a gradient, in every process."""
    return t.full_tensor() if t is not None and is_sharded(t) else t


def check_not_sharded(tensors: dict[str, Tensor], table: Tensor) -> None:
    """Raise where something is a DTensor and the table is none.

    Raises:
        InputError: It is.
    """
    for name, t in tensors.items():
        if is_sharded(t) and not is_sharded(table):
            raise InputError(
                f"readout_loss was given a table of this process and a DTensor beside it: {name}",
                got=f"{name} of placements {tuple(t.placements)}",  # type: ignore[attr-defined]
                expected="a table that is a DTensor too, or none",
                hint=f"{name}.full_tensor(); or distribute_tensor(table, mesh, [Shard(0)])",
            )


def _first(rows: int, parts: int, part: int) -> int:
    """Where a shard begins, as `torch.chunk` cuts."""
    return min(-(-rows // parts) * part, rows)


def _check_same(targets: Tensor, group: dist.ProcessGroup) -> None:
    """Raise where processes that share a table were given different tokens (those of data-parallel training).

    Raises:
        InputError: They were.
    """
    places = torch.arange(1, targets.numel() + 1, device=targets.device, dtype=torch.int64)
    digest = torch.stack([(targets.reshape(-1).long() * places).sum(), places.sum()])
    both = torch.cat([digest, -digest])
    Ranks(remember(group)).max_(both)
    if bool((both[:2] != -both[2:]).any()):
        raise InputError(
            "processes that hold rows of one table were given different targets",
            got="targets that differ between the processes of the table's mesh",
            expected="the same tokens in each (tensor parallelism)",
            hint="in data-parallel training call the loss inside the forward pass of the sharded module, where the "
            "table is whole: embed.loss(hidden, targets)",
        )
