"""Real architectures: configs kept true at every scope, biases, four names of one table, adapters, and reloads."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.torch.operations.models import IDS, everything, same

import tiebeam
from tiebeam.errors import TieBroken, TieError

transformers = pytest.importorskip("transformers")

pytestmark = [pytest.mark.slow, pytest.mark.wide, pytest.mark.filterwarnings("ignore")]

SMALL = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2,
         "num_key_value_heads": 2, "max_position_embeddings": 32}  # fmt: skip


def llama(**more: Any) -> Any:
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**SMALL, "tie_word_embeddings": True, **more}))


def bert() -> Any:
    torch.manual_seed(0)
    config = transformers.BertConfig(**{k: v for k, v in SMALL.items() if k != "num_key_value_heads"})
    return transformers.BertForMaskedLM(config).eval()


def t5(**more: Any) -> Any:
    torch.manual_seed(0)
    return transformers.T5ForConditionalGeneration(
        transformers.T5Config(vocab_size=64, d_model=32, d_kv=8, d_ff=32, num_layers=1, num_heads=2, **more)
    ).eval()


def bart() -> Any:
    torch.manual_seed(0)
    sizes = {f"{part}_{what}": n for part in ("encoder", "decoder")
             for what, n in (("layers", 1), ("ffn_dim", 32), ("attention_heads", 2))}  # fmt: skip
    return transformers.BartForConditionalGeneration(transformers.BartConfig(vocab_size=64, d_model=32, **sizes)).eval()


BOTH = {"input_ids": IDS, "decoder_input_ids": IDS}


def reloaded(model: Any, folder: Path) -> Any:
    model.save_pretrained(folder)
    return type(model).from_pretrained(folder)


def test_an_untied_llama_reloads_untied_with_both_matrices(tmp_path: Path) -> None:
    model = llama()
    change = tiebeam.untie(model)
    assert change.config[0] == "config.tie_word_embeddings: True -> False"
    assert model.all_tied_weights_keys == {}
    with torch.no_grad():
        model.lm_head.weight.mul_(2)
    again = reloaded(model, tmp_path)
    assert again.lm_head.weight is not again.model.embed_tokens.weight
    assert torch.equal(again(IDS).logits, model(IDS).logits)


def test_a_tied_llama_reloads_tied(tmp_path: Path) -> None:
    model = llama(tie_word_embeddings=False)
    change = tiebeam.tie(model, on_conflict="readout")
    assert change.notes == ()
    assert model.all_tied_weights_keys == {"lm_head.weight": "model.embed_tokens.weight"}
    again = reloaded(model, tmp_path)
    assert again.lm_head.weight is again.model.embed_tokens.weight
    assert torch.equal(again(IDS).logits, model(IDS).logits)


def test_a_resized_llama_says_its_size_everywhere_and_reloads(tmp_path: Path) -> None:
    model = llama()
    tiebeam.resize(model, 70, multiple=8)
    assert (model.config.vocab_size, model.vocab_size, model.model.vocab_size) == (72, 72, 72)
    assert model.lm_head.weight is model.get_input_embeddings().weight
    loss = model(IDS, labels=IDS).loss
    loss.backward()
    again = reloaded(model, tmp_path)
    assert torch.equal(again(IDS, labels=IDS).loss, loss)


def test_a_masked_language_models_bias_goes_with_its_table(tmp_path: Path) -> None:
    model = bert()
    with torch.no_grad():
        model.cls.predictions.bias.normal_()
    bias = model.cls.predictions.bias.detach().clone()
    change = tiebeam.resize(model, 80)
    assert model.cls.predictions.bias is model.cls.predictions.decoder.bias
    assert torch.equal(model.cls.predictions.bias[:64], bias)
    assert model(IDS).logits.shape[-1] == 80
    assert any("cls.predictions.bias" in names for names in change.tables)
    again = reloaded(model, tmp_path)
    assert torch.equal(again(IDS).logits, model(IDS).logits)


@pytest.mark.parametrize("make", [bert, bart])
def test_what_a_false_flag_would_part_on_reload_is_said_and_saved_under_each_name(make: Any, tmp_path: Path) -> None:
    """A loader that goes by the flag found one name of two, and drew the other anew."""
    model = make()
    inputs = {"input_ids": IDS} if make is bert else BOTH
    change = tiebeam.untie(model, inputs)
    assert any("tiebeam.save" in note for note in change.notes)
    with torch.no_grad():
        model.get_output_embeddings().weight.add_(1)
    tiebeam.save(model, tmp_path)
    again = type(model).from_pretrained(tmp_path).eval()
    assert torch.equal(again(**inputs).logits, model(**inputs).logits)
    ties = tiebeam.ties(model)
    tiebeam.load(model, tmp_path)
    assert tiebeam.ties(model) == ties


def test_four_names_of_one_table_stay_one_through_a_resize_and_three_through_an_untie() -> None:
    model = t5()
    names = ("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight")
    assert tiebeam.ties(model) == (names,)
    optimizer = torch.optim.AdamW(model.parameters())
    model(**BOTH, labels=IDS).loss.backward()
    optimizer.step()
    tiebeam.resize(model, 96, BOTH, optimizer=optimizer)
    assert tiebeam.ties(model) == (names,)
    assert {model.config.vocab_size, model.encoder.config.vocab_size, model.decoder.config.vocab_size} == {96}
    before = model(**BOTH).logits
    tiebeam.untie(model, BOTH, optimizer=optimizer)
    assert tiebeam.ties(model) == (names[:3],)
    assert torch.equal(model(**BOTH).logits, before)
    assert model.config.tie_word_embeddings is False
    assert len(optimizer.state[model.lm_head.weight]) == 3


def test_four_names_are_tied_from_two_tables(tmp_path: Path) -> None:
    model = t5()
    tiebeam.untie(model, BOTH)
    with torch.no_grad():
        model.lm_head.weight.add_(1.0)
    kept = model.shared.weight.detach().clone()
    tiebeam.tie(model, BOTH, on_conflict="embedding")
    assert len(tiebeam.ties(model)[0]) == 4
    assert torch.equal(model.shared.weight, kept)


def test_a_buffer_of_biases_goes_with_its_table() -> None:
    model = bart()
    tiebeam.resize(model, 80, BOTH)
    assert model.final_logits_bias.shape == (1, 80)
    assert model(**BOTH).logits.shape[-1] == 80


def test_declared_ties_are_made_again() -> None:
    model = t5()
    model.lm_head.weight = torch.nn.Parameter(model.shared.weight.detach().clone())
    model.encoder.embed_tokens.weight = torch.nn.Parameter(model.shared.weight.detach().clone())
    change = tiebeam.retie(model)
    assert len(change.tables[0]) == 4
    assert len(tiebeam.ties(model)[0]) == 4


def refused_tie(folder: Path) -> Any:
    """The file holds two matrices, the flag asks for one: transformers keeps both, warns, and leaves the flag true."""
    source = llama(tie_word_embeddings=False)
    source.config.tie_word_embeddings = True
    source.save_pretrained(folder)
    model = transformers.LlamaForCausalLM.from_pretrained(folder)
    assert model.config.tie_word_embeddings
    assert model.lm_head.weight is not model.model.embed_tokens.weight
    return model


def test_transformers_own_resize_is_no_harm_to_a_sound_tie() -> None:
    model = llama()
    with tiebeam.guard(model):
        model.resize_token_embeddings(80)
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_a_resize_behind_a_refused_tie_loses_the_head_and_the_guard_says_so(tmp_path: Path) -> None:
    model = refused_tie(tmp_path)
    apart = ("model.embed_tokens.weight", "lm_head.weight")
    with pytest.raises(TieBroken, match="resize_token_embeddings"), tiebeam.guard(model, ties=(), apart=[apart]):
        model.resize_token_embeddings(80)


def test_untying_behind_a_refused_tie_makes_the_config_true_and_the_head_stays(tmp_path: Path) -> None:
    model = refused_tie(tmp_path)
    head = model.lm_head.weight.detach().clone()
    change = tiebeam.untie(model)
    assert change.config == ("config.tie_word_embeddings: True -> False",)
    model.resize_token_embeddings(80)
    assert torch.equal(model.lm_head.weight[:64], head)
    tiebeam.resize(model, 90)
    assert torch.equal(model.lm_head.weight[:64], head)


def test_empty_weights_and_their_loading_are_joined_again(tmp_path: Path) -> None:
    accelerate = pytest.importorskip("accelerate")
    source = llama()
    source.save_pretrained(tmp_path)
    with accelerate.init_empty_weights():
        model = llama()
    ties = tiebeam.ties(source)
    guard = tiebeam.guard(source)
    accelerate.load_checkpoint_in_model(model, str(tmp_path), device_map={"": "cpu"})
    with pytest.raises(TieBroken, match="lm_head"):
        guard.check(model)
    tiebeam.retie(model, ties)  # one end has values, the other is on meta: the one that has them counts
    guard.check(model)
    assert torch.equal(model(IDS).logits, source(IDS).logits)


def test_a_device_map_is_dispatched_without_harm() -> None:
    accelerate = pytest.importorskip("accelerate")
    model = llama()
    guard = tiebeam.guard(model)
    with guard:
        accelerate.dispatch_model(model, device_map={"": "cpu"}, main_device="cpu", force_hooks=True)
    guard.check()
    tiebeam.untie(model)
    assert model.lm_head.weight is not model.model.embed_tokens.weight


def test_an_offloaded_model_is_refused(tmp_path: Path) -> None:
    accelerate = pytest.importorskip("accelerate")
    model = accelerate.cpu_offload(llama(), execution_device=torch.device("cpu"))
    operations: tuple[Callable[..., Any], ...] = (tiebeam.tie, tiebeam.untie, lambda m, ids: tiebeam.resize(m, 80, ids))
    for operation in operations:
        with pytest.raises(TieError, match="lies elsewhere"):
            operation(model, IDS)
    tiebeam.save(llama(), tmp_path)
    named: tuple[Callable[..., Any], ...] = (
        tiebeam.retie,
        lambda m: tiebeam.load(m, tmp_path),
        lambda m: tiebeam.untie(m, readout="lm_head.weight"),
    )
    for operation in named:
        with pytest.raises(TieError, match="lies elsewhere"):
            operation(model)


class Composite(torch.nn.Module):
    """A model of two parts, whose flag stands at two scopes."""

    _tied_weights_keys = {"lm_head.weight": "embed_tokens.weight"}  # noqa: RUF012 - as transformers' classes have it

    def __init__(self) -> None:
        super().__init__()
        self.config = transformers.PretrainedConfig(tie_word_embeddings=True)
        self.config.text_config = transformers.PretrainedConfig(vocab_size=64, tie_word_embeddings=True)
        self.config.vision_config = transformers.PretrainedConfig(tie_word_embeddings=True, vocab_size=7)
        self.embed_tokens = torch.nn.Embedding(64, 16)
        self.lm_head = torch.nn.Linear(16, 64, bias=False)
        self.lm_head.weight = self.embed_tokens.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.lm_head(torch.tanh(self.embed_tokens(ids)))
        return logits


def test_every_scope_that_is_read_is_kept_true_and_others_are_left() -> None:
    model = Composite()
    change = tiebeam.untie(model, IDS)
    config = model.config
    flags = [c.tie_word_embeddings for c in (config, config.text_config, config.vision_config)]
    assert flags == [False, False, True]
    assert [c.partition(":")[0] for c in change.config] == [
        "config.tie_word_embeddings",
        "config.text_config.tie_word_embeddings",
    ]
    tiebeam.tie(model, IDS)
    assert config.text_config.tie_word_embeddings
    tiebeam.resize(model, 70, IDS)
    assert (config.text_config.vocab_size, config.vision_config.vocab_size) == (70, 7)


def test_a_family_whose_code_multiplies_by_the_flag_is_refused_whole() -> None:
    config = transformers.UdopConfig(
        vocab_size=64, d_model=32, d_kv=8, d_ff=32, num_layers=1, num_heads=2, max_2d_position_embeddings=8,
        image_size=16, patch_size=8,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.UdopForConditionalGeneration(config)
    inputs = {**BOTH, "bbox": torch.zeros(1, 8, 4)}
    before = everything(model)
    with pytest.raises(TieError, match="changed a factor"):
        tiebeam.untie(model, inputs)
    assert same(everything(model), before)


def test_an_adapter_on_the_readout_is_refused_and_merging_behind_an_untie_is_right() -> None:
    peft = pytest.importorskip("peft")
    adapted = peft.get_peft_model(llama(), peft.LoraConfig(r=4, target_modules=["lm_head"], init_lora_weights=False))
    before = everything(adapted)
    operations: tuple[Callable[..., Any], ...] = (tiebeam.untie, lambda m, ids: tiebeam.resize(m, 80, ids))
    for operation in operations:
        with pytest.raises(TieError, match="adapter"):
            operation(adapted, IDS)
    assert same(everything(adapted), before)
    logits = adapted(IDS).logits
    names = [n for n in tiebeam.ties(adapted)[0] if "lm_head" in n]
    tiebeam.untie(adapted, readout=names[0])
    merged = adapted.merge_and_unload()
    assert torch.allclose(merged(IDS).logits, logits, atol=1e-5)
    assert merged.config.tie_word_embeddings is False


def test_an_adapter_on_the_lookup_has_no_place_for_new_ids_and_originals_beside_are_spoken_of() -> None:
    peft = pytest.importorskip("peft")
    adapted = peft.get_peft_model(llama(), peft.LoraConfig(r=4, target_modules=["embed_tokens"]))
    with pytest.raises(TieError, match="lora_embedding_A"):
        tiebeam.resize(adapted, 80, IDS)
    trained = peft.LoraConfig(r=4, target_modules=["q_proj"], modules_to_save=["lm_head", "embed_tokens"])
    change = tiebeam.resize(peft.get_peft_model(llama(), trained), 80, IDS)
    assert sum("original_module.weight was not read" in note for note in change.notes) == 1


def test_an_adapter_elsewhere_is_no_hindrance() -> None:
    peft = pytest.importorskip("peft")
    adapted = peft.get_peft_model(llama(), peft.LoraConfig(r=4, target_modules=["q_proj"]))
    tiebeam.resize(adapted, 80, IDS)
    assert adapted.config.vocab_size == 80
    tiebeam.untie(adapted, IDS)
    assert tiebeam.ties(adapted) == ()
    assert not next(p for n, p in adapted.named_parameters() if "lm_head" in n).requires_grad
