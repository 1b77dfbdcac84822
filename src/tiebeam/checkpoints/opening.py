"""Which format a path holds, told by its first bytes rather than by its name."""

import os
from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from tiebeam.checkpoints.archive import Archive
from tiebeam.checkpoints.bounded import read_json, refuse_pointer, size_of
from tiebeam.checkpoints.configs import as_mapping, read_config
from tiebeam.checkpoints.formats.sharded import read as read_index
from tiebeam.checkpoints.formats.sharded import read_set, siblings
from tiebeam.errors import CheckpointError

CONFIG, ADAPTER = "config.json", "adapter_config.json"
INDEX_SUFFIX = ".index.json"

_IN_A_FOLDER = (
    "model.safetensors.index.json", "model.safetensors", "pytorch_model.bin.index.json", "pytorch_model.bin",
    "consolidated.safetensors", "consolidated.00.pth", "adapter_model.safetensors", "adapter_model.bin",
)  # fmt: skip
_PATTERNS = ("*.safetensors.index.json", "*.bin.index.json", "*.safetensors", "*.gguf", "*.keras", "*.weights.h5",
             "*.npz", "*.pt", "*.pth", "*.bin", "*.h5")  # fmt: skip
_MAGIC = {b"GGUF": "gguf", b"\x89HDF": "keras_h5"}


def open_archive(path: str | Path, config: object = None) -> Archive:
    """Read the headers of a checkpoint.

    Args:
        path: A file, an index, or a folder that holds one.
        config: The config as a mapping or an object, or its file or folder; by default `config.json` beside the file.

    Returns:
        Names, shapes, dtypes and places of everything it holds; no value has been read.

    Raises:
        CheckpointError: There is no checkpoint, or it is not what it says it is.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> import numpy as np
        >>> from safetensors.numpy import save_file
        >>> path = Path(tempfile.mkdtemp()) / "model.safetensors"
        >>> save_file({"wte.weight": np.zeros((8, 2), np.float32)}, path)
        >>> [(e.name, e.shape, e.dtype.name) for e in open_archive(path).entries.values()]
        [('wte.weight', (8, 2), 'float32')]
    """
    if not isinstance(path, str | os.PathLike):
        raise CheckpointError(
            f"a {type(path).__name__} is no path",
            expected="a file of weights, or a folder that holds one",
            hint="a model in memory is looked at by tiebeam.inspect(model, inputs)",
        )
    try:
        place = _file(Path(path))
        archive = _read(place)
        said = _config(config) if config is not None else _beside(place, CONFIG)
        adapter = _beside(place, ADAPTER) if place.name.startswith("adapter_model") or said is None else None
    except OSError as e:
        raise CheckpointError(f"'{path}' cannot be read", got=e.strerror or str(e)) from e
    return replace(archive, path=Path(path), config=said if said is not None else archive.config, adapter=adapter)


def _file(path: Path) -> Path:
    if not path.is_dir():
        if not path.exists():
            raise CheckpointError(f"'{path}' is not there", expected="a file of weights, or a folder that holds one")
        return _index_of(path) or path
    for name in _IN_A_FOLDER:
        if (path / name).is_file():
            return path / name
    for pattern in _PATTERNS:
        found = sorted(p for p in path.glob(pattern) if p.is_file())
        if len(found) > 1 and not {p.name for p in found} <= {*siblings(found[0].name)}:
            raise CheckpointError(
                f"'{path}' holds several files of weights and no index",
                got=", ".join(p.name for p in found[:6]),
                hint="name one of them",
            )
        if found:
            return found[0]
    raise CheckpointError(
        f"'{path}' holds no file of weights", expected="safetensors, PyTorch, GGUF, Keras, npz or llama2.c"
    )


def _index_of(path: Path) -> Path | None:
    """The index beside a shard: one shard says nothing of what the others hold."""
    if not siblings(path.name):
        return None
    for index in sorted(path.parent.glob(f"*{INDEX_SUFFIX}")):
        try:
            listed = read_json(index).get("weight_map")
        except CheckpointError:
            continue
        if isinstance(listed, dict) and path.name in listed.values():
            return index
    return None


def _read(path: Path) -> Archive:
    if path.name.endswith(INDEX_SUFFIX):
        return read_index(path, _read_one)
    return read_set(path, _read_one) if siblings(path.name) else _read_one(path)


def _read_one(path: Path) -> Archive:
    found: Archive = import_module(f"tiebeam.checkpoints.formats.{_kind(path)}").read(path)
    return found


def _kind(path: Path) -> str:
    if path.suffix == ".safetensors":
        return "safetensors"
    size = size_of(path)
    with path.open("rb") as file:
        start = file.read(16)
    refuse_pointer(path, start)
    if start[:4] in _MAGIC:
        return _MAGIC[start[:4]]
    if start[:4] == b"PK\x03\x04":
        return {".keras": "keras_archive", ".npz": "npz"}.get(path.suffix, "torch_zip")
    if start[:1] == b"\x80" and path.suffix in (".bin", ".pt", ".pth", ".pkl", ".ckpt"):
        raise CheckpointError(
            f"'{path}' is a bare pickle, as PyTorch wrote it before 1.6",
            got="a file that can only be read by running it",
            expected="a zip file, as torch.save writes it",
            hint="save it anew from a process that you trust",
        )
    if start[8:9] == b"{" and int.from_bytes(start[:8], "little") <= size:
        return "safetensors"
    if path.suffix in (".bin", ".llama2c"):
        return "llama2c"
    raise CheckpointError(
        f"'{path}' is in no format that tiebeam reads",
        got=f"a file that begins with {start[:8]!r}",
        expected="safetensors, PyTorch, GGUF, Keras, npz or llama2.c",
        hint="a config holds no weights: give its folder, or ask tiebeam advise" if path.name == "config.json" else "",
    )


def _beside(file: Path, name: str) -> Mapping[str, Any] | None:
    place = file.parent / name
    return read_json(place) if place.is_file() else None


def _config(config: object) -> Mapping[str, Any]:
    return read_config(Path(config)) if isinstance(config, str | Path) else as_mapping(config)
