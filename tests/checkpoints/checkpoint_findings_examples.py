"""For each finding on checkpoints, files that bring it about and files, as like them as can be, that do not."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from tests.checkpoints.writing import READOUT, TABLE, Array, folder, gguf, safetensors, sharded, table

LLAMA = {"model_type": "llama", "vocab_size": 64}
TIED, UNTIED = {**LLAMA, "tie_word_embeddings": True}, {**LLAMA, "tie_word_embeddings": False}
E, OTHER = table(), table(seed=1)
BODY = {"model.layers.0.mlp.up_proj.weight": np.ones((8, 8), np.float32)}

Make = Callable[[Path], Path]


def held(config: dict[str, Any] | None, **tensors: Array) -> Make:
    """A folder of one file; `table` and `readout` go by their usual names."""
    names = {"table": TABLE, "readout": READOUT}
    return lambda path: folder(path / "m", {**{names.get(k, k): v for k, v in tensors.items()}, **BODY}, config)


def shards(config: dict[str, Any], *, lost: str = "", hidden: str = "", alone: bool = False) -> Make:
    def make(path: Path) -> Path:
        made = sharded(
            path / "m", {"a.safetensors": {TABLE: E, **BODY}, "b.safetensors": {READOUT: E, "norm": E[0]}}, config
        )
        for file in made.glob("*.safetensors"):
            if alone or file.name == lost:
                file.unlink()
        if hidden:
            place = made / "model.safetensors.index.json"
            index = json.loads(place.read_text())
            del index["weight_map"][hidden]
            place.write_text(json.dumps(index))
        return made

    return make


def adapter(base: dict[str, Any], **settings: Any) -> Make:
    def make(path: Path) -> Path:
        names = [f"base_model.model.lm_head.lora_{x}.weight" for x in "AB"]
        safetensors(path / "adapter_model.safetensors", {n: np.ones((4, 8), np.float32) for n in names})
        (path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", **settings}))
        (path / "config.json").write_text(json.dumps(base))
        return path

    return make


def aliased(path: Path) -> Path:
    return safetensors(path / "m.safetensors", {TABLE: E, **BODY}, {READOUT: TABLE})


def of_gguf(*names: str) -> Make:
    return lambda path: gguf(path / "m.gguf", {n: (0, E.shape, E.tobytes()) for n in names})


QUANTISED = {"lm_head.qweight": np.ones((1, 64), np.int32), "lm_head.scales": np.ones((1, 64), np.float16)}
SCOPED = {"tie_word_embeddings": True, "text_config": {"tie_word_embeddings": False, "vocab_size": 64}}

FIRES: dict[str, list[Make]] = {
    "adapter-on-readout": [adapter(TIED, target_modules=["q_proj", "lm_head"])],
    "adapter-only": [adapter(UNTIED, target_modules=["q_proj"])],
    "alias-recorded": [aliased],
    "backbone-only": [held({**UNTIED, "architectures": ["LlamaModel"]}, table=E)],
    "config-scopes-disagree": [held(SCOPED, table=E, readout=OTHER), held({"text_config": TIED}, table=E)],
    "equal-not-declared": [held(UNTIED, table=E, readout=E), held(None, table=E, readout=E.T.copy())],
    "flag-without-effect": [held({"model_type": "t5", "tie_word_embeddings": False}, table=E)],
    "index-disagrees": [shards(TIED, hidden=READOUT)],
    "missing-shards": [shards(TIED, lost="b.safetensors")],
    "misspelt-flag": [held({**TIED, "tie_word_embedding": True}, table=E)],
    "no-table": [held(TIED)],
    "padded-vocabulary": [held({**TIED, "vocab_size": 60}, table=E)],
    "quantised-end": [held(TIED, table=E, **QUANTISED)],
    "readout-missing": [held(UNTIED, table=E), held(None, table=E)],
    "redundant-readout": [held(TIED, table=E, readout=E), held(TIED, table=E, readout=E.astype(np.float16))],
    "runtime-fallback": [of_gguf("token_embd.weight")],
    "several-tables": [held(None, **{"a.embed.weight": E, "b.embed.weight": OTHER})],
    "short-vocabulary": [held({**TIED, "vocab_size": 65}, table=E)],
    "tie-not-shown": [shards(TIED, alone=True)],
    "tied-file-differs": [held(TIED, table=E, readout=OTHER)],
    "untied": [held(UNTIED, table=E, readout=OTHER)],
}  # fmt: skip

SILENT: dict[str, list[Make]] = {
    "adapter-on-readout": [
        adapter(UNTIED, target_modules=["lm_head"]), adapter(TIED, target_modules=["q_proj"]),
        adapter(TIED, target_modules=["lm_head", "embed_tokens"]),
        adapter(TIED, target_modules=["lm_head"], ensure_weight_tying=True),
    ],
    "adapter-only": [held(TIED, table=E)],
    "alias-recorded": [held(TIED, table=E)],
    "backbone-only": [held({**UNTIED, "architectures": ["LlamaForCausalLM"]}, table=E)],
    "config-scopes-disagree": [held({**TIED, "text_config": TIED}, table=E), held(TIED, table=E)],
    "equal-not-declared": [held(UNTIED, table=E, readout=OTHER), held(TIED, table=E, readout=E)],
    "flag-without-effect": [held({"model_type": "t5", "tie_word_embeddings": True}, table=E)],
    "index-disagrees": [shards(TIED)],
    "missing-shards": [shards(TIED), shards(TIED, alone=True)],
    "misspelt-flag": [held({**TIED, "tie_breaker": 1}, table=E)],
    "no-table": [held(TIED, table=E)],
    "padded-vocabulary": [held(TIED, table=E)],
    "quantised-end": [held(TIED, table=E, readout=E)],
    "readout-missing": [held(TIED, table=E), held(UNTIED, table=E, readout=OTHER), aliased],
    "redundant-readout": [held(TIED, table=E), held(UNTIED, table=E, readout=E)],
    "runtime-fallback": [of_gguf("token_embd.weight", "output.weight")],
    "several-tables": [held(None, **{"a.embed.weight": E, "b.positions.weight": OTHER})],
    "short-vocabulary": [held(TIED, table=E)],
    "tie-not-shown": [shards(UNTIED, alone=True), shards(TIED)],
    "tied-file-differs": [held(UNTIED, table=E, readout=OTHER), held(TIED, table=E, readout=E)],
    "untied": [held(TIED, table=E, readout=OTHER)],
}  # fmt: skip
