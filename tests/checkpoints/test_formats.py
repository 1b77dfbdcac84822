"""Every format says the same of the same model: names, shapes, dtypes, what shares storage, and values."""

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.checkpoints.writing import gguf, table
from torch import nn

from tiebeam.checkpoints import inspect, open_archive
from tiebeam.errors import CheckpointError

E = table()


class LM(nn.Module):
    def __init__(self, tie: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.mid = nn.Embedding(64, 8), nn.Linear(8, 8)
        self.head = nn.Linear(8, 64, bias=False)
        if tie:
            self.head.weight = self.embed.weight


@pytest.mark.parametrize("tie", [True, False])
def test_a_torch_file_keeps_what_shares_a_storage(tmp_path: Path, tie: bool) -> None:
    path, model = tmp_path / "m.pt", LM(tie)
    torch.save(model.state_dict(), path)
    found = inspect(path)
    assert (found.state, found.table, found.readout) == ("equal" if tie else "different", "embed.weight", "head.weight")
    assert found.elements == sum(p.numel() for p in model.parameters())
    assert found.tensors == len(model.state_dict())


def test_values_of_a_torch_file_are_those_that_torch_loads(tmp_path: Path) -> None:
    whole = torch.arange(120.0).reshape(12, 10)
    state = {
        "whole": whole, "slice": whole[2:5], "turned": whole.T, "column": whole[:, 3], "half": whole.half(),
        "bf": whole.bfloat16(), "empty": whole[:0], "scalar": torch.tensor(3.0), "int8": whole.to(torch.int8),
        "flag": whole > 3, "f8": whole.to(torch.float8_e4m3fn), "param": nn.Parameter(whole.clone()),
    }  # fmt: skip
    torch.save(state, tmp_path / "m.pt")
    found, right = open_archive(tmp_path / "m.pt"), torch.load(tmp_path / "m.pt", weights_only=True)
    assert set(found.entries) == set(right)
    for name, entry in found.entries.items():
        assert entry.shape == tuple(right[name].shape), name
        assert entry.dtype is not None
        assert entry.dtype.name == str(right[name].dtype).removeprefix("torch.")
        bits = right[name].contiguous().reshape(-1).view(torch.uint8).numpy() if right[name].numel() else np.empty(0)
        assert np.array_equal(np.ascontiguousarray(entry.values()).reshape(-1).view(np.uint8), bits), name
    places = {n: e.source.identity for n, e in found.entries.items() if e.source is not None}
    assert places["whole"] == places["turned"]
    assert places["whole"][1] < places["slice"][1] < places["slice"][2] < places["whole"][2]


def test_a_training_checkpoint_is_read_for_its_model(tmp_path: Path) -> None:
    model = LM(True)
    optimizer = torch.optim.AdamW(model.parameters())
    sum(p.sum() for p in model.parameters()).backward()
    optimizer.step()
    state = {
        "epoch": 3,
        "lr": 1e-3,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "dtype": torch.bfloat16,
    }
    torch.save(state, tmp_path / "m.pt")
    assert set(open_archive(tmp_path / "m.pt").entries) == set(model.state_dict())
    assert inspect(tmp_path / "m.pt").state == "equal"


def test_a_state_dict_rebuilt_from_an_optimizer_lacks_the_alias(tmp_path: Path) -> None:
    model = LM(True)
    names = {id(p): n for n, p in model.named_parameters()}
    torch.save({names[id(p)]: p.detach().clone() for p in model.parameters()}, tmp_path / "pytorch_model.bin")
    found = inspect(tmp_path)
    assert (found.state, found.readout) == ("no-readout", None)
    assert [f.code for f in found.findings] == ["readout-missing"]


def test_a_config_is_told_from_weights(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match="a config holds no weights: give its folder"):
        inspect(tmp_path / "config.json")


def test_an_old_pickle_is_refused_and_says_why(tmp_path: Path) -> None:
    torch.save(LM(True).state_dict(), tmp_path / "m.pt", _use_new_zipfile_serialization=False)
    with pytest.raises(CheckpointError, match="bare pickle"):
        inspect(tmp_path / "m.pt")


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_of_npz_are_read_in_either_order(tmp_path: Path, save: Any) -> None:
    save(tmp_path / "m.npz", embedding=E, head=np.asfortranarray(E), half=E.astype(np.float16), one=np.float64(2))
    found = open_archive(tmp_path / "m.npz")
    right = np.load(tmp_path / "m.npz")
    for name, entry in found.entries.items():
        assert np.array_equal(entry.values(), right[name])
        assert entry.shape == right[name].shape
    assert inspect(tmp_path / "m.npz").state == "equal"
    save(tmp_path / "t.npz", embedding=E, head=E.T)
    assert inspect(tmp_path / "t.npz").state == "transposed"


F32, F16, Q8, Q4 = 0, 1, 8, 12


def q8(values: Any) -> bytes:
    """Blocks of 32 integers behind a scale, as ggml lays q8_0 out."""
    return b"".join(np.float16(1).tobytes() + np.int8(row).tobytes() for row in values.reshape(-1, 32))


@pytest.mark.parametrize(("kind", "wide"), [(F32, np.float32), (F16, np.float16)])
def test_a_gguf_file_of_floats(tmp_path: Path, kind: int, wide: Any) -> None:
    data = E.astype(wide).tobytes()
    body = {"blk.0.attn_q.weight": (kind, (8, 8), np.ones((8, 8), wide).tobytes())}
    both = {"token_embd.weight": (kind, E.shape, data), **body, "output.weight": (kind, E.shape, data)}
    found = inspect(gguf(tmp_path / "m.gguf", both, llama__vocab_size=64, general__alignment=32))
    assert (found.state, found.table, found.readout, found.vocab) == ("equal", "token_embd.weight", "output.weight", 64)
    values = open_archive(tmp_path / "m.gguf").entries["token_embd.weight"].values()
    assert np.array_equal(values, E.astype(wide))


def test_a_gguf_file_without_a_readout_leaves_it_to_the_runtime(tmp_path: Path) -> None:
    names = ("token_embd.weight", "output_norm.weight", "blk.0.attn_q.weight")
    tensors = {
        n: (F32, (64, 8) if i == 0 else (8,) * i, bytes(4 * (512 if i == 0 else 8**i))) for i, n in enumerate(names)
    }
    for architecture, state, code in (
        ("gpt2", "omitted", "runtime-fallback"),
        ("llama", "omitted", "runtime-fallback"),
        ("unheard-of", "no-readout", "runtime-fallback"),
        ("gptneox", "no-readout", "readout-missing"),
    ):
        found = inspect(gguf(tmp_path / "m.gguf", tensors, architecture))
        assert (found.state, found.table, found.readout) == (state, "token_embd.weight", None)
        assert [f.code for f in found.findings] == [code]
        assert found.declared is None
        assert ("2025" in found.findings[0].message) == (architecture == "gpt2")


def test_quantised_ends_of_a_gguf_file(tmp_path: Path) -> None:
    whole = np.random.default_rng(0).integers(-99, 99, (64, 32))
    other = whole.copy()
    other[-1, -1] += 1
    for second, expected in (((Q8, whole), "equal"), ((Q8, other), "different"), ((F32, whole), "unknown")):
        kind, values = second
        data = q8(values) if kind == Q8 else values.astype(np.float32).tobytes()
        tensors = {"token_embd.weight": (Q8, (64, 32), q8(whole)), "output.weight": (kind, (64, 32), data)}
        assert inspect(gguf(tmp_path / "m.gguf", tensors)).state == expected


def llama2c(path: Path, *, shared: bool, seed: int = 1) -> Path:
    d, h, layers, heads, kv, v, length = 8, 12, 1, 2, 1, 16, 4
    head = struct.pack("<7i", d, h, layers, heads, kv, v if shared else -v, length)
    numbers = (
        v * d + 2 * d + 2 * d * d + 2 * d * d // 2 + 3 * d * h + d + length * d // heads + (0 if shared else v * d)
    )
    values = np.random.default_rng(seed).standard_normal(numbers).astype(np.float32)
    path.write_bytes(head + values.tobytes())
    return path


def test_the_sign_of_the_vocabulary_tells_the_tie_of_a_llama2c_file(tmp_path: Path) -> None:
    tied = inspect(llama2c(tmp_path / "m.bin", shared=True))
    assert (tied.state, tied.declared, tied.effective, tied.vocab) == ("omitted", True, True, 16)
    untied = inspect(llama2c(tmp_path / "m.bin", shared=False))
    assert (untied.state, untied.declared, untied.readout) == ("different", False, "wcls")
    (tmp_path / "m.bin").write_bytes((tmp_path / "m.bin").read_bytes()[:-4])
    with pytest.raises(CheckpointError, match="not the size"):
        inspect(tmp_path / "m.bin")


def test_the_trained_checkpoints_at_hand(shared: Path) -> None:
    place = shared / "data" / "checkpoints"
    stories = inspect(place / "stories260K" / "stories260K.bin")
    assert (stories.state, stories.declared, stories.elements, stories.vocab) == ("omitted", True, 264_128, 512)
    g2p = inspect(place / "g2p-en" / "checkpoint20.npz")
    assert (g2p.state, g2p.table, g2p.readout, g2p.elements) == ("different", "dec_emb", "fc_w", 834_890)
    assert g2p.gap is not None
    assert g2p.gap.distance > 1
    text = inspect(place / "textgenrnn" / "textgenrnn_weights.hdf5")
    assert (text.state, text.readout, text.elements) == ("different", "output/output/kernel:0", 462_717)
    assert text.gap is None  # shapes that cannot be one table
    with pytest.raises(CheckpointError, match="no llama2"):
        inspect(place / "tiny-rwkv" / "tiny-rwkv-5v2-730K-FP32.bin")


def test_a_folder_is_searched_for_its_file_of_weights(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no file of weights"):
        inspect(tmp_path)
    np.savez(tmp_path / "a.npz", embedding=E)
    assert inspect(tmp_path).format == "npz"
    np.savez(tmp_path / "b.npz", embedding=E)
    with pytest.raises(CheckpointError, match="several files"):
        inspect(tmp_path)
    with pytest.raises(CheckpointError, match="is not there"):
        inspect(tmp_path / "c")
    (tmp_path / "d.txt").write_text("hello, this is no checkpoint")
    with pytest.raises(CheckpointError, match="no format"):
        inspect(tmp_path / "d.txt")


@pytest.mark.parametrize("given", [{"wte.weight": np.zeros((8, 2))}, torch.nn.Linear(2, 2), None])
def test_what_is_in_memory_is_no_checkpoint(given: Any) -> None:
    with pytest.raises(CheckpointError, match=r"(?s)is no path.*Hint: a model in memory"):
        inspect(given)
