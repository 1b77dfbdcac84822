"""Hugging Face configs become models of transformers' own classes; no code of theirs runs."""

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tests.checkpoints.tiny import GPT2, GROUPED, tiny

from tiebeam.cli.targets import resolve
from tiebeam.errors import TargetError

pytestmark = pytest.mark.slow

GPT2_FILE = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], **GPT2}


def folder(path: Path, config: Any) -> Path:
    path.mkdir(exist_ok=True)
    text = config if isinstance(config, str) else json.dumps(config)
    (path / "config.json").write_text(text, encoding="utf-8")
    return path


def test_a_folder_with_a_config_alone_gives_random_weights_fixed_by_the_seed(tmp_path: Path) -> None:
    place = folder(tmp_path, GPT2_FILE)
    first, again, other = (resolve(str(place), seed=s) for s in (0, 0, 1))
    assert (type(first.model).__name__, first.weights, first.notes) == ("GPT2LMHeadModel", "random", ())
    assert torch.equal(first.model.lm_head.weight, again.model.lm_head.weight)
    assert not torch.equal(first.model.lm_head.weight, other.model.lm_head.weight)
    assert first.model.lm_head.weight is first.model.transformer.wte.weight
    assert not first.model.training


def test_the_file_is_as_good_as_its_folder(tmp_path: Path) -> None:
    place = folder(tmp_path, GPT2_FILE)
    assert type(resolve(str(place / "config.json")).model).__name__ == "GPT2LMHeadModel"
    other = tmp_path / "llama-like.json"
    other.write_text(json.dumps({"model_type": "llama", **GROUPED}))
    assert type(resolve(str(other)).model).__name__ == "LlamaForCausalLM"


@pytest.mark.parametrize("shards", ["10MB", "20KB"])
def test_safetensors_beside_the_config_are_loaded(tmp_path: Path, shards: str) -> None:
    saved = tiny("GPT2LMHeadModel")
    saved.save_pretrained(tmp_path, max_shard_size=shards)
    assert (tmp_path / "model.safetensors.index.json").exists() is (shards == "20KB")
    files = ["", "config.json", "model.safetensors.index.json" if shards == "20KB" else "model.safetensors"]
    for file in files:
        found = resolve(str(tmp_path / file))
        assert (found.weights, found.notes) == ("file", ())
        for name, value in saved.state_dict().items():
            assert torch.equal(found.model.state_dict()[name], value)


def test_on_meta_the_weights_stay_where_they_are(tmp_path: Path) -> None:
    tiny("GPT2LMHeadModel").save_pretrained(tmp_path)
    found = resolve(str(tmp_path), meta=True)
    assert found.weights == "meta"
    assert {p.device.type for p in found.model.parameters()} == {"meta"}
    assert found.notes == ("the weights are meta: model.safetensors was not loaded",)


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path("unpickled").touch, ())


def test_a_pickle_is_never_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    place = folder(tmp_path / "model", GPT2_FILE)
    (place / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb()))
    found = resolve(str(place))
    assert found.notes == ("the weights are random: pytorch_model.bin was not loaded",)
    assert not (tmp_path / "unpickled").exists()
    with pytest.raises(TargetError, match=r"pickled weights are never loaded\nHint: tiebeam checkpoint "):
        resolve(str(place / "pytorch_model.bin"))
    pickle.loads((place / "pytorch_model.bin").read_bytes())  # the bomb is live
    assert (tmp_path / "unpickled").exists()


def test_code_of_a_repository_is_refused_and_not_run(tmp_path: Path) -> None:
    auto_map = {"AutoModelForCausalLM": "modeling_evil.Evil"}
    place = folder(tmp_path, {**GPT2_FILE, "auto_map": auto_map})
    (place / "modeling_evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(TargetError, match=r"names code of its own(.|\n)*modeling_evil\.Evil"):
        resolve(str(place))
    assert not (tmp_path / "ran").exists()


def test_a_kernel_that_a_config_wants_fetched_is_left_out(tmp_path: Path) -> None:
    place = folder(tmp_path, {**GPT2_FILE, "attn_implementation": "someone/kernel"})
    (place / "config.json").write_text(json.dumps({**GPT2_FILE, "_attn_implementation": "someone/kernel"}))
    assert resolve(str(place)).model.config._attn_implementation in ("sdpa", "eager")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("{not json", "cannot be read as JSON"),
        ("[1, 2]", "got: a JSON list"),
        ({"vocab_size": 8}, "got: None"),
        ({"model_type": "lama"}, "Hint: did you mean"),
        ({"model_type": ["gpt2"]}, r"got: \['gpt2'\]"),
        ({"model_type": "vit"}, "no language model for the model type 'vit'"),
        ({"model_type": "gpt2", "n_embd": 33, "n_head": 2}, "transformers cannot build"),
    ],
    ids=["no json", "list", "no type", "near", "odd type", "vision", "impossible"],
)
def test_a_config_that_gives_no_model_is_refused(tmp_path: Path, config: Any, message: str) -> None:
    with pytest.raises(TargetError, match=message):
        resolve(str(folder(tmp_path, config)))


