"""What more than one file asks of PyTorch."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class NewStorages(TorchDispatchMode):
    """Notes every operation whose result is a new tensor of at least so many elements."""

    def __init__(self, least):
        super().__init__()
        self.least, self.made = least, []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        old = {a.untyped_storage().data_ptr() for a in args if isinstance(a, torch.Tensor)}
        if isinstance(out, torch.Tensor) and out.numel() >= self.least and out.untyped_storage().data_ptr() not in old:
            self.made.append(str(func))
        return out
