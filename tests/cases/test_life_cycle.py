"""The rows about a model's life: what the operations make of each, by what its diagnosis asks for."""

import contextlib
import copy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.cases.test_cases import quiet as quiet  # rows write files and draw numbers
from tests.cases.test_cases import rows
from torch import nn
from torch.nn.utils import prune
from torch.nn.utils.parametrize import remove_parametrizations

import tiebeam

IDS = torch.tensor([[1, 2, 3]])
TIE = ("embed.weight", "head.weight")
LLAMA = ("model.embed_tokens.weight", "lm_head.weight")
Names = dict[str, Any]

GROUPS = {
    "tie lost or false in memory": "lost-on-load lost-on-move storage-not-identity copy-not-tie one-side-replaced",
    "save, export, convert": "safetensors-refuses alias-dropped duplicated-on-disk undeclared-tie false-shared "
    "converter",
}

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


def one(model: nn.Module, names: tuple[str, ...] = TIE) -> None:
    held = dict(model.named_parameters(remove_duplicate=False))
    assert len({id(held[n]) for n in names}) == 1


def loaded_side_counts(r: Names) -> None:
    with pytest.raises(tiebeam.TieError, match="apart"):
        tiebeam.retie(r["model"], [TIE])
    tiebeam.retie(r["model"], [TIE], on_conflict="embedding")
    assert r["model"].head.weight.mean() == 3.0
    one(r["model"])


def after_materialising(r: Names) -> None:
    tiebeam.retie(r["model"], [TIE], on_conflict="embedding")
    one(r["model"])


def the_trained_head_is_not_dropped(r: Names) -> None:
    """A saver that goes by the alias keeps both, and the resume is refused until someone says what counts."""
    tiebeam.save(r["model"], "m.safetensors")
    assert {"embed.weight", "head.weight"} <= load_file("m.safetensors").keys()
    with pytest.raises(tiebeam.TieError, match="two tables"):
        tiebeam.load(r["resumed"], "m.safetensors")
    tiebeam.load(r["resumed"], "m.safetensors", on_conflict="untie")
    assert torch.equal(r["resumed"](IDS), r["model"](IDS))


def made_one_behind_a_move(r: Names) -> None:
    assert tiebeam.retie(r["model"], [TIE]).tables == (TIE,)
    assert len(list(r["model"].parameters())) == r["before"]


def made_one_from_one_storage(names: tuple[str, ...]) -> Callable[[Names], None]:
    def mend(r: Names) -> None:
        tiebeam.tie(r["model"], IDS)
        one(r["model"], names)

    return mend


def tied_with_a_word_on_values(r: Names) -> None:
    with pytest.raises(tiebeam.TieError, match="different values"):
        tiebeam.tie(r["model"], IDS)
    tiebeam.tie(r["model"], IDS, on_conflict="mean", optimizer=r["opt"])
    one(r["model"])
    assert len(r["opt"].param_groups[0]["params"]) == 3


def tied_from_a_copy(r: Names) -> None:
    tiebeam.tie(r["model"], IDS)
    one(r["model"])


def renamed_but_whole(r: Names) -> None:
    """The tie holds under another name, and a file says both."""
    assert tiebeam.ties(r["model"]) == (("embed.weight", "head.0.weight"),)
    tiebeam.save(r["model"], "m.safetensors")
    tiebeam.load(r["model"], "m.safetensors")


def the_new_embedding_counts(r: Names) -> None:
    tiebeam.retie(r["model"], on_conflict="embedding")
    assert r["model"].lm_head.weight is r["new"].weight


def unparametrised_first(r: Names) -> None:
    with pytest.raises(tiebeam.TieError, match="remove_parametrizations"):
        tiebeam.retie(r["model"], [TIE])
    remove_parametrizations(r["model"].head, "weight")
    tiebeam.retie(r["model"], [TIE], on_conflict="embedding")
    one(r["model"])


def unpruned_first(r: Names) -> None:
    with pytest.raises(tiebeam.TieError, match=r"prune\.remove"):
        tiebeam.untie(r["model"], IDS)
    prune.remove(r["model"].head, "weight")
    one(r["model"])


def saved_once(r: Names) -> None:
    assert tiebeam.save(r["model"], "m.safetensors") == (TIE,)
    tiebeam.load(r["LM"](), "m.safetensors")


def completed(name: str) -> Callable[[Names], None]:
    """The missing name is no lost data: the model's own tie completes it, strictly."""

    def mend(r: Names) -> None:
        save_file(r[name], "dropped.safetensors")
        fresh = r["LM"]()
        assert tiebeam.load(fresh, "dropped.safetensors").tables == (TIE,)
        assert torch.equal(fresh.embed.weight, r[name]["embed.weight"])

    return mend


