"""safetensors, written a block at a time: no tensor is ever whole in memory."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from tiebeam.checkpoints.fixing.values import Tensor
from tiebeam.checkpoints.formats.safetensors import CODES, METADATA
from tiebeam.errors import CheckpointError

_ALIGNED = 8
_CODE = {dtype.name: code.decode() for code, dtype in CODES.items()}


def write(path: Path, tensors: Sequence[Tensor], metadata: Mapping[str, str]) -> None:
    """One file, on the disk when this returns.

    Raises:
        CheckpointError: A tensor has other bytes than its shape asks for.
    """
    header: dict[str, object] = {METADATA: dict(metadata)} if metadata else {}
    at = 0
    for tensor in tensors:
        header[tensor.name] = {
            "dtype": _CODE[tensor.dtype.name],
            "shape": list(tensor.shape),
            "data_offsets": [at, at + tensor.nbytes],
        }
        at += tensor.nbytes
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _ALIGNED)
    with path.open("xb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors:
            written = sum(file.write(block) for block in tensor.blocks())
            if written != tensor.nbytes:
                raise CheckpointError(
                    f"'{tensor.name}' has other bytes than its shape asks for",
                    got=f"{written:,}",
                    expected=f"{tensor.nbytes:,}",
                )
        file.flush()
        os.fsync(file.fileno())
