"""A table put aside comes back bit by bit, and a large one is in memory once."""

import subprocess
import sys

import pytest
import torch

from tiebeam.backends.torch import aside


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.float8_e4m3fn])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("large", [0, 1 << 40])
def test_what_was_put_aside_comes_back(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, turned: bool, large: int
) -> None:
    monkeypatch.setattr(aside, "LARGE", large)
    monkeypatch.setattr(aside, "PIECE", 100)
    table = torch.randn(37, 8).to(dtype)
    table = torch.nn.Parameter(table.t() if turned else table, requires_grad=False)
    before = table.detach().clone()
    put_back = aside.put_aside(table)
    table.data.copy_(torch.zeros(table.shape).to(dtype))
    put_back()
    now = table.detach().contiguous()
    assert torch.equal(now.view(torch.uint8), before.contiguous().view(torch.uint8))


PEAK = """
import resource, torch
from tiebeam.backends.torch import aside
table = torch.ones(1 << 14, 1 << 12)  # 256 MiB
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
put_back = aside.put_aside(table)
put_back()
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


@pytest.mark.slow
def test_a_large_table_is_in_memory_once() -> None:
    done = subprocess.run([sys.executable, "-c", PEAK], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 100
