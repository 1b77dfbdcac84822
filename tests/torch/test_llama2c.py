"""Real trained weights: a llama2.c file becomes a model that says what its author's program says."""

import math
import re
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

import tiebeam
from tiebeam.checkpoints.llama2c import FIELDS, MAGIC, layout, read_llama2c
from tiebeam.checkpoints.llama2c_tokens import BOS, Tokens, read_tokens
from tiebeam.errors import CheckpointError, RangeError, TargetError
from tiebeam.torch import load_llama2c
from tiebeam.zoo.torch.llama import Llama, LlamaConfig

pytestmark = pytest.mark.slow

DOCS = Path(__file__).resolve().parents[2] / "docs"
SIZES = dict(zip(FIELDS, (8, 12, 2, 2, 1, 20, 6), strict=True))
# What `./run stories260K.bin -z tok512.bin -t 0.0` prints: llama2.c, doc/stories260K.md.
GREEDY = """\
Once upon a time, there was a little girl named Lily. She loved to play outside in the park. One day, she saw a big, \
red ball. She wanted to play with it, but it was too high.
Lily's mom said, "Lily, let's go to the park." Lily was sad and didn't know what to do. She said, "I want to play with \
your ball, but I can't find it."
Lily was sad and didn't know what to do. She said, "I'm sorry, Lily. I didn't know what to do."
Lily didn't want to help her mom, so she said, "I'm sorry, mom. I didn't know what to do." Her mom said, "Don't worry, \
Lily. We can help you."""


@pytest.fixture(scope="module")
def stories(shared: Path) -> tuple[Llama, Tokens]:
    place = shared / "data/checkpoints/stories260K"
    return load_llama2c(place / "stories260K.bin"), read_tokens(place / "tok512.bin", 512)


@pytest.fixture(scope="module")
def written(stories: tuple[Llama, Tokens]) -> torch.Tensor:
    """The greedy text, as tokens."""
    return stories[0].generate(torch.tensor([[BOS]]), 256, stop=BOS)


def test_the_greedy_text_is_that_of_llama2c_to_the_character(
    stories: tuple[Llama, Tokens], written: torch.Tensor
) -> None:
    model, tokens = stories
    assert sum(p.numel() for p in model.parameters()) == 260032
    assert model.head.weight is model.embed.weight
    assert tokens.decode(written[0].tolist()) == GREEDY
    assert len(GREEDY) == 565
    encoded = tokens.encode(GREEDY)
    assert encoded[:256] == written[0, :256].tolist()  # the encoder joins as the model wrote
    assert tokens.decode(encoded) == GREEDY


def test_a_trained_table_is_seen_as_one(stories: tuple[Llama, Tokens], written: torch.Tensor) -> None:
    report = tiebeam.inspect(stories[0], written)
    [table] = report.tables
    assert (table.state, table.fresh) == ("tied", False)
    assert table.spread == pytest.approx(1.86, abs=0.01)
    report.assert_healthy()
    found = tiebeam.measure(stories[0], written, spectrum=True)
    assert found.initial_loss < 0.5 < 6.2 < (found.log_vocab or 0)  # its own greedy text
    assert found.own_rank is not None
    assert 20 < found.own_rank < 100  # no longer first, and still far from the 256.5 of chance
    assert (found.role_ratio or 0) < 0.3  # the readout sends most of the gradient
    assert found.tables[0].spectrum is not None
    assert 40 < found.tables[0].spectrum.effective_rank < 55


def test_a_trained_readout_suffers_ten_times_what_the_lookup_does(
    stories: tuple[Llama, Tokens], written: torch.Tensor
) -> None:
    found = tiebeam.sensitivity(stories[0], written)
    for bits in (8, 6, 4):
        assert found.effect("readout", bits, 32).kl > 8 * found.effect("lookup", bits, 32).kl
    assert found.bits == {"lookup": 4, "readout": 6}
    assert found.advice == "shared"
    assert not found.notes
    page = (DOCS / "quantisation.md").read_text("utf-8")
    for role in ("lookup", "readout"):
        [row] = re.findall(rf"^\| {role} \| (.*) \|$", page, re.MULTILINE)
        for bits, cell in zip((8, 6, 4), row.split(" | "), strict=True):
            assert found.effect(role, bits, 32).kl == pytest.approx(float(cell), rel=0.03)


def file(path: Path, *, tied: bool, legacy: bool, sizes: dict[str, int] | None = None, cut: int = 0) -> Path:
    sizes = sizes or SIZES
    count = sum(math.prod(s) for _, s in layout(sizes, tied=tied, legacy=legacy))
    values = (0.1 * np.random.default_rng(0).standard_normal(count)).astype("<f4").tobytes()
    vocab = sizes["vocab_size"] * (1 if tied or not legacy else -1)
    head = struct.pack("<7i", *({**sizes, "vocab_size": vocab}).values())
    if not legacy:
        head = (struct.pack("<Ii", MAGIC, 1) + head + bytes([tied])).ljust(256, b"\0")
    path.write_bytes((head + values)[: len(head + values) - cut])
    return path


