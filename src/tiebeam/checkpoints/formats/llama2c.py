"""llama2.c: seven integers, then every weight in a fixed order; the sign of the vocabulary tells the tie."""

import struct
from pathlib import Path

from tiebeam.checkpoints.archive import Archive, Entry, Span
from tiebeam.checkpoints.bounded import size_of
from tiebeam.checkpoints.dtypes import FLOAT32
from tiebeam.errors import CheckpointError

_FIELDS = ("dim", "hidden_dim", "n_layers", "n_heads", "n_kv_heads", "vocab_size", "seq_len")
_MAGIC, _NEW_HEADER = 0x616B3432, 256


def read(path: Path) -> Archive:
    """A file of `export.py`, version 0 (legacy) or 1; both hold float32.

    Raises:
        CheckpointError: It is none, or its size is not what its header asks for.
    """
    size = size_of(path)
    with path.open("rb") as file:
        head = file.read(_NEW_HEADER)
    if len(head) < 28:
        raise CheckpointError(f"'{path}' is no llama2.c file", got=f"{size} bytes")
    new = struct.unpack_from("<I", head)[0] == _MAGIC
    if new and struct.unpack_from("<i", head, 4)[0] != 1:
        raise CheckpointError(f"'{path}' is a llama2.c file of a version that is not read", expected="version 0 or 1")
    config = dict(zip(_FIELDS, struct.unpack_from("<7i", head, 8 if new else 0), strict=True))
    shared = head[36] == 1 if new else config["vocab_size"] > 0
    config["vocab_size"] = abs(config["vocab_size"])
    _check(path, config)
    at, entries = _NEW_HEADER if new else 28, {}
    for name, shape in _layout(config, shared, new):
        stop = at + 4 * _product(shape)
        entries[name] = Entry(name, shape, FLOAT32, Span(path, at, stop), file=path.name)
        at = stop
    if at != size:
        raise CheckpointError(
            f"'{path}' is not the size that its header asks for", got=f"{size:,} bytes", expected=f"{at:,}"
        )
    said = {"model_type": "llama2.c", "hidden_size": config["dim"], **config}
    return Archive(path, "llama2.c", entries, (path.name,), config=said, declares=shared)


def _check(path: Path, config: dict[str, int]) -> None:
    sound = all(0 < n < 2**28 for n in config.values()) and config["dim"] % config["n_heads"] == 0
    if not sound or config["n_heads"] % config["n_kv_heads"] or config["n_layers"] > 4096:
        raise CheckpointError(f"'{path}' is no llama2.c file", got=f"{config}", expected="sizes of a transformer")


def _layout(c: dict[str, int], shared: bool, new: bool) -> list[tuple[str, tuple[int, ...]]]:
    """Names and shapes in the file's order, as run.c maps them (all layers of one kind together)."""
    d, h, n, v = c["dim"], c["hidden_dim"], c["n_layers"], c["vocab_size"]
    kv = d // c["n_heads"] * c["n_kv_heads"]
    table = ("token_embedding_table", (v, d))
    norms = [("rms_att_weight", (n, d)), ("rms_ffn_weight", (n, d)), ("rms_final_weight", (d,))]
    attention = [("wq", (n, d, d)), ("wk", (n, kv, d)), ("wv", (n, kv, d)), ("wo", (n, d, d))]
    mlp = [("w1", (n, h, d)), ("w2", (n, d, h)), ("w3", (n, h, d))]
    head: list[tuple[str, tuple[int, ...]]] = [] if shared else [("wcls", (v, d))]
    if new:
        return [*norms, table, *attention, *mlp, *head]
    rope = (c["seq_len"], d // c["n_heads"] // 2)
    tables = [("freq_cis_real", rope), ("freq_cis_imag", rope)]
    return [table, norms[0], *attention, norms[1], *mlp, norms[2], *tables, *head]


def _product(shape: tuple[int, ...]) -> int:
    total = 1
    for n in shape:
        total *= n
    return total
