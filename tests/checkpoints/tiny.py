"""Real transformers classes, built tiny."""

from typing import Any

import transformers

TEXT = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
}
GROUPED = {**TEXT, "num_key_value_heads": 1, "head_dim": 16}
PAIR = {
    "vocab_size": 96,
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 0,
}
GPT2 = {"vocab_size": 96, "n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 64}
T5 = {"vocab_size": 96, "d_model": 32, "d_ff": 48, "num_layers": 1, "num_heads": 2, "d_kv": 16}
SPEECH = {**PAIR, "num_mel_bins": 8, "max_source_positions": 16, "suppress_tokens": [3, 4]}
VIT = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2}

TINY: dict[str, dict[str, Any]] = {
    "GPT2LMHeadModel": GPT2,
    "LlamaForCausalLM": GROUPED,
    "MistralForCausalLM": GROUPED,
    "Qwen2ForCausalLM": GROUPED,
    "Gemma2ForCausalLM": GROUPED,
    "Gemma3ForCausalLM": GROUPED,
    "GraniteForCausalLM": GROUPED,
    "CohereForCausalLM": GROUPED,
    "OPTForCausalLM": {**TEXT, "ffn_dim": 48, "word_embed_proj_dim": 16},
    "GPTNeoXForCausalLM": TEXT,
    "BloomForCausalLM": {"vocab_size": 96, "hidden_size": 32, "n_layer": 1, "n_head": 2},
    "XLNetLMHeadModel": {"vocab_size": 96, "d_model": 32, "n_layer": 1, "n_head": 2, "d_inner": 48},
    "BertForMaskedLM": TEXT,
    "RobertaForMaskedLM": TEXT,
    "DistilBertForMaskedLM": {"vocab_size": 96, "dim": 32, "hidden_dim": 48, "n_layers": 1, "n_heads": 2},
    "AlbertForMaskedLM": {**TEXT, "embedding_size": 16},
    "ElectraForMaskedLM": {**TEXT, "embedding_size": 16},
    "T5ForConditionalGeneration": T5,
    "T5EncoderModel": T5,
    "BartForConditionalGeneration": PAIR,
    "MBartForConditionalGeneration": PAIR,
    "PegasusForConditionalGeneration": PAIR,
    "MarianMTModel": {**PAIR, "decoder_vocab_size": 96},
    "WhisperForConditionalGeneration": SPEECH,
    "Speech2TextForConditionalGeneration": {
        **SPEECH,
        "input_feat_per_channel": 8,
        "input_channels": 1,
        "max_source_positions": 64,
    },
}


def tiny(name: str, **changes: Any) -> Any:
    """A class of transformers, built tiny with random weights."""
    cls = getattr(transformers, name)
    return cls(cls.config_class(**{**TINY[name], **changes})).eval()


def captioner() -> Any:
    """An image captioner: a vision encoder, a text decoder, each with a config of its own."""
    encoder = transformers.ViTConfig(**VIT, image_size=32, patch_size=16)
    decoder = transformers.BertConfig(**TEXT, is_decoder=True, add_cross_attention=True)
    config = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
    return transformers.VisionEncoderDecoderModel(config=config).eval()
