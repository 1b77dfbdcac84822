"""A corrected copy: what it holds, what it says, and that it is there whole or not at all."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.checkpoints.mended import BODY, OTHER, TIED, UNTIED, E, config_of, held, made, metadata, same_body
from tests.checkpoints.writing import READOUT, TABLE, Array, bfloat16, folder, safetensors, sharded, table

from tiebeam.checkpoints import FixPlan, fix, inspect, open_archive
from tiebeam.errors import CheckpointError, RangeError


def test_a_redundant_readout_is_dropped_and_recorded(tmp_path: Path) -> None:
    done = fix(made(tmp_path, {TABLE: E, READOUT: E.copy()}, TIED), tmp_path / "out")
    assert (done.tie, done.dropped, done.bytes_saved, done.written) == (True, READOUT, E.nbytes, True)
    assert set(held(tmp_path / "out")) == {TABLE, *BODY}
    assert np.array_equal(held(tmp_path / "out")[TABLE], E)
    assert same_body(tmp_path / "out")
    assert metadata(tmp_path / "out" / "model.safetensors") == {"format": "pt", READOUT: TABLE}
    assert config_of(tmp_path / "out") == TIED
    found = inspect(tmp_path / "out")
    assert found.state == "omitted"
    found.assert_healthy()


def test_the_source_is_as_it_was(tmp_path: Path) -> None:
    path = made(tmp_path, {TABLE: E, READOUT: E.copy()}, TIED)
    before = {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in path.iterdir()}
    fix(path, tmp_path / "out")
    assert {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in path.iterdir()} == before


@pytest.mark.parametrize(
    ("choice", "right"), [("embedding", E), ("readout", OTHER), ("mean", ((E.astype("f8") + OTHER) / 2).astype("f4"))]
)
def test_a_conflict_is_settled_as_asked(tmp_path: Path, choice: Any, right: Array) -> None:
    path = made(tmp_path, {TABLE: E, READOUT: OTHER}, TIED)
    done = fix(path, tmp_path / "out", on_conflict=choice)
    assert (done.values, done.tie) == (choice, True)
    found = held(tmp_path / "out")
    assert READOUT not in found
    assert np.array_equal(found[TABLE], right)
    assert inspect(tmp_path / "out").state == "omitted"


def test_a_conflict_can_end_in_two_tables(tmp_path: Path) -> None:
    path = made(tmp_path, {TABLE: E, READOUT: OTHER}, TIED)
    done = fix(path, tmp_path / "out", on_conflict="untie")
    assert (done.tie, done.config, done.copied) == (
        False,
        (("tie_word_embeddings", True, False),),
        ("model.safetensors",),
    )
    assert np.array_equal(held(tmp_path / "out")[READOUT], OTHER)
    assert config_of(tmp_path / "out") == UNTIED
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == (path / "model.safetensors").read_bytes()
    inspect(tmp_path / "out").assert_healthy()


def test_a_conflict_is_refused_unless_it_is_decided(tmp_path: Path) -> None:
    path = made(tmp_path, {TABLE: E, READOUT: OTHER}, TIED)
    with pytest.raises(CheckpointError, match=r"differ, and one table is asked for(.|\n)*relative distance"):
        fix(path, tmp_path / "out")
    assert list(tmp_path.iterdir()) == [path]


def test_a_mean_is_rounded_once_to_the_tables_dtype(tmp_path: Path) -> None:
    a, b = bfloat16(E), bfloat16(OTHER)
    path = made(tmp_path, {f"{TABLE}@bf16": a, f"{READOUT}@bf16": b}, TIED)
    fix(path, tmp_path / "out", on_conflict="mean")
    wide = [(x.astype(np.uint32) << 16).view(np.float32).astype(np.float64) for x in (a, b)]
    right = bfloat16(((wide[0] + wide[1]) / 2).astype(np.float32))
    assert np.array_equal(open_archive(tmp_path / "out").entries[TABLE].values(), right)


def test_a_readout_that_lies_the_other_way_is_turned(tmp_path: Path) -> None:
    path = made(tmp_path, {TABLE: E, READOUT: OTHER.T.copy()}, TIED)
    fix(path, tmp_path / "out", on_conflict="readout")
    assert np.array_equal(held(tmp_path / "out")[TABLE], OTHER)


def test_of_two_alike_the_rounded_or_cut_one_goes(tmp_path: Path) -> None:
    half = made(tmp_path, {TABLE: E.astype(np.float16), READOUT: E}, TIED)
    assert fix(half, tmp_path / "a").bytes_saved == E.nbytes // 2
    assert np.array_equal(held(tmp_path / "a")[TABLE], E)
    for vocab, turned in ((64, False), (64, True), (60, False)):
        source, out = tmp_path / f"n{vocab}{turned}", tmp_path / f"b{vocab}{turned}"
        readout = E.T.copy() if turned else E
        fix(folder(source, {TABLE: E[:60], READOUT: readout, **BODY}, {**TIED, "vocab_size": vocab}), out)
        assert np.array_equal(held(out)[TABLE], E[:vocab])  # rows beyond the vocabulary are the readout's padding


@pytest.mark.parametrize(
    ("readout", "choice", "complaint"),
    [
        (table(72, 8, seed=1), "mean", "have no mean"),
        (table(64, 6, seed=1), "readout", "cannot take the place"),
        (np.ones((64, 8), np.int8), "mean", "could not be judged"),
    ],
)
def test_a_dry_run_refuses_what_the_run_would(tmp_path: Path, readout: Array, choice: Any, complaint: str) -> None:
    path = made(tmp_path, {TABLE: E, READOUT: readout}, TIED)
    for dry in (True, False):
        with pytest.raises(CheckpointError, match=complaint):
            fix(path, tmp_path / "out", on_conflict=choice, dry_run=dry)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("other", [E, table(64, 8, seed=1)], ids=["no conflict", "a conflict"])
def test_a_policy_that_there_is_not_is_refused_whether_or_not_it_is_asked_for(tmp_path: Path, other: Array) -> None:
    path = made(tmp_path, {TABLE: E, READOUT: other}, TIED)
    with pytest.raises(RangeError, match="'embeding'\n  expected: 'embedding', 'readout', 'mean', 'untie', 'error'"):
        fix(path, tmp_path / "out", on_conflict="embeding")  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == [path]


def test_a_taller_readout_that_lies_the_other_way_is_turned(tmp_path: Path) -> None:
    taller = table(72, 8, seed=1)
    fix(made(tmp_path, {TABLE: E, READOUT: taller.T.copy()}, TIED), tmp_path / "out", on_conflict="readout")
    assert np.array_equal(held(tmp_path / "out")[TABLE], taller)


def test_a_quantised_readout_goes_with_its_scales_and_none_stands_in_for_the_table(tmp_path: Path) -> None:
    """Its scales were left behind; and its integers were written beside the table's scales."""
    whole, scale = np.arange(512, dtype=np.int8).reshape(64, 8), E[:, 0].copy()
    names = {TABLE: whole, "model.embed_tokens.SCB": scale, READOUT: whole, "lm_head.SCB": scale}
    done = fix(made(tmp_path, names, TIED), tmp_path / "out")
    assert set(held(tmp_path / "out")) == {TABLE, "model.embed_tokens.SCB", *BODY}
    assert (done.beside, done.bytes_saved) == (("lm_head.SCB",), whole.nbytes + scale.nbytes)
    with pytest.raises(CheckpointError, match="is quantised"):
        fix(tmp_path / "out", tmp_path / "two", tie=False)
    other = made(tmp_path, {**names, READOUT: whole[::-1].copy()}, TIED)
    with pytest.raises(CheckpointError, match=r"lm_head\.SCB beside"):
        fix(other, tmp_path / "two", on_conflict="readout")
    assert not (tmp_path / "two").exists()


