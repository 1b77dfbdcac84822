"""One run on many processes, as torchrun starts them: each takes its share of a batch, rank 0 keeps what comes of it.

Every rank goes through the same runs in the same order. What must not differ between them, such as which runs are left,
rank 0 says. A run that fails on one rank cannot go on elsewhere: it ends all of them, and the same command resumes.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from tiebeam.errors import BackendError, RangeError, TiebeamError

if TYPE_CHECKING:
    from torch import Tensor

    from tiebeam.zoo.torch.minigpt import MiniGPT

Thing = TypeVar("Thing")


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process among those that share a run.

    Attributes:
        rank: Its number; 0 records.
        count: How many there are.
    """

    rank: int = 0
    count: int = 1

    @property
    def first(self) -> bool:
        """Whether this one records, and speaks."""
        return self.rank == 0

    def agree(self, thing: Thing) -> Thing:
        """Return what rank 0 has."""
        if self.count == 1:
            return thing
        import torch.distributed as dist

        held = [thing]
        dist.broadcast_object_list(held, src=0)
        return held[0]

    def total(self, value: float) -> float:
        """Return the sum over ranks."""
        if self.count == 1:
            return value
        import torch
        import torch.distributed as dist

        held = torch.tensor(value, dtype=torch.float64)
        dist.all_reduce(held)
        return float(held)

    @contextmanager
    def in_turn(self) -> Iterator[None]:
        """Rank 0 first, then all others: what it leaves on disk they find. Where it fails they are not let in."""
        if not self.first:
            self.agree(None)
        yield
        if self.first:
            self.agree(None)

    def check_batch(self, batch: int) -> None:
        """Raise where a batch cannot be shared out evenly.

        Raises:
            RangeError: It cannot.

        Example:
            >>> Ranks(0, 2).check_batch(8)
        """
        if batch % self.count:
            raise RangeError("a batch is shared out evenly", got=f"{batch} windows for {self.count} processes")

    def losses(self, model: "MiniGPT") -> "Callable[[Tensor], Tensor]":
        """Return what gives the loss of this rank's share of a batch, whose backward pass averages over ranks.

        Its value is of the share alone. Parameters may be exchanged between two calls.
        """
        if self.count == 1:
            return model.loss
        from tiebeam.experiments.replicas import Replica

        return Replica(model, self.rank, self.count)


ALONE = Ranks()


@contextmanager
def joined(packages: tuple[str, ...]) -> Iterator[Ranks]:
    """Join the processes that torchrun has started beside this one, and leave them at the end.

    Args:
        packages: Of the experiment; one that does without torch has no batch to share.

    Raises:
        BackendError: There are several, and the experiment or the environment does not know how; or another one has
            ended before this one did.

    Example:
        >>> with joined(("torch",)) as ranks:
        ...     ranks
        Ranks(rank=0, count=1)
    """
    said = os.environ.get("WORLD_SIZE") or "1"
    if not said.isdecimal():
        raise BackendError("the number of processes that share a run", got=f"WORLD_SIZE={said}", expected="a number")
    count = int(said)
    if count <= 1:
        yield ALONE
        return
    if "torch" not in packages:
        raise BackendError(
            "this experiment trains no PyTorch model, and cannot be shared out by torchrun",
            got=f"WORLD_SIZE={count}",
            hint="run it without torchrun; --workers shares its runs out",
        )
    if missing := [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]:
        raise BackendError(
            "several processes are to share a run, but not where they meet",
            got=f"WORLD_SIZE={count} without {', '.join(missing)}",
            hint="start them with torchrun, or unset WORLD_SIZE",
        )
    import torch
    import torch.distributed as dist

    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    dist.init_process_group()  # gloo for what lies on a CPU, NCCL for a GPU
    try:
        yield Ranks(dist.get_rank(), dist.get_world_size())
    except RuntimeError as error:
        if isinstance(error, TiebeamError) or not lost(error):
            raise
        raise BackendError(
            "another process of this run has ended, and this one cannot go on alone",
            got=str(error).splitlines()[0],
            hint="it may have said why, or have been killed; the same command goes on from what is finished",
        ) from error
    finally:
        dist.destroy_process_group()


def lost(error: BaseException) -> bool:
    """Whether an error says that another process cannot be reached any more.

    Example:
        >>> lost(RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:42398"))
        True
    """
    said = str(error)  # gloo raises RuntimeError, whatever has happened
    return isinstance(error, RuntimeError) and any(w in said for w in ("gloo/transport", "NCCL", "closed by peer"))