def half_the_size(r: Names) -> None:
    """Equal twins are seen by their bits; saved again they are one."""
    fresh = r["LM"]()
    tiebeam.load(fresh, r["path"])
    tiebeam.save(fresh, "once.safetensors")
    assert Path("once.safetensors").stat().st_size < 0.6 * Path(r["path"]).stat().st_size


def flag_and_tensors_agree_before_saving(r: Names) -> None:
    with pytest.raises(tiebeam.TieError, match="contradict"):
        tiebeam.save(r["model"], ".")
    change = tiebeam.tie(r["model"], IDS)
    assert change.config == (
        "config.tie_word_embeddings: False -> True",
        "all_tied_weights_keys: {} -> {'lm_head.weight': 'model.embed_tokens.weight'}",
    )
    r["model"].save_pretrained("saved")
    again = type(r["model"]).from_pretrained("saved")
    assert torch.equal(again(IDS).logits, r["model"](IDS).logits)


def untied_and_then_the_flag(r: Names) -> None:
    r["model"].config.tie_word_embeddings = True
    tiebeam.untie(r["model"], IDS)
    r["model"].save_pretrained("saved")
    again = type(r["model"]).from_pretrained("saved")
    assert again.lm_head.weight is not again.model.embed_tokens.weight
    assert torch.equal(again(IDS).logits, r["model"](IDS).logits)


def an_undeclared_group_is_saved_all_the_same(r: Names) -> None:
    [group] = tiebeam.save(r["model"], "m.safetensors")
    assert len(group) == 2
    tiebeam.load(r["model"], "m.safetensors")


def names_by_one_value(r: Names) -> None:
    values = {n: v for n, v in r["params"].items() if n != "head.weight"}
    with tiebeam.guard(r["model"]):
        assert torch.func.functional_call(r["model"], values, (IDS,)).shape == (1, 3, 50)


def one_parameter_in_the_program(r: Names) -> None:
    tiebeam.guard(r["model"]).check(r["ep"].module())


def what_has_values_counts(r: Names) -> None:
    guard = tiebeam.guard(r["m"])
    tiebeam.retie(r["model"], guard.ties)
    guard.check(r["model"])
    assert torch.equal(r["model"](IDS).logits, r["m"](IDS).logits)


