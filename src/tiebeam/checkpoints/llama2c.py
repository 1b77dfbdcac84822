"""llama2.c files: seven integers, then every weight in a fixed order; the sign of the vocabulary tells the tie."""

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tiebeam.checkpoints.bounded import size_of
from tiebeam.errors import CheckpointError

FIELDS = ("dim", "hidden_dim", "n_layers", "n_heads", "n_kv_heads", "vocab_size", "seq_len")
MAGIC = 0x616B3432
_LEGACY, _HEADER = 28, 256
_MOST, _LAYERS = 2**28, 4096

Shapes = tuple[tuple[str, tuple[int, ...]], ...]


NO_PARAMETERS = ("freq_cis_real", "freq_cis_imag")
"""Tables of the rotation that the legacy format holds: run.c computes them and skips these."""

_OTHERS = (
    "tiebeam reads safetensors, PyTorch, GGUF, Keras, npz and llama2.c; a .bin without the mark of another "
    "is taken for the last of them"
)


@dataclass(frozen=True, slots=True)
class Header:
    """What a file says of itself.

    Attributes:
        config: The seven sizes, by llama2.c's names.
        tied: Whether the file holds one table for both ends.
        start: Where the weights begin. Unit: bytes.
        shapes: Names and shapes in the file's order, as `layout` gives them.
    """

    config: Mapping[str, int]
    tied: bool
    start: int
    shapes: Shapes


@dataclass(frozen=True, slots=True)
class Llama2c:
    """A file, its weights mapped.

    Attributes:
        config: The seven sizes, by llama2.c's names.
        tied: Whether the file holds one table for both ends.
        arrays: float32, read-only, by the names of run.c; those of all layers lie together, layer first.
    """

    config: Mapping[str, int]
    tied: bool
    arrays: Mapping[str, npt.NDArray[np.float32]]


def read_header(path: Path) -> Header:
    """The header of a file of llama2.c's `export.py`, version 0 (legacy) or 1; both hold float32.

    Raises:
        CheckpointError: It is no such file, or its size is not what its header asks for.

    Source: github.com/karpathy/llama2.c, `export.py` and `run.c`.
    """
    size = size_of(path)
    try:
        with path.open("rb") as file:
            head = file.read(_HEADER)
    except OSError as e:
        raise CheckpointError(f"'{path}' cannot be read", got=str(e)) from e
    if len(head) < _LEGACY:
        raise CheckpointError(f"'{path}' is no llama2.c file", got=f"{size} bytes", hint=_OTHERS)
    legacy = struct.unpack_from("<I", head)[0] != MAGIC
    if not legacy and (len(head) < _HEADER or struct.unpack_from("<i", head, 4)[0] != 1):
        raise CheckpointError(
            f"'{path}' is a llama2.c file of a version that is not read",
            got=f"{size} bytes, version {struct.unpack_from('<i', head, 4)[0]}",
            expected="version 0 or 1: float32",
        )
    config = dict(zip(FIELDS, struct.unpack_from("<7i", head, 0 if legacy else 8), strict=True))
    tied = config["vocab_size"] > 0 if legacy else head[36] == 1
    config["vocab_size"] = abs(config["vocab_size"])
    _check(path, config)
    shapes = layout(config, tied=tied, legacy=legacy)
    start = _LEGACY if legacy else _HEADER
    expected = start + 4 * sum(math.prod(shape) for _, shape in shapes)
    if expected != size:
        raise CheckpointError(
            f"'{path}' is not the size that its header asks for", got=f"{size:,} bytes", expected=f"{expected:,}"
        )
    return Header(config, tied, start, shapes)


def read_llama2c(path: str | Path) -> Llama2c:
    """Map a file of llama2.c's `export.py`, version 0 (legacy) or 1.

    Args:
        path: Of the file, which must stay where it is while the arrays are used.

    Raises:
        CheckpointError: It is no such file, or its size is not what its header asks for.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp()) / "tiny.bin"
        >>> sizes = dict(zip(FIELDS, (4, 8, 1, 2, 1, 10, 6)))
        >>> count = sum(math.prod(shape) for _, shape in layout(sizes, tied=True, legacy=True))
        >>> _ = file.write_bytes(struct.pack("<7i", *sizes.values()) + bytes(4 * count))
        >>> found = read_llama2c(file)
        >>> found.tied, found.arrays["token_embedding_table"].shape, "wcls" in found.arrays
        (True, (10, 4), False)
    """
    path = Path(path)
    header = read_header(path)
    flat: Any = np.memmap(path, "<f4", "r", header.start)
    arrays, at = {}, 0
    for name, shape in header.shapes:
        count = math.prod(shape)
        arrays[name] = flat[at : at + count].reshape(shape)
        at += count
    return Llama2c(header.config, header.tied, arrays)


def layout(config: Mapping[str, int], *, tied: bool, legacy: bool) -> Shapes:
    """Names and shapes in the file's order."""
    d, h, n, v = config["dim"], config["hidden_dim"], config["n_layers"], config["vocab_size"]
    each = d // config["n_heads"]
    kv = each * config["n_kv_heads"]
    table = ("token_embedding_table", (v, d))
    before, between, last = ("rms_att_weight", (n, d)), ("rms_ffn_weight", (n, d)), ("rms_final_weight", (d,))
    attention = [("wq", (n, d, d)), ("wk", (n, kv, d)), ("wv", (n, kv, d)), ("wo", (n, d, d))]
    forward = [("w1", (n, h, d)), ("w2", (n, d, h)), ("w3", (n, h, d))]
    head: Shapes = () if tied else (("wcls", (v, d)),)
    if not legacy:
        return (before, between, last, table, *attention, *forward, *head)
    turns = (config["seq_len"], each // 2)
    unused = [(name, turns) for name in NO_PARAMETERS]
    return (table, before, *attention, between, *forward, last, *unused, *head)


def _check(path: Path, config: Mapping[str, int]) -> None:
    sizes = all(0 < n < _MOST for n in config.values()) and config["n_layers"] <= _LAYERS
    if not sizes or config["dim"] % config["n_heads"] or config["n_heads"] % config["n_kv_heads"]:
        said = ", ".join(f"{k} {v}" for k, v in config.items())
        raise CheckpointError(
            f"'{path}' is no llama2.c file", got=said, expected="sizes of a transformer", hint=_OTHERS
        )
