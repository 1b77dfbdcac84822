"""A model that several processes train together, each on its share of a batch."""

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from tiebeam.zoo.torch.minigpt import MiniGPT


class Replica:
    """`replica(batch)` is the loss of this rank's share; its backward pass leaves the gradient of the whole batch.

    Args:
        model: The same on every rank.
        rank, count: This process among those that share it.
    """

    def __init__(self, model: MiniGPT, rank: int, count: int) -> None:
        self._model, self._rank, self._count = model, rank, count
        self._known: list[int] = []

    def __call__(self, batch: Tensor) -> Tensor:
        """Return the loss of a share of `batch`, (windows, tokens), whose size the ranks divide. Unit: nats."""
        parameters = [id(p) for p in self._model.parameters()]
        if parameters != self._known:  # the first time, and where a readout was given a table of its own
            self._known, self._shared = parameters, DistributedDataParallel(_Loss(self._model))
        mine = batch.tensor_split(self._count)[self._rank]
        loss: Tensor = self._shared(mine)
        return loss


class _Loss(nn.Module):
    """DDP waits for `forward`."""

    def __init__(self, model: MiniGPT) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Tensor:
        return self.model.loss(ids)
