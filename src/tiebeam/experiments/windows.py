"""Batches cut out of one long row of token ids, which may lie in a file and be larger than memory."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from tiebeam.experiments.corpus import Ids, check_length


def draw_windows(ids: Ids, window: int, *, batch: int, seed: int) -> Iterator[Tensor]:
    """Return an endless stream of batches, (batch, window), int64, drawn by NumPy from `seed`.

    Raises:
        InputError: `ids` are shorter than a window.
    """
    check_length(ids, window)
    rng = np.random.default_rng(seed)

    def batches() -> Iterator[Tensor]:
        while True:
            yield _cut(ids, rng.integers(0, len(ids) - window + 1, size=batch), window)

    return batches()


def spread_windows(ids: Ids, window: int, count: int) -> Tensor:
    """Return `count` windows that start at even distances over all of `ids`: (count, window), int64.

    Raises:
        InputError: `ids` are shorter than a window.

    Example:
        >>> spread_windows(np.arange(9), window=3, count=2)
        tensor([[0, 1, 2],
                [6, 7, 8]])
    """
    check_length(ids, window)
    return _cut(ids, np.linspace(0, len(ids) - window, count).astype(np.int64), window)


def _cut(ids: Ids, starts: "np.ndarray[tuple[int], np.dtype[np.int64]]", window: int) -> Tensor:
    return torch.from_numpy(ids[starts[:, None] + np.arange(window)].astype(np.int64, copy=False))