def test_a_folder_without_a_config_and_an_adapter_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="got: an empty folder"):
        resolve(str(tmp_path))
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "gpt2"}')
    with pytest.raises(TargetError, match="is an adapter, not a model"):
        resolve(str(tmp_path))


def test_a_file_of_gigabytes_is_not_read_as_a_config(tmp_path: Path) -> None:
    with (tmp_path / "config.json").open("wb") as file:
        file.truncate(64 * 2**20)
    with pytest.raises(TargetError, match="too large for a config"):
        resolve(str(tmp_path))


@pytest.mark.parametrize(
    ("kind", "cls"),
    [
        ("gpt2", "GPT2LMHeadModel"),
        ("llama", "LlamaForCausalLM"),
        ("bert", "BertForMaskedLM"),
        ("roberta", "RobertaForMaskedLM"),
        ("t5", "T5ForConditionalGeneration"),
        ("bart", "BartForConditionalGeneration"),
        ("whisper", "WhisperForConditionalGeneration"),
        ("gemma3", "Gemma3ForConditionalGeneration"),
        ("llama4", "Llama4ForConditionalGeneration"),
    ],
)
def test_a_model_type_gives_the_language_model_that_it_is_known_for(kind: str, cls: str) -> None:
    found = resolve(kind, meta=True)
    assert type(found.model).__name__ == cls
    assert {p.device.type for p in found.model.parameters()} == {"meta"}


def test_a_factor_in_a_buffer_survives_meta() -> None:
    model = resolve("gemma3_text", meta=True).model
    assert model.model.embed_tokens.embed_scale.item() == pytest.approx(model.config.hidden_size**0.5)


def test_a_decoder_is_built_where_the_config_says_so(tmp_path: Path) -> None:
    place = folder(tmp_path, {**tiny("BertForMaskedLM").config.to_dict(), "architectures": None, "is_decoder": True})
    assert type(resolve(str(place)).model).__name__ == "BertLMHeadModel"


def test_an_architecture_that_transformers_lacks_is_replaced_and_said(tmp_path: Path) -> None:
    found = resolve(str(folder(tmp_path, {**GPT2_FILE, "architectures": ["GPT9"]})))
    assert found.notes == ("transformers has no GPT9 for this config; GPT2LMHeadModel was built",)


@pytest.mark.parametrize("name", ["pipeline", "os", "LlamaForCausalLM", "AutoConfig", "__class__"])
def test_an_architecture_that_is_no_class_for_this_config_is_not_used(tmp_path: Path, name: str) -> None:
    found = resolve(str(folder(tmp_path, {**GPT2_FILE, "architectures": [name]})))
    assert type(found.model).__name__ == "GPT2LMHeadModel"


def test_billions_of_random_weights_are_not_made_without_being_asked_for() -> None:
    with pytest.raises(TargetError, match=r"6\.7 billion parameters(.|\n)*Hint: add --meta"):
        resolve("llama")


def edited(path: Path, **changes: Any) -> Path:
    """A folder of tiny GPT-2 weights whose config was changed afterwards."""
    tiny("GPT2LMHeadModel").save_pretrained(path)
    config = json.loads((path / "config.json").read_text())
    return folder(path, {**config, **changes})