def test_a_tie_that_nothing_would_say_is_refused(tmp_path: Path) -> None:
    path = made(tmp_path, {TABLE: E}, None)
    with pytest.raises(CheckpointError, match=r"nothing would say(.|\n)*--readout"):
        fix(path, tmp_path / "out", tie=True, dry_run=True)
    assert fix(path, tmp_path / "out", tie=True, readout="anything").alias == "anything"
    assert inspect(tmp_path / "out").state == "omitted"


def test_short_names_are_recorded_and_read_back(tmp_path: Path) -> None:
    path = made(tmp_path, {"W_E": E, "W_U": E.T.copy()}, None)
    fix(path, tmp_path / "out", tie=True)
    assert inspect(tmp_path / "out").state == "omitted"


def test_what_a_config_holds_goes_over_even_where_it_is_no_text(tmp_path: Path) -> None:
    path = made(tmp_path, {TABLE: E, READOUT: E}, TIED)
    deep = '{"a":' * 400 + "1" + "}" * 400
    (path / "config.json").write_text(json.dumps(TIED)[:-1] + f', "half": "\\ud800", "big": 1e999, "deep": {deep}}}')
    before = config_of(path)
    fix(path, tmp_path / "out")
    assert config_of(tmp_path / "out") == before


def test_a_tied_checkpoint_whose_config_denies_it_gets_its_flag(tmp_path: Path) -> None:
    done = fix(made(tmp_path, {TABLE: E}, UNTIED), tmp_path / "out")
    assert (done.tie, done.dropped, done.config) == (True, "", (("tie_word_embeddings", False, True),))
    assert done.alias == READOUT  # by the family
    assert inspect(tmp_path / "out").state == "omitted"


