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

import tiebeam
from tiebeam.errors import InputError
from tiebeam.torch import TiedEmbedding, readout_loss, use_readout_loss

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


def unequal_rows(mesh):
    """Processes whose rows are as many as blocks go by on one side of a limit, and one fewer on the other."""
    torch.manual_seed(0)
    table, hidden, targets = torch.randn(131_073, 2), torch.randn(300, 2), torch.arange(300)
    want = readout_loss(hidden, table, targets)
    found = readout_loss(hidden, distribute_tensor(table, mesh, [Shard(0)]), targets)
    torch.testing.assert_close(found, want)


def beside_a_sharded_table(mesh):
    """Targets, weights and ids that are spread too; a table of which a process holds no row."""
    for vocab, size in ((9, 1.0), (1, 1.0), (1, 300.0)):
        problem = Problem.of((2, 5), vocab, size=size, weight=True)
        loss, *want = problem.run(cross_entropy)
        table = distribute_tensor(problem.table.detach(), mesh, [Shard(0)]).requires_grad_()
        spread = {name: distribute_tensor(problem.targets, mesh, [Shard(0)]) for name in ("targets", "ids")}
        weight = distribute_tensor(problem.options["weight"], mesh, [Replicate()])
        found, _ = readout_loss(problem.hidden, table, **spread, weight=weight, returns="stats")
        torch.testing.assert_close(found.detach(), loss)
        grads = torch.autograd.grad(found * 0.3, [problem.hidden, table])
        torch.testing.assert_close([grads[0], grads[1].full_tensor()], want, rtol=1e-9, atol=1e-11)
    with pytest.raises(InputError, match=r"a DTensor beside it: weight(.|\n)*Hint: weight\.full_tensor"):
        readout_loss(problem.hidden, problem.table, problem.targets, weight=weight)


class Own(nn.Module):
    """Computes its logits, and its loss where there are labels."""

    def __init__(self, unused=False):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.body, self.head = nn.Embedding(32, 8), nn.Linear(8, 8), nn.Linear(8, 32, bias=False)
        self.head.weight = self.embed.weight
        if unused:
            self.unused = nn.Linear(2, 2)

    def forward(self, ids, labels=None):
        logits = self.head(self.body(self.embed(ids)))
        return (logits,) if labels is None else (loss_of(logits, labels), logits)


def loss_of(logits, labels):
    return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def dropped_in(rank, mesh):
    """Wrappers follow the graph of what a model returns, and hook into it."""
    every = torch.arange(20).view(4, 5)
    own, model = every.chunk(PROCESSES)[rank], Own()
    report = tiebeam.inspect(model, every)
    loss_of(model(every)[0], every).backward()
    want = [model.embed.weight.grad, model.body.weight.grad]

    def check(model, wrapped, labels, logits):
        with use_readout_loss(wrapped, report) as in_use:
            for _ in range(2):
                wrapped.zero_grad()
                (wrapped(own, own)[0] if labels else loss_of(wrapped(own)[0], own)).backward()
        assert in_use.tally.logits <= logits, in_use.tally
        grads = [model.embed.weight.grad, model.body.weight.grad]
        torch.testing.assert_close([g.full_tensor() if isinstance(g, DTensor) else g for g in grads], want)

    for labels in (True, False):
        for options, logits in (({}, 0), ({"find_unused_parameters": True}, 2), ({"static_graph": True}, 1)):
            model = Own(unused=bool(options))
            check(model, nn.parallel.DistributedDataParallel(model, **options), labels, 0 if labels else logits)
        model = Own()
        check(model, fully_shard(model, mesh=mesh, reshard_after_forward=labels), labels, 0 if labels else 2)
    with use_readout_loss(model := fully_shard(Own(), mesh=mesh, reshard_after_forward=True), report):
        logits = model(own)[0]
        with pytest.raises(InputError, match=r"resharded since(.|\n)*Hint: .*labels="):
            loss_of(logits, own)


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
    unequal_rows(mesh)
    beside_a_sharded_table(mesh)
    dropped_in(rank, mesh)
    statistics(mesh)
    refused(rank, mesh)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(work, (sys.argv[1],), nprocs=PROCESSES)
