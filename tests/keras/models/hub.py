"""Twelve architectures of keras_hub, tiny, from their constructors: what must be seen, and where the rows go."""

from dataclasses import dataclass
from typing import Any

VOCAB, WIDTH = 97, 16
BODY = {"vocabulary_size": VOCAB, "num_layers": 2, "hidden_dim": WIDTH, "intermediate_dim": 32}
HEADS = {"num_heads": 2}
GROUPED = {"num_query_heads": 2, "num_key_value_heads": 1}
LONG = {"max_sequence_length": 16}


@dataclass(frozen=True)
class Hub:
    """What keras_hub calls it, how it is made, and what is so.

    Attributes:
        backbone, task: Names in `keras_hub.models`.
        first: The layer that the rows go into, behind their factor.
    """

    backbone: str
    task: str
    options: dict[str, Any]
    first: str = "transformer_layer_0"
    tied: bool = True
    lookup_factor: float = 1.0
    soft_cap: float | None = None
    bias: bool = False
    norm_after_lookup: bool = False
    width: int = WIDTH

    def build(self) -> tuple[Any, Any]:
        """The backbone, and the task on it."""
        import keras_hub

        backbone = getattr(keras_hub.models, self.backbone)(**self.options)
        return backbone, getattr(keras_hub.models, self.task)(backbone=backbone, preprocessor=None)


HUB: dict[str, Hub] = {
    "gpt2": Hub("GPT2Backbone", "GPT2CausalLM", BODY | HEADS | LONG),
    "gemma": Hub(
        "GemmaBackbone",
        "GemmaCausalLM",
        BODY | GROUPED | {"head_dim": 8, "final_logit_soft_cap": 30.0, "attention_logit_soft_cap": 50.0},
        "decoder_block_0",
        lookup_factor=WIDTH**0.5,
        soft_cap=30.0,
    ),
    "gemma3": Hub(
        "Gemma3Backbone",
        "Gemma3CausalLM",
        BODY | GROUPED | {"head_dim": 8, "image_size": 16},
        "decoder_block_0",
        lookup_factor=WIDTH**0.5,
    ),
    "llama3": Hub("Llama3Backbone", "Llama3CausalLM", BODY | GROUPED, tied=False),
    "llama3_tied": Hub("Llama3Backbone", "Llama3CausalLM", BODY | GROUPED | {"tie_word_embeddings": True}),
    "mistral": Hub("MistralBackbone", "MistralCausalLM", BODY | GROUPED, tied=False),
    "qwen": Hub("QwenBackbone", "QwenCausalLM", BODY | GROUPED | {"tie_word_embeddings": True}),
    "bert": Hub(
        "BertBackbone", "BertMaskedLM", BODY | HEADS | LONG, "embeddings_layer_norm", bias=True, norm_after_lookup=True
    ),
    "albert": Hub(
        "AlbertBackbone",
        "AlbertMaskedLM",
        BODY | HEADS | LONG | {"embedding_dim": 8},
        "embeddings_layer_norm",
        bias=True,
        norm_after_lookup=True,
        width=8,
    ),
    "bart": Hub(
        "BartBackbone", "BartSeq2SeqLM", BODY | HEADS | LONG, "encoder_embeddings_layer_norm", norm_after_lookup=True
    ),
    "opt": Hub("OPTBackbone", "OPTCausalLM", BODY | HEADS | LONG),
    "bloom": Hub("BloomBackbone", "BloomCausalLM", BODY | HEADS, "embedding_layernorm", norm_after_lookup=True),
    "gpt_neox": Hub("GPTNeoXBackbone", "GPTNeoXCausalLM", BODY | HEADS | LONG),
}