def test_tied_to_untied_and_back(tmp_path: Path) -> None:
    path = made(tmp_path, {TABLE: E}, TIED)
    there = fix(path, tmp_path / "untied", tie=False)
    assert (there.added, there.bytes_saved) == (READOUT, -E.nbytes)
    found = held(tmp_path / "untied")
    assert np.array_equal(found[READOUT], E)
    assert config_of(tmp_path / "untied") == UNTIED
    back = fix(tmp_path / "untied", tmp_path / "tied", tie=True)
    assert (back.dropped, back.bytes_saved) == (READOUT, E.nbytes)
    assert set(held(tmp_path / "tied")) == set(held(path))
    assert config_of(tmp_path / "tied") == TIED
    again = fix(tmp_path / "tied", tmp_path / "untied-again", tie=False)
    assert again.added == READOUT  # read back from the metadata
    assert READOUT not in metadata(tmp_path / "untied-again" / "model.safetensors")


def test_a_file_without_a_config_is_tied_by_its_metadata(tmp_path: Path) -> None:
    path = safetensors(tmp_path / "m.safetensors", {"embed.weight": E, "head.weight": E.copy()})
    with pytest.raises(CheckpointError, match="no name"):
        fix(safetensors(tmp_path / "n.safetensors", {"embed.weight": E}), tmp_path / "x", tie=False)
    fix(path, tmp_path / "out", tie=True)
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["m.safetensors"]
    assert inspect(tmp_path / "out" / "m.safetensors").state == "omitted"
    fix(tmp_path / "out" / "m.safetensors", tmp_path / "back", tie=False)
    assert set(held(tmp_path / "back")) == {"embed.weight", "head.weight"}


def test_shards_keep_their_names_and_their_index_is_true(tmp_path: Path) -> None:
    shards = {
        "model-1-of-3.safetensors": {TABLE: E},
        "model-2-of-3.safetensors": dict(BODY),
        "model-3-of-3.safetensors": {READOUT: E.copy(), "lm_head.bias": E[:, 0].copy()},
    }
    path = sharded(tmp_path / "m", shards, TIED)
    (path / "tokenizer.json").write_text("{}")
    done = fix(path, tmp_path / "out")
    assert done.rewritten == ("model-1-of-3.safetensors", "model-3-of-3.safetensors")
    assert set(done.copied) == {"model-2-of-3.safetensors", "tokenizer.json"}
    assert {p.name for p in (tmp_path / "out").iterdir()} == {p.name for p in path.iterdir()}
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert index["weight_map"] == {n: f for f, ts in shards.items() for n in ts if n != READOUT}
    assert index["metadata"]["total_size"] == sum(a.nbytes for a in held(tmp_path / "out").values())
    middle = "model-2-of-3.safetensors"
    assert (tmp_path / "out" / middle).read_bytes() == (path / middle).read_bytes()
    assert metadata(tmp_path / "out" / "model-3-of-3.safetensors") == {"format": "pt"}
    assert inspect(tmp_path / "out").state == "omitted"
    fix(tmp_path / "out", tmp_path / "untied", tie=False)
    assert inspect(tmp_path / "untied").state == "equal"


def test_a_shard_that_held_the_readout_alone_is_left_out(tmp_path: Path) -> None:
    path = sharded(tmp_path / "m", {"a.safetensors": {TABLE: E, **BODY}, "b.safetensors": {READOUT: E.copy()}}, TIED)
    fix(path, tmp_path / "out")
    assert sorted(p.name for p in (tmp_path / "out").glob("*.safetensors")) == ["a.safetensors"]
    assert inspect(tmp_path / "out").state == "omitted"


