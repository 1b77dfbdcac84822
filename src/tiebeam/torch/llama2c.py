"""A PyTorch model of a llama2.c file."""

from pathlib import Path

from tiebeam.checkpoints.llama2c import read_llama2c
from tiebeam.zoo.torch.llama import Llama, LlamaConfig

_LAYERS = {
    "wq": "query", "wk": "key", "wv": "value", "wo": "out", "w1": "gate", "w3": "up", "w2": "down",
    "rms_att_weight": "attention_norm", "rms_ffn_weight": "feed_forward_norm",
}  # fmt: skip
_ENDS = {"token_embedding_table": "embed", "rms_final_weight": "norm", "wcls": "head"}


def load_llama2c(path: str | Path) -> Llama:
    """The model of a llama2.c file (`export.py`, version 0 or 1), with its weights, tied as the file is.

    Args:
        path: Of the `.bin` file. Its weights are copied.

    Returns:
        A `Llama` in evaluation mode, float32, on the CPU.

    Raises:
        CheckpointError: It is no such file, or not of the size that its header asks for.
    """
    held = read_llama2c(path)
    sizes = held.config
    config = LlamaConfig(
        vocab=sizes["vocab_size"],
        width=sizes["dim"],
        layers=sizes["n_layers"],
        heads=sizes["n_heads"],
        kv_heads=sizes["n_kv_heads"],
        hidden=sizes["hidden_dim"],
        block_size=sizes["seq_len"],
        tie=held.tied,
    )
    weights = {ours: held.arrays[theirs] for theirs, ours in _ENDS.items() if theirs in held.arrays}
    for theirs, ours in _LAYERS.items():
        weights |= {f"blocks.{i}.{ours}": layer for i, layer in enumerate(held.arrays[theirs])}
    return Llama.from_arrays(config, weights).eval()
