"""Run as a script: one of several processes, a tied model parallelised by PyTorch's own plan.

Arguments: rank, processes, a folder for their meeting. Prints what the report says of the tables.
"""

import json
import sys

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import tiebeam


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(512, 64)
        self.up, self.down = nn.Linear(64, 128), nn.Linear(128, 64)
        self.norm = nn.LayerNorm(64)
        self.head = nn.Linear(64, 512, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids) * 8.0
        x = x + self.down(torch.relu(self.up(x)))
        return 0.5 * self.head(self.norm(x))


def main(rank: int, processes: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=processes)
    torch.manual_seed(0)
    model = Tied()
    plan = {
        "embed": RowwiseParallel(input_layouts=Replicate()),
        "up": ColwiseParallel(),
        "down": RowwiseParallel(),
        "head": ColwiseParallel(output_layouts=Replicate()),
    }
    parallelize_module(model, init_device_mesh("cpu", (processes,)), plan)
    model.head.weight = model.embed.weight
    report = tiebeam.inspect(model, torch.arange(24).view(2, 12))
    tables = [[t.names, t.state, t.vocab, t.width, t.lookup_factor, t.readout_factor] for t in report.tables]
    sys.stdout.write(json.dumps([tables, report.notes]))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
