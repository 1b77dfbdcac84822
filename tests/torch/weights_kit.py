"""Tables as core alone draws them, and tensors to write them into."""

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from tiebeam.backends.torch.weights import write_table
from tiebeam.core.initialising.draws import blocks, draw_block

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn]


def drawn(vocab, width, std=0.02, seed=0, ordinal=0):
    """The table as core alone draws it."""
    parts = [draw_block(seed, "table", ordinal, b.index, b.rows, width, std) for b in blocks(vocab)]
    return torch.from_numpy(np.concatenate(parts))


def written(tensor, vocab_axis=0, *, seed=0, ordinal=0, std=0.02, **options):
    write_table(tensor, vocab_axis=vocab_axis, seed=seed, ordinal=ordinal, std=std, **options)
    return tensor


class Allocations(TorchDispatchMode):
    """The largest tensor that an operation made (views of what existed do not count)."""

    largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        old = {a.untyped_storage().data_ptr() for a in args if isinstance(a, torch.Tensor)}
        for made in out if isinstance(out, tuple | list) else (out,):
            if isinstance(made, torch.Tensor) and made.untyped_storage().data_ptr() not in old:
                self.largest = max(self.largest, made.numel())
        return out


def fake(shape):
    with FakeTensorMode():
        return torch.empty(shape)
