"""What this process holds of a table: all of it, or the rows and columns of its shard.

Everything else in this folder reads and writes a table as a plain `(rows, columns)` view of memory; which
way round it lies, whether it is sharded and whether it holds values at all is settled here.
"""

import sys
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeGuard

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tiebeam.errors import RangeError, ShapeError

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Part:
    """What this process holds of a table, as `(rows, columns)`, and which of the whole they are."""

    local: Tensor
    rows: Rows
    columns: slice | Rows
    vocab: int
    width: int


def shape_of(tensor: Tensor, vocab_axis: int) -> tuple[int, int]:
    """Vocab and width.

    Raises:
        ShapeError: The tensor is no matrix.
        RangeError: `vocab_axis` is neither 0 nor 1.
    """
    if tensor.dim() != 2:
        raise ShapeError("a table is a matrix", got=f"shape {tuple(tensor.shape)}", expected="two axes")
    if vocab_axis not in (0, 1):
        raise RangeError("the vocabulary axis is out of range", got=repr(vocab_axis), expected="0 or 1")
    return tensor.shape[vocab_axis], tensor.shape[1 - vocab_axis]


def unrecorded(tensor: Tensor) -> AbstractContextManager[object]:
    """Autograd off; an inference tensor may only be written in inference mode."""
    return torch.inference_mode() if tensor.is_inference() else torch.no_grad()


def sharded(tensor: Tensor) -> "TypeGuard[DTensor]":
    """Whether the tensor lies in shards, known without importing what shards are made of."""
    if "torch.distributed.tensor" not in sys.modules:  # nobody can have made one
        return False
    from torch.distributed.tensor import DTensor

    return isinstance(tensor, DTensor)


def readable(tensor: Tensor) -> bool:
    """Whether the tensor's own memory holds its values, as real numbers."""
    if sharded(tensor):
        if any(placement.is_partial() for placement in tensor.placements):
            return False
        with torch.no_grad():
            tensor = tensor.to_local()
    return (
        not tensor.is_meta
        and tensor.layout == torch.strided
        and not tensor.is_quantized
        and not tensor.is_complex()
        # Fake and quantised tensors are subclasses that answer every operation themselves.
        and type(tensor).__torch_dispatch__ is Tensor.__torch_dispatch__
    )


def part_of(tensor: Tensor, vocab_axis: int) -> Part:
    """A view of what this process holds, cut off from autograd.

    Raises:
        ShapeError: The tensor is no matrix.
        RangeError: `vocab_axis` is neither 0 nor 1.
    """
    vocab, width = shape_of(tensor, vocab_axis)
    if sharded(tensor):
        with torch.no_grad():
            local = tensor.to_local().detach()
        rows, columns = _held(tensor, vocab_axis), _held(tensor, 1 - vocab_axis)
        every = len(columns) == width
        local = local if vocab_axis == 0 else local.t()
        return Part(local, rows, slice(None) if every else columns, vocab, width)
    local = tensor.detach() if vocab_axis == 0 else tensor.detach().t()
    return Part(local, np.arange(vocab), slice(None), vocab, width)


def _held(tensor: "DTensor", axis: int) -> Rows:
    """Which indices along an axis this process holds: shard the indices as the tensor is sharded."""
    from torch.distributed.tensor import Replicate, distribute_tensor

    places = [p if getattr(p, "dim", None) == axis else Replicate() for p in tensor.placements]
    indices = torch.arange(tensor.shape[axis]).unsqueeze(1 - axis)
    held = distribute_tensor(indices, tensor.device_mesh, places, src_data_rank=None)  # None: no messages
    return held.to_local().flatten().cpu().numpy()


def combined(tensor: Tensor, local: Tensor, how: Literal["sum", "min", "max"]) -> Tensor:
    """Over the processes that hold shards of `tensor`; on the host."""
    if not sharded(tensor):
        return local
    from torch.distributed.tensor import DTensor, Partial, Replicate

    places = [Replicate() if p.is_replicate() else Partial(how) for p in tensor.placements]
    mesh = tensor.device_mesh
    return DTensor.from_local(local.to(mesh.device_type), mesh, places, run_check=False).full_tensor().cpu()


def gathered(tensor: Tensor, part: Part, norms: Tensor) -> Tensor:
    """Norms of whole rows out of the norms of what each process holds of them."""
    if not sharded(tensor):
        return norms.cpu().double()
    squares = torch.zeros(part.vocab, dtype=torch.float64)
    squares[torch.from_numpy(part.rows)] = norms.cpu().double().square()
    return combined(tensor, squares, "sum").sqrt()


def lie_alike(a: Tensor, b: Tensor, vocab_axis_a: int, vocab_axis_b: int) -> bool:
    """Whether row i of what is held of `a` is row i of what is held of `b`, on every process."""
    if not sharded(a) and not sharded(b):
        return True
    if not (sharded(a) and sharded(b)) or vocab_axis_a != vocab_axis_b:
        return False
    return a.shape == b.shape and a.device_mesh == b.device_mesh and a.placements == b.placements
