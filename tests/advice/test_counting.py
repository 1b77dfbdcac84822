"""Counts of real configs and files: exact where a library builds them, by a formula that is named where not."""

import csv
import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from tests.checkpoints.tiny import tiny
from tests.checkpoints.writing import gguf
from tests.cli.conftest import Run
from torch import nn

import tiebeam
from tiebeam.core.advising.advice import Advice
from tiebeam.core.advising.evidence import PRACTICE
from tiebeam.errors import CheckpointError, RangeError, TargetError, TiebeamError

pytestmark = pytest.mark.slow

TINY = {
    "model_type": "llama", "vocab_size": 100, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 32,
}  # fmt: skip
# Two norms and seven matrices a layer, a last norm.
TINY_BODY = 2 * (2 * 16 + 2 * 16 * 16 + 2 * 16 * 8 + 3 * 16 * 32) + 16


def stored(advice: Advice) -> int | None:
    """Parameters of the model as it is now."""
    return {"tied": advice.tied, "untied": advice.untied, "no-readout": advice.untied}.get(advice.counted.now)


@pytest.mark.parametrize("tie", [True, False])
def test_a_config_is_counted_exactly_either_way(tie: bool) -> None:
    found = tiebeam.advise({**TINY, "tie_word_embeddings": tie})
    assert (found.counted.how, found.counted.now) == ("built", "tied" if tie else "untied")
    assert found.counted.body == TINY_BODY
    assert (found.tied, found.untied, found.saved) == (TINY_BODY + 1600, TINY_BODY + 3200, 1600)
    assert found.counted.layers == 2


def test_a_config_object_a_file_and_a_folder_say_the_same(tmp_path: Path) -> None:
    from transformers import LlamaConfig

    (tmp_path / "config.json").write_text(json.dumps(TINY))
    said = [LlamaConfig(**TINY), tmp_path, tmp_path / "config.json", str(tmp_path)]
    assert len({(a.tied, a.untied) for a in map(tiebeam.advise, said)}) == 1


class Tiny(nn.Module):
    """Of the catalogue: a state dict and the sum over children count its table twice."""

    def __init__(self, vocab: int = 1000, width: int = 32, tie: bool = True, out: int | None = None) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.mid = nn.Linear(width, width)
        self.head = nn.Linear(width, out or vocab, bias=False)
        if tie:
            self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.mid(self.embed(ids))))  # type: ignore[no-any-return]


def test_a_live_model_is_counted_by_what_it_does() -> None:
    ids = torch.arange(8)[None]
    tied, untied = (tiebeam.advise(Tiny(tie=tie), inputs=ids) for tie in (True, False))
    assert (tied.tied, tied.untied, tied.saved) == (33056, 65056, 32000) == (untied.tied, untied.untied, untied.saved)
    assert (tied.counted.now, untied.counted.now, tied.counted.how) == ("tied", "untied", "seen")
    aliased = Tiny(tie=False)
    aliased.head.weight = nn.Parameter(aliased.embed.weight.data)
    assert tiebeam.advise(aliased, inputs=ids).tied == 33056
    apart = tiebeam.advise(Tiny(tie=False, out=990), inputs=ids)
    assert (apart.verdict, apart.untied) == ("cannot tie", 1056 + 32000 + 990 * 32)
    assert tiebeam.advise(tiny("GPT2LMHeadModel")).counted.now == "tied"
    with pytest.raises(TargetError, match="no table"):
        tiebeam.advise(nn.Linear(4, 4), inputs=torch.zeros(1, 4))


def test_a_class_without_a_readout_is_counted_as_the_one_that_has_it() -> None:
    found = tiebeam.advise({**TINY, "architectures": ["LlamaModel"]})
    assert found.untied == TINY_BODY + 3200
    assert found.counted.notes == ("LlamaModel reads nothing out over the vocabulary: counted as LlamaForCausalLM",)


def test_code_that_a_config_names_is_left_out_and_said(tmp_path: Path) -> None:
    found = tiebeam.advise({**TINY, "auto_map": {"AutoModel": "evil.Model"}})
    assert found.untied == TINY_BODY + 3200
    assert "code of its own" in found.counted.notes[0]


def test_what_no_library_builds_goes_by_a_formula_that_is_named() -> None:
    found = tiebeam.advise({**TINY, "model_type": "nobodys", "hidden_act": "silu"})
    assert (found.counted.how, found.counted.formula) == ("formula", "layers x (2*width*(q + kv) + 3*width*ff)")
    assert found.counted.body == TINY_BODY - 5 * 16  # all but the norms
    assert any("estimate" in n for n in found.counted.notes)
    assert any(n.startswith("not built: ") and "nobodys" in n for n in found.counted.notes)
    bare = tiebeam.advise({"vocab_size": 100, "d_model": 16, "n_layers": 2, "weight_tying": True})
    assert (bare.counted.body, bare.counted.now) == (12 * 2 * 16**2, "tied")
    unknown = tiebeam.advise({"vocab_size": 100, "d_model": 16})
    assert (unknown.tied, unknown.saved) == (None, 1600)


