"""The same inputs at another length and with other values: what is constant must come out the same."""

from collections.abc import Mapping
from typing import Any

import torch

from tiebeam.backends.torch.shadow import valueless


def shorter_arguments(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Crops of every sequence axis, to different lengths, the largest id replaced by the smallest.

    The sequence length is the last axis of the first integer tensor; every axis of that size in any tensor
    is cropped with it. The first try changes the batch as well.
    """
    tensors = [t for t in [*args, *kwargs.values()] if isinstance(t, torch.Tensor)]
    ids = next((t for t in tensors if not t.is_floating_point() and t.ndim and t.shape[-1] > 1), None)
    if ids is None:
        ids = next((t for t in tensors if t.ndim > 1 and t.shape[1] > 1), None)
        length = 0 if ids is None else int(ids.shape[1])
    else:
        length = int(ids.shape[-1])
    lengths = [n for n in dict.fromkeys((length - 1, length - 2, (length * 3) // 4, length // 2, 1)) if 0 < n < length]
    batch = int(ids.shape[0]) if ids is not None and ids.ndim > 1 else 0

    def changed(t: Any, n: int, rows: int) -> Any:
        if not isinstance(t, torch.Tensor):
            return t
        for axis, size in enumerate(t.shape):
            if size == length and (axis or t.ndim == 1 or size != batch):
                t = t.narrow(axis, 0, n)
        if batch and rows != batch and t.ndim and t.shape[0] == batch:
            t = t[:rows] if rows < batch else torch.cat([t, t])
        if not t.is_floating_point() and t.dtype != torch.bool and not valueless(t) and t.numel() > 1:
            low, high = t.min(), t.max()
            t = torch.where(t == high, low, t) if high - low > 1 else t
        return t.clone()

    def all_changed(n: int, rows: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return tuple(changed(a, n, rows) for a in args), {k: changed(v, n, rows) for k, v in kwargs.items()}

    other = batch - 1 if batch > 1 else 2  # the batch may be what a number came from, too
    tries = [all_changed(n, other) for n in lengths[:1]] if batch else []
    return tries + [all_changed(n, batch) for n in lengths]