def the_optimizer_learns_of_the_tie(r: Names) -> None:
    model = r["LM"](False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    tiebeam.tie(model, IDS, on_conflict="embedding", optimizer=optimizer)
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    assert held == {id(p) for p in model.parameters()}


def two_values_are_refused(r: Names) -> None:
    save_file({k: v.contiguous() for k, v in r["sd"].items()}, "untied.safetensors")
    with pytest.raises(tiebeam.TieError, match="two tables where the model has one"):
        tiebeam.load(r["model"], "untied.safetensors")
    tiebeam.load(r["model"], "untied.safetensors", on_conflict="untie")
    assert torch.equal(r["model"].head.weight, r["sd"]["head.weight"])


def a_head_that_is_not_in_the_file(r: Names) -> None:
    save_file({k: v.contiguous() for k, v in r["ckpt"].items()}, "tied.safetensors", metadata={TIE[1]: TIE[0]})
    with pytest.raises(tiebeam.TieError, match="one table where the model has two"):
        tiebeam.load(r["model"], "tied.safetensors")
    tiebeam.load(r["model"], "tied.safetensors", on_missing="tie")
    one(r["model"])


def untied_before_the_merge(r: Names) -> None:
    from peft import get_peft_model

    base = r["LlamaForCausalLM"](r["cfg"](tie_word_embeddings=True))
    adapted = get_peft_model(base, r["LoraConfig"](r=4, target_modules=["lm_head"], init_lora_weights=False))
    logits = adapted(IDS).logits
    tiebeam.untie(adapted, readout=next(n for n in tiebeam.ties(adapted)[0] if "lm_head" in n))
    merged = adapted.merge_and_unload()
    assert torch.allclose(merged(IDS).logits, logits, atol=1e-4)
    assert merged.config.tie_word_embeddings is False


def rows_and_bias_cut_alike(r: Names) -> None:
    model = type(r["model"])(r["model"].config)
    bias = model.cls.predictions.bias.detach().clone()
    tiebeam.resize(model, ids=r["keep"].tolist())
    assert torch.equal(model.cls.predictions.bias, bias[r["keep"]])
    assert model(IDS).logits.shape[-1] == 15


def four_names_by_the_input_table(r: Names) -> None:
    model = r["model"]
    names = ("decoder.embed_tokens.weight", "encoder.embed_tokens.weight", "shared.weight")
    tiebeam.retie(model, [names], on_conflict="embedding")
    one(model, names)


def one_end_is_frozen_alone(r: Names) -> None:
    tiebeam.untie(r["model"], IDS)
    r["model"].head.weight.requires_grad_(True)
    assert not r["model"].embed.weight.requires_grad


def both_ends_are_pushed(r: Names) -> None:
    tiebeam.save(r["trainer"], "push.safetensors")
    tiebeam.load(r["server"], "push.safetensors", on_missing="copy")
    assert torch.equal(r["server"].head.weight, r["trainer"].embed.weight)


def copies_of_the_whole_are_healthy(r: Names) -> None:
    tiebeam.guard(r["model"]).check(r["ema"])


LIFE: dict[str, Callable[[Names], None]] = {
    "pt-assign-partial-stale": loaded_side_counts,
    "pt-meta-to-empty": after_materialising,
    "pt-drop-by-flag-not-by-alias": the_trained_head_is_not_dropped,
    "pt-to-with-overwrite-flag": made_one_behind_a_move,
    "pt-param-wrap-shares-storage": made_one_from_one_storage(TIE),
    "hf-find-tied-misses-storage-tie": made_one_from_one_storage(LLAMA),
    "pt-clone-copy-diverges": tied_with_a_word_on_values,
    "pt-deepcopy-head-only": tied_from_a_copy,
    "pt-head-replaced": renamed_but_whole,
    "hf-set-input-embeddings": the_new_embedding_counts,
    "pt-weight-norm-on-head": unparametrised_first,
    "pt-random-prune-head": unpruned_first,
    "pt-safetensors-refuses": saved_once,
    "pt-safetensors-drops-alias": completed("ckpt"),
    "zero-consolidated-missing-alias": completed("consolidated"),
    "pt-size-doubled-by-contiguous": half_the_size,
    "hf-runtime-tie-undeclared": flag_and_tensors_agree_before_saving,
    "hf-runtime-tie-other-param": an_undeclared_group_is_saved_all_the_same,
    "hf-set-flag-after-load": untied_and_then_the_flag,
    "pt-functional-call-two-values": names_by_one_value,
    "pt-export-both-names": one_parameter_in_the_program,
    "hf-offload-tied": what_has_values_counts,
    "pt-optimizer-built-before-tie": the_optimizer_learns_of_the_tie,
    "pt-load-two-values-last-wins": two_values_are_refused,
    "pt-strict-false-random-head": a_head_that_is_not_in_the_file,
    "peft-lora-head-merges-into-embed": untied_before_the_merge,
    "hf-bert-bias-resize": rows_and_bias_cut_alike,
    "hf-t5-third-alias": four_names_by_the_input_table,
    "pt-freeze-coupled": one_end_is_frozen_alone,
    "rl-untied-server-not-updated": both_ends_are_pushed,
    "pt-healthy-ema-deepcopy": copies_of_the_whole_are_healthy,
}

ELSEWHERE = {
    "fx-copied-kernel": "JAX: whether leaves are one is in the program; `inspect` says what it is, `tie` refuses",
    "eqx-tree-at-copy": "likewise",
    "ks-weights-file-two-copies": "Keras writes a variable for each layer that holds it; `tiebeam checkpoint` sees it",
    "ck-gguf-style-names": "a file for another runtime: `tiebeam checkpoint`",
}


def test_every_row_of_both_groups_is_covered_or_said_to_be_elsewhere(shared: Path) -> None:
    kinds = set(" ".join(GROUPS.values()).split())
    wanted = {n for n, r in rows(shared).items() if r["kind"] in kinds}
    assert wanted - LIFE.keys() - ELSEWHERE.keys() == set()
    assert not LIFE.keys() & ELSEWHERE.keys()


@pytest.mark.parametrize("name", LIFE)
def test_a_row_is_mended_as_its_diagnosis_asks(name: str, shared: Path) -> None:
    names: Names = {"__name__": name}
    torch.manual_seed(0)
    with contextlib.redirect_stdout(None), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(compile(rows(shared)[name]["input"], name, "exec"), names)
        LIFE[name](names)


def test_placeholders_and_slices_of_one_buffer_are_not_called_shared(tmp_path: Path) -> None:
    """`false-shared`: placeholders all have the address 0, and slices of a flat buffer one storage."""
    with torch.device("meta"):
        model = nn.ModuleList([nn.Linear(4, 4, bias=False) for _ in range(3)])
    assert tiebeam.ties(model) == ()
    model.to_empty(device="cpu")
    flat = torch.randn(48)
    for i, layer in enumerate(model):
        layer.weight = nn.Parameter(flat[16 * i : 16 * (i + 1)].view(4, 4))
    assert tiebeam.ties(model) == ()
    assert tiebeam.save(model, tmp_path / "m.safetensors") == ()
    fresh = copy.deepcopy(model)
    tiebeam.load(fresh, tmp_path / "m.safetensors")
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), fresh.parameters(), strict=True))