@pytest.mark.parametrize("legacy", [True, False])
@pytest.mark.parametrize("tied", [True, False])
def test_both_versions_and_both_kinds_of_file_become_what_they_say(tmp_path: Path, legacy: bool, tied: bool) -> None:
    made = load_llama2c(file(tmp_path / "m.bin", tied=tied, legacy=legacy))
    held = read_llama2c(tmp_path / "m.bin")
    assert held.tied is tied is (made.head.weight is made.embed.weight)
    assert not held.arrays["wq"].flags.writeable
    np.testing.assert_array_equal(made.embed.weight.detach(), held.arrays["token_embedding_table"])
    np.testing.assert_array_equal(made.blocks[1].down.weight.detach(), held.arrays["w2"][1])
    if not tied:
        np.testing.assert_array_equal(made.head.weight.detach(), held.arrays["wcls"])
    states = [t.state for t in tiebeam.inspect(made, torch.arange(5)[None]).tables]
    assert states == (["tied"] if tied else ["untied", "untied"])
    with torch.no_grad():  # what was read is the model's own
        made.embed.weight.add_(1)
    assert not np.array_equal(made.embed.weight.detach(), held.arrays["token_embedding_table"])


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "is no llama2.c file"),
        (b"\x00\x01\x02\x03" * 20, r"taken for the last"),
        (b"\0" * 27, "is no llama2.c file"),
        (struct.pack("<7i", 8, 12, 2, 3, 1, 20, 6), "sizes of a transformer"),
        (struct.pack("<7i", 8, 12, 2, 2, 0, 20, 6), "sizes of a transformer"),
        (struct.pack("<7i", *[2**28 - 1] * 7), "sizes of a transformer"),
        (struct.pack("<7i", -8, 12, 2, 2, 1, 20, 6), "sizes of a transformer"),
        (struct.pack("<7i", 8, 12, 4096, 2, 1, 2**27, 6), "is not the size that its header asks for"),
        (struct.pack("<Ii", MAGIC, 2).ljust(300, b"\0"), "of a version that is not read"),
        (struct.pack("<Ii", MAGIC, 1).ljust(40, b"\0"), "of a version that is not read"),
    ],
)
def test_a_file_that_is_none_is_refused_by_its_header(tmp_path: Path, content: bytes, complaint: str) -> None:
    (tmp_path / "m.bin").write_bytes(content)
    with pytest.raises(CheckpointError, match=complaint):
        load_llama2c(tmp_path / "m.bin")


def test_a_truncated_or_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is not the size"):
        load_llama2c(file(tmp_path / "m.bin", tied=True, legacy=True, cut=4))
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_llama2c(tmp_path / "none.bin")


def tokenizer(path: Path, pieces: list[bytes], scores: list[float]) -> Path:
    rows = [struct.pack("<fi", s, len(p)) + p for p, s in zip(pieces, scores, strict=True)]
    path.write_bytes(struct.pack("<i", max(map(len, pieces))) + b"".join(rows))
    return path


def test_pairs_are_joined_by_score_and_unknown_characters_are_bytes(tmp_path: Path) -> None:
    raw = [f"<0x{i:02X}>".encode() for i in range(256)]
    pieces = [b"<unk>", b"\n<s>\n", b"\n</s>\n", *raw, b" ", b"a", b"b", b"c", b" a", b"ab", b"bc"]
    scores = [0.0] * 259 + [-9.0, -9.0, -9.0, -9.0, -3.0, -2.0, -1.0]
    tokens = read_tokens(tokenizer(tmp_path / "t.bin", pieces, scores), len(pieces))
    assert [tokens.pieces[i] for i in tokens.encode("abc")] == [b"\n<s>\n", b" a", b"bc"]
    assert tokens.encode("") == [BOS]
    assert tokens.decode(tokens.encode("abcé☃")) == "abcé☃"
    with pytest.raises(TargetError, match="no tokenizer of 3 tokens"):
        read_tokens(tmp_path / "t.bin", 3)
    (tmp_path / "short.bin").write_bytes((tmp_path / "t.bin").read_bytes()[:-1])
    with pytest.raises(TargetError, match=f"no tokenizer of {len(pieces)} tokens"):
        read_tokens(tmp_path / "short.bin", len(pieces))


def test_sizes_that_make_no_llama_and_too_many_tokens_are_refused() -> None:
    with pytest.raises(RangeError, match="sizes of a Llama"):
        LlamaConfig(vocab=10, width=12, layers=1, heads=4, kv_heads=2, hidden=8, block_size=4)
    made = Llama(LlamaConfig(vocab=10, width=8, layers=1, heads=2, kv_heads=1, hidden=8, block_size=4))
    with pytest.raises(RangeError, match="tokens of a Llama"):
        made(torch.zeros(1, 5, dtype=torch.long))
    assert made.generate(torch.zeros(1, 2, dtype=torch.long), 9).shape == (1, 4)