def test_a_config_that_transformers_knows_and_cannot_build_says_so_first() -> None:
    with pytest.raises(TargetError, match=r"^transformers cannot build .*\n  got: ValueError.*num_heads"):
        tiebeam.advise({"model_type": "gpt2", "n_embd": 33, "n_head": 2})


def test_a_table_padded_or_factorised_by_its_own_size() -> None:
    padded = tiebeam.advise({"vocab_size": 100, "embedding_size": 128, "d_model": 16, "n_layers": 2})
    factorised = tiebeam.advise({"vocab_size": 100, "embedding_size": 4, "d_model": 16, "n_layers": 2})
    assert (padded.saved, factorised.saved) == (128 * 16, 100 * 4)


def test_yaml_with_dashes_is_read_and_a_vocabulary_may_be_given(tmp_path: Path) -> None:
    file = tmp_path / "pythia.yml"
    file.write_text('{"num-layers": 6, "hidden-size": 512, "num-attention-heads": 8, "no-weight-tying": true}')
    with pytest.raises(TargetError, match=r"names no vocabulary\n"):
        tiebeam.advise(file)
    found = tiebeam.advise(file, vocab=50304)
    assert (found.counted.now, found.counted.body, found.saved) == ("untied", 12 * 6 * 512**2, 50304 * 512)


def weights(path: Path, **shapes: tuple[int, ...]) -> Path:
    save_file({k: np.zeros(s, np.float32) for k, s in shapes.items()}, path)
    return path


def test_safetensors_are_counted_by_their_headers(tmp_path: Path) -> None:
    both = weights(tmp_path / "a.safetensors", **{"embed.weight": (10, 4), "head.weight": (10, 4), "body": (5, 5)})
    found = tiebeam.advise(both)
    assert (found.counted.how, found.counted.now, found.untied, found.tied) == ("file", "untied", 105, 65)
    one = tiebeam.advise(weights(tmp_path / "b.safetensors", **{"embed.weight": (10, 4), "body": (5, 5)}))
    assert (one.counted.now, one.counted.body) == ("unknown", 25)
    apart = tiebeam.advise(weights(tmp_path / "c.safetensors", **{"emb.weight": (12, 4), "head.weight": (10, 4)}))
    assert (apart.verdict, apart.untied) == ("cannot tie", 88)
    with pytest.raises(TargetError, match="holds no table"):
        tiebeam.advise(weights(tmp_path / "d.safetensors", body=(5, 5)))
    (tmp_path / "e.safetensors").write_bytes(b"\xff" * 64)
    with pytest.raises(CheckpointError, match="no safetensors file"):
        tiebeam.advise(tmp_path / "e.safetensors")


def test_an_index_is_counted_by_its_files_its_config_or_its_bytes(tmp_path: Path) -> None:
    weights(tmp_path / "1.safetensors", **{"embed.weight": (10, 4)})
    weights(tmp_path / "2.safetensors", **{"head.weight": (10, 4), "body": (5, 5)})
    where = {"embed.weight": "1.safetensors", "head.weight": "2.safetensors", "body": "2.safetensors"}
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 420}, "weight_map": where}))
    assert tiebeam.advise(tmp_path).untied == 105
    (tmp_path / "1.safetensors").unlink()
    with pytest.raises(TargetError, match="does not say how large the tables are") as refused:
        tiebeam.advise(index)
    assert "'embed.weight' and 'head.weight'" in str(refused.value) or "embed.weight and head.weight" in str(
        refused.value
    )
    assert tiebeam.advise(index, vocab=10, width=4, dtype="float32").untied == 105
    with pytest.raises(TargetError, match="too small for its tables"):
        tiebeam.advise(index, vocab=1000, width=4, dtype="float32")
    (tmp_path / "config.json").write_text(json.dumps({**TINY, "tie_word_embeddings": True}))
    assert any("stored twice" in n for n in tiebeam.advise(index).counted.notes)


@pytest.mark.parametrize("name", ["../x.safetensors", "/etc/passwd"])
def test_an_index_that_leads_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"embed.weight": name}}))
    with pytest.raises(CheckpointError, match="outside its folder"):
        tiebeam.advise(index)


