"""Shards: what one says alone, what they say together, with an index and without one."""

import json
from pathlib import Path

import numpy as np
import pytest
from tests.checkpoints.writing import READOUT, TABLE, gguf, safetensors, sharded, table

from tiebeam.checkpoints import fix, inspect, open_archive
from tiebeam.errors import CheckpointError

E, OTHER = table(), table(seed=1)
TIED = {"model_type": "llama", "vocab_size": 64, "tie_word_embeddings": True}
ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


@pytest.mark.parametrize("named", ["model.safetensors.index.json", "other.index.json"])
def test_an_index_that_names_an_index_is_refused(tmp_path: Path, named: str) -> None:
    """Each was read as a shard of the other, until Python's stack ended."""
    for name, other in (("model.safetensors.index.json", named), ("other.index.json", "model.safetensors.index.json")):
        (tmp_path / name).write_text(json.dumps({"weight_map": {TABLE: other}}))
    with pytest.raises(CheckpointError, match="no format"):
        inspect(tmp_path)


def test_one_shard_stands_for_all_that_its_index_names(tmp_path: Path) -> None:
    """The first shard alone, under a true flag, was called tied: the readout is in the second."""
    path = sharded(tmp_path / "m", {ONE: {TABLE: E}, TWO: {READOUT: OTHER}}, TIED)
    found = inspect(path / ONE)
    assert (found.state, found.tensors) == ("different", 2)
    assert found.files == inspect(path).files


@pytest.mark.parametrize("whole", [True, False])
def test_shards_without_an_index_are_known_by_their_names(tmp_path: Path, whole: bool) -> None:
    path = sharded(tmp_path / "m", {ONE: {TABLE: E}, TWO: {READOUT: OTHER}}, TIED)
    (path / "model.safetensors.index.json").unlink()
    if not whole:
        (path / TWO).unlink()
    for place in (path, path / ONE):
        found = inspect(place)
        assert found.state == ("different" if whole else "omitted")
        assert ("missing-shards" in {f.code for f in found.findings}) is not whole
    with pytest.raises(CheckpointError, match="no index" if whole else "complete the files"):
        fix(path, tmp_path / "out", on_conflict="mean")


def test_a_gguf_that_was_split_is_one_checkpoint(tmp_path: Path) -> None:
    for i, (name, rows) in enumerate({"token_embd.weight": E, "output.weight": OTHER}.items(), 1):
        gguf(tmp_path / f"m-0000{i}-of-00002.gguf", {name: (0, rows.shape, rows.tobytes())})
    for place in (tmp_path, tmp_path / "m-00001-of-00002.gguf"):
        found = inspect(place)
        assert (found.format, found.state, found.effective) == ("gguf", "different", False)


def test_shards_in_a_folder_of_their_own_are_mended_where_they_lie(tmp_path: Path) -> None:
    """The shard with the readout was copied whole, and the new index left it out."""
    (tmp_path / "m" / "parts").mkdir(parents=True)
    safetensors(tmp_path / "m/parts/a.safetensors", {TABLE: E, "norm": E[0]})
    safetensors(tmp_path / "m/parts/b.safetensors", {READOUT: E, "more": E[1]})
    where = {TABLE: "a", "norm": "a", READOUT: "b", "more": "b"}
    index = {"weight_map": {name: f"parts/{file}.safetensors" for name, file in where.items()}}
    (tmp_path / "m" / "model.safetensors.index.json").write_text(json.dumps(index))
    done = fix(tmp_path / "m", tmp_path / "out", tie=True)
    assert done.rewritten == ("parts/a.safetensors", "parts/b.safetensors")
    held = open_archive(tmp_path / "out")
    assert set(held.entries) == {TABLE, "norm", "more"}
    assert not held.strays
    assert np.array_equal(held.entries["more"].values(), E[1])


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin", "m.gguf"])
def test_a_pointer_of_git_lfs_is_called_one(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 9\n")
    with pytest.raises(CheckpointError, match=r"pointer of Git LFS(.|\n)*git lfs pull"):
        inspect(tmp_path / name)
