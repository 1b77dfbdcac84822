"""`tiebeam measure`: the same figures as the call, on text, ids and batches of the user's."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from jsonschema import Draft202012Validator
from tests.checkpoints.tiny import GPT2, SPEECH, tiny
from tests.cli.conftest import Run

import tiebeam
from tiebeam.cli.targets import resolve
from tiebeam.reports.jsontext import portable
from tiebeam.reports.measured import schema

pytestmark = pytest.mark.slow

TEXT = "One table, read at both ends: as the lookup and as the readout. Zwölf Boxkämpfer!\n" * 3
BATCHES = """
import torch
ids = torch.arange(12).view(2, 6)

def pair():
    return ids, ids + 1

def needs(this):
    return ids

def nothing():
    return None

def breaks():
    raise RuntimeError("no data here")
"""


@pytest.fixture
def text(models: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (models / "batches.py").write_text(BATCHES)
    (models / "text.txt").write_text(TEXT, encoding="utf-8")
    monkeypatch.delitem(__import__("sys").modules, "batches", raising=False)
    return models / "text.txt"


def measured(run: Run, target: str, data: object, *more: str) -> dict[str, Any]:
    ran = run("measure", target, "--data", data, "--format", "json", *more)
    assert ran.code == 0, ran.err
    found: dict[str, Any] = json.loads(ran.out)
    return found


def same(found: dict[str, Any], want: tiebeam.Measurement) -> None:
    assert found == json.loads(want.to_json())


def test_text_is_bytes_where_the_target_has_no_tokenizer_and_the_figures_are_those_of_the_call(
    text: Path, run: Run
) -> None:
    ran = run("measure", "lm:build", "--data", "text.txt", "--rows", "2", "--tokens", "16", "--format", "json")
    assert "measured on 2 x 16 tokens of text.txt, its bytes as ids: the target has no tokenizer" in ran.err
    ids = torch.tensor(list(TEXT.encode()[:32])).view(2, 16)
    same(json.loads(ran.out), tiebeam.measure(resolve("lm:build").model, ids))
    Draft202012Validator(schema()).validate(json.loads(ran.out))


def test_what_few_bits_do_is_what_the_call_says(text: Path, run: Run) -> None:
    size = ("--rows", "2", "--tokens", "16", "--group", "0")
    ran = run("sensitivity", "lm:build", "-d", "text.txt", *size, "--bits", "8", "--bits", "4", "--format", "json")
    ids = torch.tensor(list(TEXT.encode()[:32])).view(2, 16)
    want = tiebeam.sensitivity(resolve("lm:build").model, ids, bits=(8, 4), group=None)
    assert (ran.code, json.loads(ran.out)) == (0, portable(want.to_dict()))
    assert "measured on 2 x 16 tokens of text.txt" in ran.err
    shown = run("sensitivity", "lm:build", "-d", "text.txt", *size)
    assert f"{want.table} (" in shown.out
    assert "readout     6       row" in shown.out
    assert run("sensitivity", "lm:build", "-d", "text.txt", "--tolerance", "0").code == 2
    assert run("sensitivity", "lm:build", "-d", "none.txt").code == 2


def test_bytes_beyond_the_vocabulary_are_refused(text: Path, run: Run) -> None:
    ran = run("measure", "lm:partly", "--data", "text.txt")
    assert ran.code == 2
    assert "no tokens of TiedLM" in ran.err
    assert "and 40 rows in its tallest table" in ran.err


def test_a_short_text_is_one_short_row(text: Path, run: Run) -> None:
    text.write_text("short")
    assert "1 x 5 tokens" in run("measure", "lm:build", "--data", "text.txt").err


def trained_tokenizer(file: Path) -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    held = Tokenizer(models.BPE())
    held.pre_tokenizer = pre_tokenizers.ByteLevel()
    held.train_from_iterator([TEXT], trainers.BpeTrainer(vocab_size=96, show_progress=False))
    held.save(str(file))
    return held


def test_the_tokenizer_beside_the_target_reads_the_text(text: Path, tmp_path: Path, run: Run) -> None:
    folder = tmp_path / "saved"
    model = tiny("GPT2LMHeadModel", bos_token_id=0, eos_token_id=0)
    model.save_pretrained(folder)
    tokenizer = trained_tokenizer(folder / "tokenizer.json")
    ran = run("measure", folder, "--data", "text.txt", "--rows", "2", "--tokens", "8", "--format", "json")
    assert f"tokens of text.txt, by {folder / 'tokenizer.json'}" in ran.err
    assert "random" not in ran.err
    ids = torch.tensor(tokenizer.encode(TEXT).ids[:16]).view(2, 8)
    same(json.loads(ran.out), tiebeam.measure(model, {"input_ids": ids}))


def test_a_tokenizer_of_another_kind_is_built_by_transformers(text: Path, tmp_path: Path, run: Run) -> None:
    folder = tmp_path / "saved"
    model = tiny("BertForMaskedLM")
    model.save_pretrained(folder)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "one", "table", ",", "read", "at", "both", "ends"]
    (folder / "vocab.txt").write_text("\n".join(words))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer"}))
    ran = run("measure", folder, "--data", "text.txt", "--rows", "1", "--tokens", "6", "--format", "json")
    assert f"by the tokenizer in {folder}" in ran.err
    same(json.loads(ran.out), tiebeam.measure(model, {"input_ids": torch.tensor([[5, 6, 7, 8, 9, 10]])}))


def test_a_tokenizer_that_cannot_be_read_is_an_error_and_not_passed_over(text: Path, tmp_path: Path, run: Run) -> None:
    folder = tmp_path / "saved"
    tiny("GPT2LMHeadModel", bos_token_id=0, eos_token_id=0).save_pretrained(folder)
    (folder / "tokenizer.json").write_text("{}")
    ran = run("measure", folder, "--data", "text.txt")
    assert ran.code == 2
    assert "is no tokenizer" in ran.err


IDS = np.arange(1000, dtype=np.uint16) * 7 % 300


@pytest.mark.parametrize("suffix", ["npy", "npz", "json"])
def test_a_long_list_of_ids_is_cut_into_rows(suffix: str, text: Path, run: Run) -> None:
    file = text.with_name(f"ids.{suffix}")
    if suffix == "npy":
        np.save(file, IDS)
    elif suffix == "npz":
        np.savez(file, IDS)
    else:
        file.write_text(json.dumps(IDS.tolist()))
    found = measured(run, "lm:build", file, "--rows", "3", "--tokens", "20")
    ids = torch.from_numpy(IDS[:60].astype(np.int64)).view(3, 20)
    same(found, tiebeam.measure(resolve("lm:build").model, ids))


def test_rows_of_ids_stay_as_they_are(text: Path, run: Run) -> None:
    (text.parent / "ids.json").write_text("[[1, 2, 3], [4, 5, 6]]")
    ran = run("measure", "lm:build", "-d", "ids.json", "--rows", "1")
    assert "measured on 2 x 3 ids of ids.json" in ran.err


@pytest.mark.parametrize("suffix", ["npz", "json"])
def test_named_arrays_are_keyword_arguments_and_labels_are_targets(suffix: str, text: Path, run: Run) -> None:
    ids, labels = IDS[:8].astype(np.int64).reshape(2, 4), IDS[8:16].astype(np.int64).reshape(2, 4)
    file = text.with_name(f"batch.{suffix}")
    if suffix == "npz":
        np.savez(file, ids=ids, labels=labels)
    else:
        file.write_text(json.dumps({"ids": ids.tolist(), "labels": labels.tolist()}))
    found = measured(run, "lm:build", file)
    assert found["targets"] == "labels"
    same(found, tiebeam.measure(resolve("lm:build").model, {"ids": ids, "labels": labels}))


@pytest.mark.parametrize("data", ["batches:pair", "batches:ids"])
def test_a_function_of_the_users_gives_the_batch_and_an_object_is_one(data: str, text: Path, run: Run) -> None:
    ids = torch.arange(12).view(2, 6)
    want = tiebeam.measure(resolve("lm:build").model, (ids, ids + 1) if data.endswith("pair") else ids)
    same(measured(run, "lm:build", data), want)


@pytest.mark.parametrize("command", ["measure", "sensitivity"])
def test_a_file_that_is_not_there_is_missed_before_a_model_is_built(command: str, run: Run) -> None:
    ran = run(command, "there_is_no_such_module:either", "--data", "missing.txt")
    assert ran.code == 2
    assert "there is no file 'missing.txt'" in ran.err
    assert "Hint: paths are taken from the current folder" in ran.err


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        ("missing.txt", "there is no file 'missing.txt'"),
        (".", "a folder"),
        ("batches:nothing", "returned nothing"),
        ("batches:needs", "cannot be called"),
        ("batches:breaks", "no data here"),
        ("batches:pairs", "did you mean 'pair'"),
        ("empty.txt", "is empty"),
        ("floats.npy", "holds no token ids"),
        ("pickled.npy", "cannot be read"),
        ("broken.npz", "cannot be read"),
        ("ragged.json", "cannot be read"),
        ("word.json", "holds no token ids"),
        ("words.json", "holds no batch"),
        ("nothing.json", "holds no batch"),
        ("far.json", "does not run on these inputs"),
        ("one.json", "holds no targets"),
    ],
)
def test_what_is_no_batch_ends_with_2_and_says_why(data: str, complaint: str, text: Path, run: Run) -> None:
    (text.parent / "words.json").write_text('{"ids": [["a"]]}')
    (text.parent / "nothing.json").write_text("{}")
    here = text.parent
    (here / "empty.txt").write_text("")
    np.save(here / "floats.npy", np.zeros((2, 3)))
    np.save(here / "pickled.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    (here / "broken.npz").write_bytes(b"PK no archive")
    for name, content in (("ragged", "[[1, 2], [3]]"), ("word", '"ids"'), ("far", "[[1, 999]]"), ("one", "[[1]]")):
        (here / f"{name}.json").write_text(content)
    ran = run("measure", "lm:build", "--data", data)
    assert ran.code == 2
    assert ran.out == ""
    assert complaint in ran.err
    assert "fault of tiebeam" not in ran.err


def test_text_that_is_no_utf8_is_refused_by_a_tokenizer(text: Path, tmp_path: Path, run: Run) -> None:
    folder = tmp_path / "saved"
    tiny("GPT2LMHeadModel", bos_token_id=0, eos_token_id=0).save_pretrained(folder)
    trained_tokenizer(folder / "tokenizer.json")
    text.write_bytes(b"a\xff\xfe" + TEXT.encode())
    ran = run("measure", folder, "--data", "text.txt")
    assert ran.code == 2
    assert "is no UTF-8 text" in ran.err


def test_a_model_with_two_texts_gets_both_and_one_that_takes_sound_is_refused(text: Path, run: Run) -> None:
    here = text.parent
    for name, config in (
        ("t5", {"vocab_size": 300, "d_model": 32, "d_ff": 48, "num_layers": 1, "num_heads": 2, "d_kv": 16}),
        ("whisper", {**SPEECH, "vocab_size": 300}),
    ):
        (here / name).mkdir()
        (here / name / "config.json").write_text(json.dumps({"model_type": name, **config}))
    ids = torch.tensor(list(TEXT.encode()[:16])).view(1, 16)
    found = measured(run, "./t5", "text.txt", "--rows", "1", "--tokens", "16")
    same(found, tiebeam.measure(resolve("./t5").model, {"input_ids": ids, "decoder_input_ids": ids}))
    ran = run("measure", "./whisper", "--data", "text.txt")
    assert ran.code == 2
    assert "takes more than token ids" in ran.err
    assert "input_features" in ran.err


def test_what_is_random_is_said_and_a_spectrum_is_asked_for(text: Path, run: Run) -> None:
    (text.parent / "config.json").write_text(json.dumps({"model_type": "gpt2", **GPT2, "vocab_size": 300}))
    ran = run("measure", "config.json", "--data", "text.txt", "--tokens", "16", "--spectrum")
    assert "note: the weights are random" in ran.err
    assert "rank of transformer.wte.weight" in ran.out


@pytest.mark.parametrize(
    ("name", "start"), [("m.html", "<!DOCTYPE html>"), ("m.md", "# TiedLM: one batch"), ("m.json", "{")]
)
def test_a_file_gets_the_format_of_its_suffix(name: str, start: str, text: Path, run: Run) -> None:
    ran = run("measure", "lm:loud", "--data", "text.txt", "-o", name)
    assert (ran.code, ran.out) == (0, "")
    assert f"wrote {name}" in ran.err
    shown = (text.parent / name).read_text("utf-8")
    assert shown.startswith(start)
    assert "readout gradient" in shown or name == "m.json"


def test_the_terminal_shows_what_str_says(text: Path, run: Run) -> None:
    ids = torch.tensor(list(TEXT.encode()[:32])).view(2, 16)
    ran = run("measure", "lm:build", "--data", "text.txt", "--rows", "2", "--tokens", "16")
    want = str(tiebeam.measure(resolve("lm:build").model, ids))
    assert [" ".join(line.split()) for line in ran.out.splitlines()] == [
        " ".join(line.split()) for line in want.splitlines()
    ]
