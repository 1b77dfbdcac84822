"""Text on disk: cut once, mapped by everyone, and refused where it does not fit."""

import json
import sys
import time
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from tiebeam.errors import BackendError, InputError, StoreError
from tiebeam.experiments import data
from tiebeam.experiments.catalog import experiment
from tiebeam.experiments.data import Source, Tokens, prepare_tokens
from tiebeam.experiments.sweep import ask

TEXT = "the cat sat on the mat and the dog sat on the cat . " * 60


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


def words_of(tmp_path, vocabulary, unknown="<unk>"):
    """A tokenizer of whole words."""
    words = {word: i for i, word in enumerate([unknown, *vocabulary])}
    made = Tokenizer(models.WordLevel(words, unk_token=unknown))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    path = tmp_path / "tokenizer.json"
    made.save(str(path))
    return path


def files(path, **more):
    return Source("files", (path,), **more)


def test_tokens_are_mapped_from_disk_and_cut_once(text, tmp_path, monkeypatch):
    first = prepare_tokens(files(text, vocab=300), tmp_path / "cache")
    assert isinstance(first.train, np.memmap)
    assert not first.train.flags.writeable
    assert first.train.dtype == np.uint16
    assert first.vocab <= 300
    monkeypatch.setattr(data, "_encode", None)  # whoever cut again would call it
    again = prepare_tokens(files(text, vocab=300), tmp_path / "cache")
    assert again.config == first.config
    assert np.array_equal(again.train, first.train)
    assert Tokens.open(first.folder).digest == first.digest


def test_another_text_or_vocabulary_is_other_data(text, tmp_path):
    found = {prepare_tokens(files(text, vocab=vocab), tmp_path).digest for vocab in (270, 300)}
    text.write_text(TEXT + "more")
    found.add(prepare_tokens(files(text, vocab=300), tmp_path).digest)
    assert len(found) == 3


def test_the_last_tenth_of_a_file_is_held_out(text, tmp_path):
    tokens = prepare_tokens(files(text, vocab=300), tmp_path)
    share = len(tokens.validation) / (len(tokens.train) + len(tokens.validation))
    assert share == pytest.approx(0.1, abs=0.02)


def test_ids_of_a_given_tokenizer_are_numbered_by_those_that_occur(text, tmp_path):
    tokenizer = words_of(tmp_path, ["unused", *"the cat sat on mat and dog .".split(), "never"])
    tokens = prepare_tokens(files(text, tokenizer=tokenizer), tmp_path)
    assert tokens.vocab == 8
    assert set(np.unique(tokens.train)) == set(range(8))
    assert prepare_tokens(files(text, tokenizer=tokenizer, vocab=50), tmp_path).vocab == 50  # rows no text reads


def test_a_tokenizer_that_does_not_fit_is_refused(text, tmp_path):
    tokenizer = words_of(tmp_path, "the cat".split())
    with pytest.raises(InputError, match=r"(?s)does not fit the text.*are unknown"):
        prepare_tokens(files(text, tokenizer=tokenizer), tmp_path)
    tokenizer = words_of(tmp_path, "the cat sat on mat and dog .".split())
    with pytest.raises(InputError, match=r"(?s)does not fit the vocabulary.*8 different.*at most 5"):
        prepare_tokens(files(text, tokenizer=tokenizer, vocab=5), tmp_path)
    tokenizer.write_text(tokenizer.read_text()[:-20])
    with pytest.raises(InputError, match="cannot be loaded"):
        prepare_tokens(files(text, tokenizer=tokenizer), tmp_path)
    tokenizer.write_text("{}")
    with pytest.raises(InputError, match="cannot be loaded"):
        prepare_tokens(files(text, tokenizer=tokenizer), tmp_path)
    with pytest.raises(InputError, match="cannot be loaded"):
        prepare_tokens(files(text, tokenizer=tmp_path / "absent.json"), tmp_path)


def test_text_shorter_than_a_block_is_refused_before_any_run(tmp_path):
    short = tmp_path / "short.txt"
    short.write_text("a short text")
    with pytest.raises(InputError, match=r"(?s)shorter than one window.*at least 33"):
        ask(experiment("init-stats"), "smoke", {"vocab": 300}, data=[str(short)], cache=tmp_path)
    with pytest.raises(InputError, match="cannot be read"):
        prepare_tokens(files(tmp_path), tmp_path)
    with pytest.raises(InputError, match="not cut by a tokenizer"):
        ask(experiment("init-stats"), "smoke", {}, data=["synthetic"], tokenizer=short, cache=tmp_path)


