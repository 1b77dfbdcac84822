"""A table put aside while a new one is tried: a large one goes to a file, so that memory holds it once."""

import tempfile
import weakref
from collections.abc import Callable
from typing import IO

import numpy as np
import torch

LARGE = 1 << 26
"""Bytes from which on a table goes to a file."""

PIECE = 1 << 24
"""Bytes written at a time."""


def put_aside(table: torch.Tensor) -> Callable[[], None]:
    """Keep what a table holds; the result puts it back.

    Args:
        table: (vocab, width) or the other way round, of any dtype, on any device.
    """
    plain = type(table) in (torch.Tensor, torch.nn.Parameter) and table.layout == torch.strided
    if plain and table.ndim >= 1 and table.element_size() * table.numel() >= LARGE:
        file = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as what may put it back
        _write(table.detach(), file)

        def read_back() -> None:
            _read(table, file)

        weakref.finalize(read_back, file.close)
        return read_back
    copy = table.detach().clone()

    def put_back() -> None:
        with torch.no_grad():
            table.copy_(copy)

    return put_back


def _pieces(table: torch.Tensor) -> range:
    row = max(1, table.element_size() * table[0].numel())
    return range(0, len(table), max(1, PIECE // row))


def _write(table: torch.Tensor, file: IO[bytes]) -> None:
    steps = _pieces(table)
    for start in steps:
        piece = table[start : start + steps.step].cpu().contiguous()
        file.write(piece.reshape(-1).view(torch.uint8).numpy().tobytes())


def _read(table: torch.Tensor, file: IO[bytes]) -> None:
    file.seek(0)
    steps = _pieces(table)
    with torch.no_grad():
        for start in steps:
            into = table[start : start + steps.step]
            raw = np.frombuffer(file.read(into.numel() * into.element_size()), np.uint8).copy()
            into.copy_(torch.from_numpy(raw).view(into.dtype).view(into.shape))
