"""What llama.cpp does with a file that has no `output.weight`, by architecture, as far as its source was read.

Source: `load_arch_tensors` of `src/models/*.cpp` in ggml-org/llama.cpp, 2026. An architecture in neither set is not
known here, and is reported so.
"""

FALLS_BACK = frozenset(
    """llama gpt2 qwen2 qwen2vl qwen3 phi3 falcon exaone4 gemma2 gemma3n mamba2 openelm command-r cohere2
    cohere2moe""".split()
)
"""Reads `token_embd.weight` in its place."""
REQUIRES = frozenset({"gptneox"})
"""Refuses the file."""
LATELY = frozenset({"gpt2"})
"""Falls back since 2025; earlier versions refused the file (ggml-org/llama.cpp issue 12567)."""


def falls_back(architecture: str) -> bool | None:
    """Whether the table is read as the readout where none is stored; None where that is not known here.

    Example:
        >>> falls_back("llama"), falls_back("gptneox"), falls_back("unheard-of")
        (True, False, None)
    """
    if architecture in FALLS_BACK:
        return True
    return False if architecture in REQUIRES else None
