"""Two processes compute one loss: `python -m tests.readout_loss.processes FILE`."""

import sys

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from tests.readout_loss.reference import Problem, cross_entropy
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from tiebeam.errors import InputError
from tiebeam.torch import TiedEmbedding, readout_loss

PROCESSES = 2
CASES = {
    "plain": {},
    "large logits": {"size": 300.0},
    "ragged rows": {"vocab": 9},
    "capped": {"soft_cap": 2.0, "bias": True, "factor": True},
    "smoothed": {"label_smoothing": 0.1, "weight": True, "bias": True, "z_loss": 0.01, "ignored": 3},
    "all": {"label_smoothing": 0.1, "weight": True, "soft_cap": 2.0, "z_loss": 0.01},
    "not reduced": {"reduction": "none"},
}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.body, self.norm = TiedEmbedding(32, 16), nn.Linear(16, 16), nn.LayerNorm(16)

    def forward(self, ids):
        return self.embed.loss(self.norm(self.body(self.embed(ids[:, :-1]))), ids[:, 1:])


def gradient(model, ids, table=None):
    """Of the table, gathered."""
    model(ids).backward()
    found = (model if table is None else table).embed.weight.grad
    return found.full_tensor() if isinstance(found, DTensor) else found


def fully_sharded(ids, mesh, *, alone):
    model = Model()
    if alone:
        fully_shard(model.embed, mesh=mesh)  # its table is gathered for a pass of the block alone
    fully_shard(model, mesh=mesh)
    return gradient(model, ids)


def data_parallel(rank, mesh):
    every = torch.arange(20).view(4, 5)
    own = every.chunk(PROCESSES)[rank]
    want, model = gradient(Model(), every), Model()
    torch.testing.assert_close(gradient(nn.parallel.DistributedDataParallel(model), own, model), want)
    torch.testing.assert_close(fully_sharded(own, mesh, alone=False), want)
    torch.testing.assert_close(fully_sharded(own, mesh, alone=True), want)


def rows_sharded(mesh, name, spread):
    """Every gradient, gathered, against that of one process."""
    problem = Problem.of((2, 5), **CASES[name])
    loss, *want = problem.run(cross_entropy)

    def sharded(hidden, table, targets, **options):
        if spread:  # along its tokens, as sequence parallelism leaves it
            hidden = DTensor.from_local(hidden, mesh, [Replicate()], run_check=False).redistribute(mesh, [Shard(0)])
        return readout_loss(hidden, table, targets, **options, chunk=4)

    problem.table = distribute_tensor(problem.table.detach(), mesh, [Shard(0)]).requires_grad_()
    found_loss, *found = problem.run(sharded)
    torch.testing.assert_close(found_loss, loss)
    whole = [g.full_tensor() if isinstance(g, DTensor) else g for g in found]
    torch.testing.assert_close(whole, want, rtol=1e-9, atol=1e-11)
    assert found[1].placements == (Shard(0),)


def statistics(mesh):
    problem = Problem.of((2, 5), ignored=2)
    inputs = problem.targets.clamp(0).flip(0)
    _, want = readout_loss(problem.hidden, problem.table, problem.targets, ids=inputs, returns="stats")
    table = distribute_tensor(problem.table.detach(), mesh, [Shard(0)])
    _, found = readout_loss(problem.hidden, table, problem.targets, ids=inputs, returns="stats")
    for name in ("logsumexp", "best", "own_logit"):
        torch.testing.assert_close(getattr(found, name), getattr(want, name), equal_nan=True)


def refused(rank, mesh):
    problem = Problem.of((4,))
    table = distribute_tensor(problem.table.detach(), mesh, [Shard(1)])
    with pytest.raises(InputError, match=r"spread like this(.|\n)*Shard\(0\)"):
        readout_loss(problem.hidden, table, problem.targets)
    table = distribute_tensor(problem.table.detach(), mesh, [Shard(0)])
    with pytest.raises(InputError, match="different targets"):
        readout_loss(problem.hidden, table, problem.targets + (rank == 1))
    hidden = problem.hidden.detach().clone()
    hidden[0, 0] = torch.nan if rank else 0.0
    with pytest.raises(InputError, match="index \\(0, 0\\)" if rank else "another process"):
        readout_loss(hidden, table, problem.targets)


def work(rank, file):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=PROCESSES)
    mesh = init_device_mesh("cpu", (PROCESSES,))
    data_parallel(rank, mesh)
    for name in CASES:
        rows_sharded(mesh, name, spread=False)
    rows_sharded(mesh, "capped", spread=True)
    statistics(mesh)
    refused(rank, mesh)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(work, (sys.argv[1],), nprocs=PROCESSES)
