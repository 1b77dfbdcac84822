"""Files written byte by byte, so that they can be wrong in every way; NumPy alone."""

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
CODES = {"float32": "F32", "float16": "F16", "float64": "F64", "int8": "I8", "uint8": "U8", "int32": "I32"}
TABLE, READOUT = "model.embed_tokens.weight", "lm_head.weight"


def table(vocab: int = 64, width: int = 8, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal((vocab, width)).astype(np.float32)


def header_bytes(header: bytes | Mapping[str, Any]) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header, separators=(",", ":")).encode()
    return struct.pack("<Q", len(text)) + text


def safetensors(path: Path, tensors: Mapping[str, Array], metadata: Mapping[str, str] | None = None) -> Path:
    """A sound file; bfloat16 comes as an array of uint16 under a name that ends in "@bf16"."""
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
    at, body = 0, b""
    for name, array in tensors.items():
        code = "BF16" if name.endswith("@bf16") else CODES[array.dtype.name]
        data = array.tobytes()
        header[name.removesuffix("@bf16")] = {
            "dtype": code,
            "shape": list(array.shape),
            "data_offsets": [at, at + len(data)],
        }
        at, body = at + len(data), body + data
    path.write_bytes(header_bytes(header) + body)
    return path


def folder(path: Path, tensors: Mapping[str, Array], config: Mapping[str, Any] | None = None) -> Path:
    """A folder with `model.safetensors` and, unless None, `config.json`."""
    path.mkdir(exist_ok=True)
    safetensors(path / "model.safetensors", tensors, {"format": "pt"})
    if config is not None:
        (path / "config.json").write_text(json.dumps(config))
    return path


def sharded(path: Path, shards: Mapping[str, Mapping[str, Array]], config: Mapping[str, Any] | None = None) -> Path:
    """A folder of shards and their index."""
    path.mkdir(exist_ok=True)
    where = {}
    for file, tensors in shards.items():
        safetensors(path / file, tensors, {"format": "pt"})
        where |= dict.fromkeys(tensors, file)
    size = sum(a.nbytes for tensors in shards.values() for a in tensors.values())
    index = {"metadata": {"total_size": size}, "weight_map": where}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    if config is not None:
        (path / "config.json").write_text(json.dumps(config))
    return path


def bfloat16(array: Array) -> Array:
    """Rounded to nearest even, as bits."""
    bits = array.astype(np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def _string(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def gguf(
    path: Path, tensors: Mapping[str, tuple[int, tuple[int, ...], bytes]], architecture: str = "llama", **more: Any
) -> Path:
    """A GGUF file, version 3: name -> (ggml type, NumPy shape, bytes); `more` are unsigned integers of the metadata."""
    pairs = [_string("general.architecture") + struct.pack("<I", 8) + _string(architecture)]
    pairs += [_string(key.replace("__", ".")) + struct.pack("<II", 4, value) for key, value in more.items()]
    words = b"".join(map(_string, ("a", "b", "c")))
    pairs.append(_string("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 3) + words)
    infos, body = b"", b""
    for name, (kind, shape, data) in tensors.items():
        body += b"\0" * (-len(body) % 32)
        infos += _string(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *reversed(shape))
        infos += struct.pack("<IQ", kind, len(body))
        body += data
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(pairs)) + b"".join(pairs) + infos
    path.write_bytes(head + b"\0" * (-len(head) % 32) + body)
    return path
