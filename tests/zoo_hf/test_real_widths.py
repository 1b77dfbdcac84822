"""Models at the sizes people use, on meta: published parameter counts, factors, and no memory for weights."""

import math
from typing import Any

import pytest
import torch

import tiebeam
from tiebeam import Report

transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.slow


def on_meta(model_class: str, config_class: str, **fields: Any) -> Any:
    config = getattr(transformers, config_class)(**fields)
    with torch.device("meta"):
        return getattr(transformers, model_class)(config).eval()


def seen(model: Any) -> Report:
    report = tiebeam.inspect(model)
    assert report.meta
    report.assert_healthy()
    return report


def test_gpt2_small_is_tied_and_counts_its_table_once() -> None:
    report = seen(on_meta("GPT2LMHeadModel", "GPT2Config"))
    [table] = report.tables
    assert report.parameters == 124_439_808
    assert (table.vocab, table.width, table.state) == (50257, 768, "tied")
    assert (table.lookup_factor, table.readout_factor, table.soft_cap) == (1.0, 1.0, None)
    assert table.target_std == pytest.approx(1 / math.sqrt(768))
    assert table.std is None
    assert table.predicted.log_vocab == pytest.approx(10.825, abs=5e-4)


def test_llama_3_8b_has_two_tables_and_is_not_tied() -> None:
    report = seen(
        on_meta(
            "LlamaForCausalLM",
            "LlamaConfig",
            vocab_size=128256,
            hidden_size=4096,
            intermediate_size=14336,
            num_hidden_layers=32,
            num_attention_heads=32,
            num_key_value_heads=8,
            rms_norm_eps=1e-5,
            tie_word_embeddings=False,
        )
    )
    assert report.parameters == 8_030_261_248
    lookup, readout = report.tables
    assert (lookup.state, readout.state) == ("untied", "untied")
    assert (lookup.partner, readout.partner) == (readout.name, lookup.name)
    assert (lookup.lookup_factor, lookup.readout_factor) == (1.0, None)
    assert (readout.lookup_factor, readout.readout_factor) == (None, 1.0)
    assert lookup.target_std == 1.0
    assert readout.target_std == 1 / 64


def test_gemma_2_2b_multiplies_its_rows_by_the_root_of_its_width_and_caps_its_logits() -> None:
    report = seen(
        on_meta(
            "Gemma2ForCausalLM",
            "Gemma2Config",
            vocab_size=256000,
            hidden_size=2304,
            intermediate_size=9216,
            num_hidden_layers=26,
            num_attention_heads=8,
            num_key_value_heads=4,
            head_dim=256,
        )
    )
    [table] = report.tables
    assert report.parameters == 2_614_341_888
    assert table.tied
    assert table.readout_factor == 1.0
    assert table.soft_cap == 30.0
    # 48 stands in a buffer, whose value is lost on meta: that is said, not guessed.
    assert table.lookup_factor is None
    assert any(note.startswith("lookup_factor") and "lost on meta" in note for note in table.notes)


def test_t5_base_has_two_lookups_of_one_table_and_a_readout_factor_of_one_over_the_root_of_its_width() -> None:
    fields = {"d_model": 768, "d_kv": 64, "d_ff": 3072, "num_layers": 12, "num_heads": 12}
    report = seen(on_meta("T5ForConditionalGeneration", "T5Config", **fields))
    [table] = report.tables
    assert report.parameters == 222_903_552
    assert table.tied
    assert (len(table.lookups), len(table.readouts)) == (2, 1)
    assert table.readout_factor == pytest.approx(768**-0.5)
    assert table.target_std == pytest.approx(1.0)


def test_opt_350m_has_a_table_narrower_than_its_network() -> None:
    report = seen(
        on_meta(
            "OPTForCausalLM",
            "OPTConfig",
            hidden_size=1024,
            word_embed_proj_dim=512,
            ffn_dim=4096,
            num_hidden_layers=24,
            num_attention_heads=16,
            do_layer_norm_before=False,
        )
    )
    [table] = report.tables
    assert report.parameters == 331_196_416
    assert (table.vocab, table.width, table.tied) == (50272, 512, True)


def test_qwen_2_half_a_billion_is_tied() -> None:
    report = seen(
        on_meta(
            "Qwen2ForCausalLM",
            "Qwen2Config",
            vocab_size=151936,
            hidden_size=896,
            intermediate_size=4864,
            num_hidden_layers=24,
            num_attention_heads=14,
            num_key_value_heads=2,
            tie_word_embeddings=True,
        )
    )
    [table] = report.tables
    assert report.parameters == 494_032_768
    assert table.tied
    assert table.target_std == pytest.approx(1 / math.sqrt(896))