def test_every_scope_of_a_nested_config_says_the_same(tmp_path: Path) -> None:
    config = {
        "model_type": "llava",
        "tie_word_embeddings": True,
        "text_config": {"model_type": "llama", "tie_word_embeddings": False, "vocab_size": 64},
    }
    names = {"model.language_model.embed_tokens.weight": E, "lm_head.weight": OTHER}
    fix(folder(tmp_path / "m", {**names, **BODY}, config), tmp_path / "out", on_conflict="untie")
    written = config_of(tmp_path / "out")
    assert written["tie_word_embeddings"] is False
    assert written["text_config"]["tie_word_embeddings"] is False
    assert {k: v for k, v in written.items() if k != "tie_word_embeddings"} == {
        k: v for k, v in config.items() if k != "tie_word_embeddings"
    }


def test_a_family_that_always_ties_cannot_be_untied_by_a_flag(tmp_path: Path) -> None:
    path = folder(tmp_path / "m", {"shared.weight": E, "lm_head.weight": OTHER, **BODY}, {"model_type": "t5"})
    with pytest.raises(CheckpointError, match="no flag makes this family untied"):
        fix(path, tmp_path / "out", on_conflict="untie")
    assert not (tmp_path / "out").exists()


def test_a_dry_run_says_what_it_would_do_and_writes_nothing(tmp_path: Path) -> None:
    path = made(tmp_path, {TABLE: E, READOUT: E.copy()}, TIED)
    planned = fix(path, tmp_path / "out", dry_run=True)
    assert list(tmp_path.iterdir()) == [path]
    assert not planned.written
    done = fix(path, tmp_path / "out")
    assert {**planned.to_dict(), "written": True} == done.to_dict()
    assert "would be tied" in str(planned)
    assert "is tied" in str(done)


@pytest.mark.parametrize("format_", ["npz", "index"])
def test_what_cannot_be_mended_says_so(tmp_path: Path, format_: str) -> None:
    if format_ == "npz":
        np.savez(tmp_path / "m.npz", embedding=E, head=E)
        path = tmp_path / "m.npz"
    else:
        path = sharded(tmp_path / "m", {"a.safetensors": {TABLE: E}}, TIED)
        (path / "a.safetensors").unlink()
    with pytest.raises(CheckpointError, match="is not mended"):
        fix(path, tmp_path / "out")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_transformers_loads_what_was_mended_as_it_was_mended(tmp_path: Path) -> None:
    import torch
    from tests.checkpoints.tiny import tiny
    from transformers import LlamaForCausalLM

    torch.manual_seed(0)
    model = tiny("LlamaForCausalLM", tie_word_embeddings=False)
    model.save_pretrained(tmp_path / "m")
    ids = torch.arange(8)[None]
    for choice, tied in (("readout", True), ("untie", False)):
        out = tmp_path / choice
        fix(tmp_path / "m", out, tie=True if tied else None, on_conflict=choice)
        loaded = LlamaForCausalLM.from_pretrained(out)
        assert (loaded.lm_head.weight is loaded.model.embed_tokens.weight) == tied
        assert torch.equal(loaded.lm_head.weight, model.lm_head.weight)
    fix(tmp_path / "readout", tmp_path / "again", tie=False)
    first, second = (LlamaForCausalLM.from_pretrained(tmp_path / n)(ids).logits for n in ("readout", "again"))
    assert torch.equal(first, second)


def test_a_tied_copy_is_loaded_by_safetensors_own_load_model(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_model
    from torch import nn

    path = safetensors(tmp_path / "m.safetensors", {"embed.weight": E, "head.weight": E.copy()})
    fix(path, tmp_path / "out", tie=True)

    class LM(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(64, 8), nn.Linear(8, 64, bias=False)
            self.head.weight = self.embed.weight

    model = LM()
    load_model(model, tmp_path / "out" / "m.safetensors")
    assert torch.equal(model.head.weight, torch.from_numpy(E.copy()))


def test_a_plan_is_data() -> None:
    assert json.loads(json.dumps(FixPlan("a", "b", tie=True, table="t").to_dict()))["table"] == "t"