@pytest.mark.parametrize("shards", ["10MB", "20KB"])
def test_weights_of_another_size_than_the_config_are_refused_before_memory_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shards: str
) -> None:
    """GPT-2's fields mean nothing to a llama, which then has 6.5 billion parameters: the process was killed."""
    place = edited(tmp_path, model_type="llama", architectures=None, vocab_size=32_000)
    (place / "model.safetensors").unlink()
    tiny("GPT2LMHeadModel").save_pretrained(tmp_path / "saved", max_shard_size=shards)
    for file in (tmp_path / "saved").glob("*.safetensors*"):
        file.replace(place / file.name)
    monkeypatch.setattr(transformers.LlamaForCausalLM, "from_pretrained", None)
    message = r"are not those of its config\.json\n  got: [\d,]+ parameters in(.|\n)*the 6,[\d,]+ parameters of Llama"
    with pytest.raises(TargetError, match=message):
        resolve(str(place))
    assert resolve(str(place), meta=True).weights == "meta"


def test_weights_of_other_names_are_refused(tmp_path: Path) -> None:
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    place = edited(tmp_path, model_type="llama", architectures=None, **sizes)
    with pytest.raises(TargetError, match=r"got: a file without (.|\n)*Hint: mend config\.json"):
        resolve(str(place))


def test_what_is_missing_from_a_file_is_drawn_by_the_seed(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    tiny("GPT2LMHeadModel").save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["transformer.wpe.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    first, again, other = (resolve(str(tmp_path), seed=s).model.transformer.wpe.weight for s in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_a_folder_of_ones_own_model_is_answered_with_how_to_look_at_it(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=r"Hint: for a model of your own name the function .*: module:callable"):
        resolve(str(folder(tmp_path, {"vocab_size": 8})))
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(TargetError, match=r"module:callable(.|\n)*load_model\(model, '.*model\.safetensors'\)"):
        resolve(str(folder(tmp_path, {"tiebeam": {}})))


def test_an_unknown_model_type_is_answered_with_near_ones() -> None:
    with pytest.raises(TargetError, match="did you mean 'gpt2'"):
        resolve("gtp2")


def test_a_key_missing_from_the_file_is_said(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    tiny("GPT2LMHeadModel").save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["transformer.ln_f.weight"]
    save_file({**weights, "stray": torch.zeros(1)}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    notes = resolve(str(tmp_path)).notes
    assert notes == (
        "not in the file, so random: transformer.ln_f.weight",
        "in the file, not in the model: stray",
    )


def test_the_librarys_verbosity_is_as_before() -> None:
    before = transformers.logging.get_verbosity()
    resolve("gpt2", meta=True)
    assert transformers.logging.get_verbosity() == before


def test_a_config_of_too_many_layers_is_refused_before_they_are_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tiebeam.checkpoints.meta.MOST_MODULES", 200)
    place = folder(tmp_path, {**GPT2_FILE, "n_layer": 10**5})
    for meta in (True, False):
        with pytest.raises(TargetError, match=r"more modules than tiebeam builds\n  got: more than 200"):
            resolve(str(place), meta=meta)
    tiny("GPT2LMHeadModel").save_pretrained(tmp_path)
    folder(tmp_path, {**GPT2_FILE, "n_layer": 10**5})
    with pytest.raises(TargetError, match="more modules than tiebeam builds"):
        resolve(str(tmp_path))
    folder(tmp_path, GPT2_FILE)
    assert resolve(str(tmp_path)).weights == "file"  # nothing is counted from one build to the next


@pytest.mark.parametrize("field", ["n_layer", "num_labels", "n_head"])
def test_a_config_whose_class_would_make_endless_lists_is_refused_before_it_is_made(tmp_path: Path, field: str) -> None:
    place = folder(tmp_path, {**GPT2_FILE, field: 10**9})
    with pytest.raises(TargetError, match=rf"more parts than any model has\n  got: {field} 1,000,000,000"):
        resolve(str(place), meta=True)


@pytest.mark.parametrize("file", ["../other/model.safetensors", "/etc/passwd", "a/../../x.safetensors"])
def test_an_index_that_names_files_outside_its_folder_is_refused_unread(tmp_path: Path, file: str) -> None:
    place = folder(tmp_path / "model", GPT2_FILE)
    index = {"metadata": {}, "weight_map": {"transformer.wte.weight": file}}
    (place / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(TargetError, match=r"index.json' names a file outside its folder"):
        resolve(str(place))
    assert resolve(str(place), meta=True).weights == "meta"
