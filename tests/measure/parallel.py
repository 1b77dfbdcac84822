"""Two processes measure one model, sharded and replicated: `python -m tests.measure.parallel FILE`.

What each role sends is held against a model with two tables that is whole, on the same process's batch.
"""

import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.checkpoint import checkpoint

import tiebeam

PROCESSES, VOCAB, WIDTH = 2, 37, 16  # rows that do not divide evenly


class Model(nn.Module):
    def __init__(self, *, tied: bool = True, vocab: int = VOCAB, recompute: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.norm = nn.Embedding(vocab, WIDTH), nn.LayerNorm(WIDTH)
        self.body = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())
        self.head = nn.Linear(WIDTH, vocab, bias=False)
        self.head.weight = self.embed.weight if tied else nn.Parameter(self.embed.weight.detach().clone())
        self.recompute = recompute

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids) * 4.0
        return self.head(self.norm(checkpoint(self.body, x, use_reentrant=False) if self.recompute else self.body(x)))


def loss_of(logits: Tensor, ids: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def by_hand(ids: Tensor, **facts: Any) -> dict[str, Tensor]:
    split = Model(tied=False, **facts)
    loss_of(split(ids), ids).backward()
    return {"lookup": split.embed.weight.grad, "readout": split.head.weight.grad}


def replicated(model: Model, mesh: DeviceMesh) -> nn.Module:
    return nn.parallel.DistributedDataParallel(model)


def sharded(model: Model, mesh: DeviceMesh) -> nn.Module:
    return fully_shard(model, mesh=mesh)


def sharded_in_blocks(model: Model, mesh: DeviceMesh) -> nn.Module:
    fully_shard(model.body, mesh=mesh)
    return fully_shard(model, mesh=mesh, reshard_after_forward=True)


def in_tensors(model: Model, mesh: DeviceMesh) -> nn.Module:
    model.head.weight = nn.Parameter(model.embed.weight.detach().clone())  # parallelised apart, then tied
    plan = {
        "embed": RowwiseParallel(input_layouts=Replicate()),
        "body.0": ColwiseParallel(output_layouts=Replicate()),
        "head": ColwiseParallel(output_layouts=Replicate()),
    }
    parallelize_module(model, mesh, plan)
    model.head.weight = model.embed.weight
    return model


def close(found: tiebeam.Measurement, want: dict[str, Tensor], **loose: float) -> None:
    for role, grad in want.items():
        got = found.roles[role].grad
        assert type(got) is Tensor
        torch.testing.assert_close(got.float(), grad, **(loose or {"rtol": 1e-6, "atol": 1e-7}))
        assert abs(found.roles[role].grad_norm / float(grad.norm()) - 1) < max(1e-5, loose.get("rtol", 0))
    assert found.tables[0].unaccounted < 1e-6


def assert_measured(wrap: Callable[[Model, DeviceMesh], nn.Module], mesh: DeviceMesh, **facts: Any) -> None:
    """Each role's gradient is exact, and the model is as it was: its next step is the one without."""
    ids = torch.arange(24).view(4, 6).chunk(PROCESSES)[dist.get_rank()] * 3 % VOCAB
    measured, plain = (wrap(Model(**facts), mesh) for _ in range(2))
    optimizers = [torch.optim.AdamW(m.parameters(), lr=1e-2) for m in (measured, plain)]
    close(tiebeam.measure(measured, ids, grad=True), by_hand(ids, **facts))
    assert all(p.grad is None for p in measured.parameters())
    for _ in range(2):
        for model, optimizer in zip((measured, plain), optimizers, strict=True):
            loss_of(model(ids), ids).backward()
            if model is measured:
                held = [p.grad for p in model.parameters()]
                tiebeam.measure(model, ids, optimizer=optimizer, spectrum=True)
                assert all(p.grad is g for p, g in zip(model.parameters(), held, strict=True))
            optimizer.step()
            optimizer.zero_grad()
    for a, b in zip(measured.parameters(), plain.parameters(), strict=True):
        assert torch.equal(whole(a), whole(b))


def whole(t: Tensor) -> Tensor:
    return t.full_tensor() if isinstance(t, DTensor) else t


def assert_the_mean_of_all_processes_is_what_training_adds_up(mesh: DeviceMesh) -> None:
    ids = torch.arange(24).view(4, 6).chunk(PROCESSES)[dist.get_rank()]
    model = sharded(Model(), mesh)
    roles = tiebeam.measure(model, ids, grad=True).roles
    sent = roles["lookup"].grad + roles["readout"].grad
    dist.all_reduce(sent)
    loss_of(model(ids), ids).backward()
    torch.testing.assert_close(whole(model.embed.weight.grad), sent / PROCESSES, rtol=1e-6, atol=1e-7)


def assert_more_figures_of_a_sharded_table(mesh: DeviceMesh) -> None:
    """Spectrum, drift and silent rows are those of the whole table."""
    ids = torch.arange(24).view(4, 6)
    models = [Model(), sharded(Model(), mesh)]
    before = models[0].embed.weight.detach().clone()
    tables = []
    for model in models:
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        loss_of(model(ids), ids).backward()
        optimizer.step()
        found = tiebeam.measure(model, ids, since={"embed.weight": before}, optimizer=optimizer, spectrum=True)
        tables.append(found.tables[0])
    one, other = tables
    assert one.silent_rows == other.silent_rows == 0
    torch.testing.assert_close(torch.tensor(one.spectrum.values), torch.tensor(other.spectrum.values))
    for name in ("moved", "lookup", "readout"):
        assert abs(getattr(one.drift, name) - getattr(other.drift, name)) < 1e-4, name


def assert_half_precision(mesh: DeviceMesh) -> None:
    ids = torch.arange(24).view(4, 6)
    model = fully_shard(Model(), mesh=mesh, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
    found = tiebeam.measure(model, ids, grad=True)
    close(found, by_hand(ids), rtol=0.1, atol=0.02)


def assert_refused(mesh: DeviceMesh) -> None:
    """A check of gradients copies the model; in shards it is refused, and the model goes on."""
    ids = torch.arange(24).view(4, 6)
    for wrap in (sharded, in_tensors):
        model = wrap(Model(vocab=38), mesh)
        with pytest.raises(tiebeam.InputError, match="lies in shards"):
            tiebeam.check_gradients(model, ids)
        # With tensors in parallel every process has the same batch, and sums of parts come in another order.
        close(tiebeam.measure(model, ids, grad=True), by_hand(ids, vocab=38), rtol=1e-5, atol=1e-6)


def work(rank: int, file: str) -> None:
    warnings.simplefilter("ignore")  # FSDP on what a module returns
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=PROCESSES)
    mesh = init_device_mesh("cpu", (PROCESSES,))
    for wrap in (replicated, sharded, sharded_in_blocks):
        assert_measured(wrap, mesh)
    assert_measured(sharded_in_blocks, mesh, recompute=True)
    assert_the_mean_of_all_processes_is_what_training_adds_up(mesh)
    assert_more_figures_of_a_sharded_table(mesh)
    assert_half_precision(mesh)
    assert_refused(mesh)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(work, (sys.argv[1],), nprocs=PROCESSES)