@pytest.mark.parametrize(
    "setting", [lambda t: t.enable_truncation(16), lambda t: t.enable_padding(length=4000)], ids=["cut", "filled up"]
)
def test_a_text_is_read_whole_whatever_length_its_tokenizer_cuts_and_fills_to(setting, text, tmp_path):
    """A tokenizer.json that cuts to 512 tokens left 512 of 42,159, and nobody was told."""
    path = words_of(tmp_path, "the cat sat on mat and dog .".split())
    plain = prepare_tokens(files(text, tokenizer=path), tmp_path / "plain")
    tokenizer = Tokenizer.from_file(str(path))
    setting(tokenizer)
    tokenizer.save(str(path))
    found = prepare_tokens(files(text, tokenizer=path), tmp_path / "cut")
    assert np.array_equal(found.train, plain.train)
    assert found.vocab == plain.vocab


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16", "utf-32"])
def test_what_is_no_utf8_is_refused_and_not_read_as_something_else(encoding, tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes(("café " * 400).encode(encoding))
    with pytest.raises(InputError, match=r"(?s)text.txt' is no UTF-8.*byte 0x.. at \d.*Hint: iconv"):
        prepare_tokens(files(path, vocab=300), tmp_path)
    path.write_bytes(b"\x1f\x8b\x08" + bytes(range(256)) * 9)
    with pytest.raises(InputError, match="compressed"):
        prepare_tokens(files(path, vocab=300), tmp_path)


def test_line_ends_and_a_mark_at_the_beginning_do_not_change_a_text(tmp_path):
    found = []
    for written in (TEXT.replace(". ", ".\n").encode(), TEXT.replace(". ", ".\r\n").encode("utf-8-sig")):
        path = tmp_path / "text.txt"
        path.write_bytes(written)
        found.append(prepare_tokens(files(path, vocab=300), tmp_path).digest)
    assert found[0] == found[1]


@pytest.mark.parametrize("letter", ["a", " ", "é"])
def test_a_line_without_end_takes_seconds(letter, tmp_path):
    """200,000 letters took a minute, and twice as many four."""
    path = tmp_path / "text.txt"
    path.write_text("a b " + letter * 400_000, encoding="utf-8")
    began = time.perf_counter()
    tokens = prepare_tokens(files(path, vocab=300), tmp_path)
    assert time.perf_counter() - began < 20
    assert len(tokens.train) > 100


@pytest.mark.parametrize("damage", ["about.json", "train.npy", "validation.npy"])
def test_tokens_that_were_damaged_are_said_with_what_to_remove(damage, text, tmp_path):
    folder = prepare_tokens(files(text, vocab=300), tmp_path).folder
    (folder / damage).write_bytes((folder / damage).read_bytes()[:100])
    with pytest.raises(StoreError, match=r"(?s)are damaged.*remove that folder"):
        Tokens.open(folder)


def test_who_may_read_other_files_of_the_folder_may_read_tokens(text, tmp_path):
    (tmp_path / "other").mkdir()
    assert prepare_tokens(files(text, vocab=300), tmp_path).folder.stat().st_mode == (tmp_path / "other").stat().st_mode


def test_a_text_with_a_name_cannot_stand_among_files(text, tmp_path):
    with pytest.raises(InputError, match="stdlib among 2 texts"):
        ask(experiment("init-stats"), "smoke", {}, data=[str(text), "stdlib"], cache=tmp_path)


def test_a_folder_that_cannot_be_written_is_said(text, tmp_path):
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(StoreError, match="cannot be kept"):
        prepare_tokens(files(text, vocab=300), tmp_path / "taken")


def test_synthetic_ids_are_uniform_and_need_no_tokenizer(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    tokens = prepare_tokens(Source("synthetic", vocab=70_000), tmp_path)
    assert (tokens.vocab, tokens.train.dtype) == (70_000, np.uint32)
    assert abs(float(np.mean(tokens.train)) / 35_000 - 1) < 0.01


# ---- wikitext-2


def datasets_that(answer):
    module = ModuleType("datasets")
    module.load_dataset = answer
    return module


def test_wikitext_without_its_package_or_the_network_says_what_to_do_instead(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(BackendError, match=r"(?s)pip install datasets.*--data FILE"):
        prepare_tokens(Source("wikitext-2"), tmp_path)

    def offline(*names, split):
        raise ConnectionError("Couldn't reach the hub\nand more")

    monkeypatch.setitem(sys.modules, "datasets", datasets_that(offline))
    with pytest.raises(InputError, match=r"(?s)wikitext-2 cannot be had.*Couldn't reach the hub\n.*--tokenizer FILE"):
        prepare_tokens(Source("wikitext-2"), tmp_path)


def test_wikitext_keeps_its_own_parts_and_wants_pythias_tokenizer(tmp_path, monkeypatch):
    asked = []

    def load(name, config, *, split):
        asked.append((name, config, split))
        return {"text": ["the cat sat\n", "on the mat\n"] if split == "train" else ["the dog\n"]}

    tokenizer = words_of(tmp_path, "the cat sat on mat dog".split())
    wanted = []
    loaded = SimpleNamespace(
        from_pretrained=lambda name: wanted.append(name) or Tokenizer.from_file(str(tokenizer)), from_file=None
    )
    monkeypatch.setitem(sys.modules, "datasets", datasets_that(load))
    monkeypatch.setattr("tokenizers.Tokenizer", loaded)
    tokens = prepare_tokens(Source("wikitext-2"), tmp_path)
    assert asked == [("Salesforce/wikitext", "wikitext-2-raw-v1", split) for split in ("train", "validation")]
    assert wanted == ["EleutherAI/pythia-70m"]
    assert (len(tokens.train), len(tokens.validation), tokens.vocab) == (6, 2, 6)


@pytest.mark.slow
def test_real_wikitext_with_the_neox_tokenizer(shared, tmp_path):
    """The Pythia models' tokenizer is GPT-NeoX's; the text is the validation part of wikitext-2."""
    text = shared / "data/text/wikitext2-valid.txt"
    tokenizer = shared / "data/tokenizers/gpt-neox-20b.tokenizer.json"
    tokens = prepare_tokens(Source("files", (text,), tokenizer=tokenizer, vocab=33_527), tmp_path)
    used = np.unique(np.concatenate([tokens.train, tokens.validation]))
    assert 10_000 < len(used) < 33_527 == tokens.vocab
    assert used[-1] == len(used) - 1
    about = json.loads((tokens.folder / "about.json").read_text())
    assert about["label"].startswith("wikitext2-valid.txt, ")
