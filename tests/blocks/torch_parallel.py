"""Two processes train one block, sharded and replicated: `python -m tests.blocks.torch_parallel FILE`."""

import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from tiebeam.torch import TiedEmbedding

PROCESSES = 2


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.body, self.norm = TiedEmbedding(32, 16), nn.Linear(16, 16), nn.LayerNorm(16)

    def forward(self, ids):
        return self.embed.readout(self.norm(self.body(self.embed(ids))))


def gradient(model, ids, table=None):
    """Of the table, gathered."""
    model(ids).logsumexp(-1).mean().backward()
    found = (model if table is None else table).embed.weight.grad
    return found.full_tensor() if hasattr(found, "full_tensor") else found


def sharded(ids, mesh, *, alone):
    model = Model()
    if alone:
        fully_shard(model.embed, mesh=mesh)  # its table is gathered for a pass of the block alone
    fully_shard(model, mesh=mesh)
    return gradient(model, ids)


def work(rank, file):
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=PROCESSES)
    mesh = init_device_mesh("cpu", (PROCESSES,))
    every = torch.arange(16).view(4, 4)
    own = every.chunk(PROCESSES)[rank]
    want, model = gradient(Model(), every), Model()
    torch.testing.assert_close(gradient(nn.parallel.DistributedDataParallel(model), own, model), want)
    torch.testing.assert_close(sharded(own, mesh, alone=False), want)
    torch.testing.assert_close(sharded(own, mesh, alone=True), want)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(work, (sys.argv[1],), nprocs=PROCESSES)