def test_what_is_no_target_is_refused_with_what_would_be_one(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"GGUF")
    (tmp_path / "empty").mkdir()
    for target, complaint in (
        (tmp_path / "none.json", "there is no file"),
        (tmp_path / "empty", "holds no file of weights"),
        (tmp_path / "x.gguf", "no sound GGUF file"),
        ("gtp2", "did you mean 'gpt2'"),
        ("mine:build", r"(?s)code of yours.*tiebeam.advise\(model, inputs=...\)"),
    ):
        with pytest.raises((CheckpointError, TargetError), match=complaint):
            tiebeam.advise(target)


def test_weights_of_every_format_are_counted_by_their_headers(tmp_path: Path, shared: Path) -> None:
    """They were turned away by their suffix."""
    rows = np.ones((10, 4), np.float32)
    ends = {"embedding": rows, "out_w": rows.T.copy(), "body": np.ones((5, 5), np.float32)}
    np.savez(tmp_path / "m.npz", **ends)
    with h5py.File(tmp_path / "m.weights.h5", "w") as file:
        for name, array in ends.items():
            file[f"layers/{name}/vars/0"] = array
    for name in ("m.npz", "m.weights.h5"):
        found = tiebeam.advise(tmp_path / name)
        assert (found.counted.now, found.counted.vocab, found.untied, found.tied) == ("untied", 10, 105, 65)
    table = torch.ones(10, 4)
    torch.save({"model": {"wte.weight": table, "lm_head.weight": table, "w": torch.ones(5, 5)}}, tmp_path / "m.pt")
    one = tiebeam.advise(tmp_path / "m.pt")
    assert (one.counted.now, one.tied, one.untied) == ("tied", 65, 105)
    gguf(tmp_path / "m.gguf", {"token_embd.weight": (8, (10, 32), bytes(10 * 34)), "w": (0, (5, 5), bytes(100))})
    assert (tiebeam.advise(tmp_path / "m.gguf").tied, tiebeam.advise(tmp_path / "m.gguf").counted.now) == (345, "tied")
    real = tiebeam.advise(shared / "data/checkpoints/stories260K/stories260K.bin")
    assert (real.counted.vocab, real.counted.width, real.counted.now) == (512, 64, "tied")
    assert real.tied == 260_032  # without the rotation's tables, which the file holds too
    g2p = tiebeam.advise(shared / "data/checkpoints/g2p-en/checkpoint20.npz")
    assert (g2p.untied, g2p.saved, g2p.counted.now) == (834_890, 74 * 256, "untied")


def test_of_two_tables_that_cannot_tie_the_readouts_size_counts(tmp_path: Path, shared: Path) -> None:
    found = tiebeam.advise(shared / "data/checkpoints/textgenrnn/textgenrnn_weights.hdf5")
    assert (found.verdict, found.untied, found.counted.other) == ("cannot tie", 462_717, 465 * 100)
    assert (found.counted.vocab, found.counted.width) == (465, 356)


HOSTILE: dict[str, dict[str, Any]] = {
    "layers": {**TINY, "num_hidden_layers": 10**9},
    "labels": {**TINY, "num_labels": 10**9},
    "patterns": {"model_type": "gpt_neo", "attention_types": [[["global"], 10**9]], "num_layers": 2},
    "vocabulary": {**TINY, "vocab_size": 10**30},
    "digits": {**TINY, "num_hidden_layers": 10**4200},
    "width": {**TINY, "hidden_size": 10**12, "intermediate_size": 10**12},
    "odd keys": {1: 2, None: 3, ("a",): "x" * 10**6},  # type: ignore[dict-item]
    "not numbers": {**TINY, "hidden_size": float("inf"), "vocab_size": "9" * 10**5},
}


