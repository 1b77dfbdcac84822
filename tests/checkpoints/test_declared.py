"""What configs and classes say of the tie, held against what transformers makes of it."""

import json
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.checkpoints.tiny import GROUPED, TEXT, tiny

from tiebeam.checkpoints.declared import Declared, declare, declared_by

LLAMA_KEYS = (("lm_head.weight", "model.embed_tokens.weight"),)


def case(shared: Path, name: str) -> dict[str, Any]:
    """The objects that a case of the catalogue makes."""
    with (shared / "cases" / "cases.jsonl").open(encoding="utf-8") as lines:
        row = next(r for r in map(json.loads, lines) if r["id"] == name)
    space: dict[str, Any] = {}
    exec(row["input"], space)
    return space


def of(model: object) -> Declared:
    declared = declared_by(model)
    assert declared is not None
    return declared


def test_a_flag_missing_from_the_config_of_a_class_with_keys_means_untied(shared: Path) -> None:
    declared = of(case(shared, "hf-flag-missing-from-config")["model"])
    assert declared == Declared(
        tied=False,
        flag_present=False,
        keys=(("head.weight", "embed.weight"),),
        keys_style="mapping",
        owner="TinyLM",
        vocab=64,
    )


def test_keys_in_a_list_are_told_from_a_mapping(shared: Path) -> None:
    cls = case(shared, "hf-list-style-tied-keys")["TinyLM"]
    declared = declare({"tie_word_embeddings": True}, cls._tied_weights_keys)
    assert (declared.keys_style, declared.keys) == ("list", (("head.weight", ""),))
    assert declared.names("head.weight", "embed.weight")
    assert not declared.names("body.weight", "embed.weight")


def test_a_flag_in_the_text_scope_alone_is_no_flag_for_the_whole(shared: Path) -> None:
    declared = declare(case(shared, "hf-nested-config-flag")["config"])
    assert (declared.tied, declared.flag_path, declared.flag_present) == (None, "", False)
    assert declared.scopes == (("text_config", True),)
    assert declared.vocab == 64


def test_scopes_that_disagree_are_both_shown(shared: Path) -> None:
    declared = declare(case(shared, "hf-nested-config-flag-false")["config"])
    assert declared.scopes == (("", True), ("text_config", False))
    assert declared.tied is True
    assert not declared.scopes_agree


def test_a_flag_cleared_after_building_declares_no_tie_though_the_tensors_have_one(shared: Path) -> None:
    model = case(shared, "hf-set-flag-after-load")["model"]
    assert of(model).tied is False
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_a_tie_made_by_hand_is_undeclared_but_named_by_the_keys(shared: Path) -> None:
    declared = of(case(shared, "hf-runtime-tie-undeclared")["model"])
    assert declared.tied is False
    assert declared.names("model.embed_tokens.weight", "lm_head.weight")


def test_a_misspelt_argument_that_transformers_dropped_leaves_the_flag_as_it_was(shared: Path) -> None:
    declared = of(case(shared, "hf-misspelt-kwarg")["model"])
    assert declared.tied is True
    assert declared.misspelt == ()


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_an_adapter_that_wants_a_tie_on_an_untied_model_says_so(shared: Path) -> None:
    declared = of(case(shared, "peft-ensure-tying-on-untied")["pm"])
    assert declared.adapter_wants_tie is True
    assert declared.tied is False


def test_adapter_files_alone_tell_what_they_declare(shared: Path) -> None:
    files = case(shared, "peft-adapter-static")
    declared = declare(files["base_config"], peft_config=files["adapter_config"])
    assert (declared.tied, declared.adapter_wants_tie) == (True, False)
    assert declare(files["base_config"]).adapter_wants_tie is None


@pytest.mark.parametrize("flag", [True, False])
@pytest.mark.parametrize(
    "name",
    ["LlamaForCausalLM", "GPT2LMHeadModel", "Gemma3ForCausalLM", "BertForMaskedLM", "OPTForCausalLM"],
)
def test_a_declared_tie_is_what_transformers_makes(name: str, flag: bool) -> None:
    model = tiny(name, tie_word_embeddings=flag)
    declared = of(model)
    assert declared.tied is flag
    assert (model.get_output_embeddings().weight is model.get_input_embeddings().weight) is flag
    names = dict(model.named_parameters(remove_duplicate=False))
    for target, source in declared.keys:
        assert (names[target] is names[source]) is flag
        assert declared.names(target, source)


