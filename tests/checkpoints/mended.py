"""Checkpoints that `fix` is tried on, and what it left."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file
from tests.checkpoints.writing import Array, folder, table

LLAMA = {"model_type": "llama", "vocab_size": 64, "hidden_act": "silu"}
TIED, UNTIED = {**LLAMA, "tie_word_embeddings": True}, {**LLAMA, "tie_word_embeddings": False}
E, OTHER = table(), table(seed=1)
BODY = {"model.layers.0.mlp.up_proj.weight": table(8, 8, seed=2), "model.norm.weight": E[0]}


def made(tmp_path: Path, tensors: dict[str, Array], config: dict[str, Any] | None) -> Path:
    return folder(tmp_path / "m", {**tensors, **BODY}, config)


def held(path: Path) -> dict[str, Array]:
    return {k: v for file in sorted(path.glob("*.safetensors")) for k, v in load_file(file).items()}


def metadata(path: Path) -> dict[str, str]:
    with safe_open(path, "np") as file:
        return file.metadata() or {}


def config_of(path: Path) -> dict[str, Any]:
    return json.loads((path / "config.json").read_text())


def same_body(path: Path) -> bool:
    found = held(path)
    return all(np.array_equal(found[name], array) for name, array in BODY.items())