@pytest.mark.parametrize("config", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_config_is_refused_at_once(config: dict[str, Any]) -> None:
    start = time.process_time()
    with pytest.raises((TargetError, RangeError)):
        tiebeam.advise(config)
    assert time.process_time() - start < 5


@pytest.mark.parametrize("architectures", [5, "LlamaForCausalLM", ["X"] * 10**5, [None, {}]])
def test_odd_architectures_do_no_harm(architectures: object) -> None:
    assert tiebeam.advise({**TINY, "architectures": architectures}).untied == TINY_BODY + 3200


def test_a_model_that_takes_too_long_to_build_goes_by_its_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tiebeam.checkpoints.counting.SECONDS", 0.0)
    found = tiebeam.advise(TINY)
    assert found.counted.how == "formula"
    assert any("more modules than tiebeam builds" in n for n in found.counted.notes)


def test_aliases_that_unfold_without_end_are_refused(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    (tmp_path / "bomb.yml").write_text("\n".join(lines))
    with pytest.raises(TargetError, match="too large for a config"):
        tiebeam.advise(tmp_path / "bomb.yml")


def rows(shared: Path, name: str) -> list[dict[str, str]]:
    with (shared / "data/configs" / name).open(newline="") as file:
        return list(csv.DictReader(file))


def config_file(shared: Path, name: str) -> Path:
    place = shared / "data/configs"
    json_file = place / "models" / f"{name.replace('/', '__')}.json"
    return json_file if json_file.exists() else place / "pythia-neox-yml" / f"{name.split('/')[1]}.yml"


@pytest.mark.slow
@pytest.mark.zoo
@pytest.mark.wide
@pytest.mark.filterwarnings("ignore")  # transformers' own, about fields of old configs
def test_each_public_config_gives_an_answer_or_a_plain_reason(shared: Path) -> None:
    listed = rows(shared, "index.csv")
    assert len(listed) == 215
    how: Counter[str] = Counter()
    wrong, reasons = [], []
    for row in listed:
        try:
            found = tiebeam.advise(config_file(shared, row["name"]))
        except TiebeamError as refused:
            how["refused"] += 1
            reasons.append(refused.what)
            continue
        how[found.counted.how] += 1
        built = row["params_unique_transformers"]
        whole = found.counted.how == "built" and not _with_a_picture_part(row, found)
        if whole and built and (str(stored(found)), str(found.counted.now == "tied")) != (
            built, row["tied_effective_transformers"],
        ):  # fmt: skip
            wrong.append((row["name"], stored(found), built))
    assert not wrong
    assert all("names no vocabulary" in why or "cannot be read as YAML" in why for why in reasons)
    assert how == {"built": 162, "formula": 34, "refused": 19}


def _with_a_picture_part(row: dict[str, str], found: Advice) -> bool:
    """The list counted these as their language part alone; here the class that they name is built whole."""
    text = row["model_class_built"].endswith("ForCausalLM")
    return text and row["architecture"].endswith("ForConditionalGeneration")


@pytest.mark.zoo
@pytest.mark.wide
@pytest.mark.filterwarnings("ignore")
def test_published_totals_come_out_to_the_parameter(shared: Path) -> None:
    checks = rows(shared, "param_checks.csv")
    equal = [row for row in checks if row["result"] == "equal"]
    assert (len(checks), len(equal)) == (43, 40)
    for row in checks:
        found = tiebeam.advise(config_file(shared, row["config"]))
        published = int(row["published_params"])
        # Three publish a tied model's readout as parameters of its own.
        assert published == (stored(found) if row in equal else found.untied), row["config"]


@pytest.mark.filterwarnings("ignore")
def test_the_indexes_hold_what_their_configs_ask_for(shared: Path) -> None:
    bytes_each = {}
    for index in sorted((shared / "data/index").glob("*.json")):
        name = index.name.removesuffix(".model.safetensors.index.json")
        found = tiebeam.advise(index, config=config_file(shared, f"hub/{name}"))
        notes = " ".join(found.counted.notes)
        bytes_each[name] = notes.rpartition("the files hold ")[2].split()[0]
        assert ("stored twice" in notes) == (name == "falcon-180b-chat")
    quantised = bytes_each.pop("llama-3.1-8b-instruct-bnb-int8")
    assert set(bytes_each.values()) == {"2"}
    assert float(quantised) < 1.2
    assert len(bytes_each) == 8


def test_the_counted_practice_is_that_of_the_public_configs(shared: Path) -> None:
    models = set()
    for row in rows(shared, "index.csv"):
        if row["tied_effective_transformers"] and row["params_saved_or_cost_of_tying"]:
            tied = row["tied_effective_transformers"] == "True"
            total, table = int(row["params_unique_transformers"]), int(row["params_saved_or_cost_of_tying"])
            models.add((total + table * tied, table, tied))
    for practice, above in zip(PRACTICE, (1.0, *(p.least for p in PRACTICE)), strict=False):
        inside = [tied for untied, table, tied in models if practice.least <= table / untied < above]
        assert (sum(inside), len(inside)) == (practice.tied, practice.models)


def test_the_command_advises_in_every_form(run: Run, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    said = run("advise", tmp_path, "--format", "json", "--batch", "2", "--length", "3", "--dtype", "bfloat16")
    assert (said.code, said.err) == (0, "")
    found = json.loads(said.out)
    assert (found["untied"], found["memory"]["logits"]) == (TINY_BODY + 3200, 2 * 3 * 100 * 2)
    page = run("advise", "--vocab", "50257", "--width", "768", "--body", "85842432", "--output", tmp_path / "a.html")
    assert (page.code, page.out) == (0, "")
    assert "163,037,184" in (tmp_path / "a.html").read_text()
    text = run("advise", "--vocab", "50257", "--width", "768", "--layers", "12")
    assert "by formula: 12 x layers x width**2" in text.out
    assert run("advise").code == run("advise", tmp_path / "none.json").code == 2