def test_the_keys_of_an_inner_model_are_written_from_the_root() -> None:
    class Wrapper(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = tiny("LlamaForCausalLM", tie_word_embeddings=True)

    declared = of(Wrapper())
    assert declared.keys == (("inner.lm_head.weight", "inner.model.embed_tokens.weight"),)
    assert (declared.tied, declared.owner) == (True, "LlamaForCausalLM")


def test_the_scope_that_an_inner_language_model_reads_is_found() -> None:
    text = transformers.OPTConfig(**TEXT, ffn_dim=48, word_embed_proj_dim=32, tie_word_embeddings=False)
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    former = {"vocab_size": 96, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.Blip2Config(
        text_config=text.to_dict(),
        vision_config={**vision, "image_size": 32, "patch_size": 16},
        qformer_config={**former, "intermediate_size": 16, "encoder_hidden_size": 16},
    )
    with torch.device("meta"):
        model = transformers.Blip2ForConditionalGeneration(config)
    declared = of(model)
    assert ("text_config", False) in declared.scopes
    head = model.get_output_embeddings().weight
    assert (head is model.get_input_embeddings().weight) is declared.tied


def test_a_plain_module_declares_nothing() -> None:
    assert declared_by(torch.nn.Linear(2, 2)) is None
    assert declared_by(object()) is None


def test_a_model_whose_class_names_no_keys_declares_no_tie() -> None:
    declared = of(SimpleNamespace(config=SimpleNamespace(tie_word_embeddings=True, vocab_size=8)))
    assert declared.tied is False
    assert declared.flag_present is True


@pytest.mark.parametrize(
    "name",
    ["tie_word_embedding", "tied_word_embeddings", "tie_embeddings", "tie_word_embedings", "weight_tying"],
)
def test_a_field_that_looks_like_the_flag_is_a_misspelling(name: str) -> None:
    assert declare({name: True}).misspelt == (name,)
    assert declare({"text_config": {name: False}}).misspelt == (f"text_config.{name}",)
    assert declare(transformers.LlamaConfig(**GROUPED, **{name: True})).misspelt == (name,)


@pytest.mark.parametrize(
    "name",
    [
        "tie_word_embeddings",
        "word_embeddings",
        "tie_encoder_decoder",
        "tie_codebooks_embeddings",
        "type_vocab_size",
        "time_embedding",
        "share_encoder_decoder_embeddings",
    ],
)
def test_other_fields_are_none(name: str) -> None:
    assert declare({name: True}).misspelt == ()


def test_a_field_that_the_class_knows_is_no_misspelling() -> None:
    class Config(SimpleNamespace):
        tie_embeddings = True

    assert declare(Config(tie_embeddings=False)).misspelt == ()


def test_no_default_config_of_transformers_holds_a_misspelling() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in ("gpt2", "llama", "t5", "bert", "whisper", "opt", "qwen2", "gemma3_text", "csm"):
            assert declare(transformers.CONFIG_MAPPING[name]()).misspelt == ()


def test_keys_that_are_patterns_or_modules_match_as_transformers_expands_them() -> None:
    declared = declare({}, {r"heads\.\d+": "head", "decoder.weight": "embed.weight"})
    assert declared.names("heads.3.weight", "head.weight")
    assert declared.names("embed.weight", "decoder.weight")
    assert not declared.names("heads.x.weight", "head.weight")
    assert not declared.names("decoder.weights_of_other", "embed.weight")


def test_a_key_that_is_no_valid_pattern_is_taken_as_a_name() -> None:
    assert declare({}, {"a[.weight": "b.weight"}).names("a[.weight", "b.weight")


@settings(max_examples=40)
@given(
    st.dictionaries(
        st.sampled_from(["tie_word_embeddings", "vocab_size", "text_config", "x"]),
        st.none()
        | st.booleans()
        | st.integers()
        | st.text(max_size=3)
        | st.dictionaries(
            st.sampled_from(["tie_word_embeddings", "vocab_size"]), st.none() | st.booleans() | st.integers()
        ),
    )
)
def test_any_json_object_can_be_read(config: dict[str, Any]) -> None:
    declared = declare(config)
    top = config.get("tie_word_embeddings")
    assert declared.tied == (None if top is None else bool(top))
    assert declared.flag_present == (top is not None)
