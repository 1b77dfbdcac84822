"""Saved once with the other names beside it; loaded with a word on what counts where file and model differ."""

import copy
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, load_model, save_file
from tests.torch.operations.models import IDS, LM, OPTIMIZERS, everything, gpt, same, train
from torch import Tensor, nn

import tiebeam
from tiebeam.errors import InputError, ShapeError, TieError
from tiebeam.torch import TiedEmbedding

TIE = ("embed.weight", "head.weight")


def file_of(model: nn.Module, folder: Path, name: str = "m.safetensors") -> Path:
    tiebeam.save(model, folder / name)
    return folder / name


def test_a_table_is_written_once_and_its_other_name_stands_beside_it(tmp_path: Path) -> None:
    model = LM(2000, 64)
    assert tiebeam.save(model, tmp_path / "m.safetensors") == (TIE,)
    assert (tmp_path / "m.safetensors").stat().st_size < 1.1 * 4 * sum(p.numel() for p in model.parameters())
    with safe_open(tmp_path / "m.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt", "head.weight": "embed.weight"}
    again = LM(2000, 64)
    load_model(again, tmp_path / "m.safetensors")  # as safetensors itself reads it
    assert torch.equal(again(IDS), model(IDS))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.safetensors"]


@pytest.mark.parametrize("width", [32, 16], ids=["whole", "factorised"])
def test_a_block_that_reads_itself_out_is_saved_as_tied(width: int, tmp_path: Path) -> None:
    def model() -> nn.Module:
        return nn.ModuleDict({"embed": TiedEmbedding(2000, 32, table_width=width), "norm": nn.LayerNorm(32)})

    saved, again, third = model(), model(), model()
    file = file_of(saved, tmp_path)
    found = tiebeam.checkpoints.inspect(file)
    assert (found.state, [f for f in found.findings if f.severity != "info"]) == ("omitted", [])
    tiebeam.load(again, file)  # strictly: a name for what is no parameter is none that the model lacks
    load_model(third, file)
    for one in (again, third):
        assert all(torch.equal(a, b) for a, b in zip(saved.parameters(), one.parameters(), strict=True))
    with safe_open(file_of(saved["embed"], tmp_path, "alone.safetensors"), "pt") as alone:
        assert alone.metadata() == {"format": "pt", "readout": "weight"}


def test_what_was_saved_loads_strictly_and_stays_tied(tmp_path: Path) -> None:
    model = LM()
    optimizer = torch.optim.Adam((again := LM()).parameters())
    table = again.embed.weight
    change = tiebeam.load(again, file_of(model, tmp_path), optimizer=optimizer)
    assert change.tables == (TIE,)
    assert again.head.weight is again.embed.weight is table  # the object that the optimizer steps
    assert torch.equal(again(IDS), model(IDS))


def test_a_run_goes_on_from_a_file_bit_by_bit(tmp_path: Path) -> None:
    model = gpt()
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    train(model, optimizer, 3, 1)
    file, state = file_of(model, tmp_path), copy.deepcopy(optimizer.state_dict())
    losses = train(model, optimizer, 3, 2)
    resumed = gpt()
    other = OPTIMIZERS["adamw"](resumed.parameters())
    tiebeam.load(resumed, file, optimizer=other)
    other.load_state_dict(state)
    assert train(resumed, other, 3, 2) == losses


def test_a_model_on_meta_is_loaded_with_its_tie(tmp_path: Path) -> None:
    model = LM()
    with torch.device("meta"):
        empty = LM()
    tiebeam.load(empty, file_of(model, tmp_path))
    assert empty.head.weight is empty.embed.weight
    assert torch.equal(empty(IDS), model(IDS))


@pytest.mark.parametrize("how", ["embedding", "readout", "mean", "untie"])
def test_of_two_matrices_for_one_table_it_is_said_which_counts(how: Any, tmp_path: Path) -> None:
    source, model = LM(tied=False), LM()
    file = file_of(source, tmp_path)
    before = everything(model)
    with pytest.raises(TieError, match="two tables where the model has one"):
        tiebeam.load(model, file)
    assert same(everything(model), before)
    tiebeam.load(model, file, on_conflict=how)
    e, h = source.embed.weight, source.head.weight
    right = {"embedding": (e, e), "readout": (h, h), "mean": ((e + h) / 2,) * 2, "untie": (e, h)}[how]
    assert torch.allclose(model.embed.weight, right[0])
    assert torch.allclose(model.head.weight, right[1])
    assert (model.head.weight is model.embed.weight) == (how != "untie")


@pytest.mark.parametrize("how", ["tie", "copy"])
def test_of_one_table_for_two_it_is_said_what_to_do(how: Any, tmp_path: Path) -> None:
    source, model = LM(), LM(tied=False)
    file = file_of(source, tmp_path)
    with pytest.raises(TieError, match="one table where the model has two"):
        tiebeam.load(model, file)
    optimizer = torch.optim.Adam(model.parameters())
    tiebeam.load(model, file, on_missing=how, optimizer=optimizer)
    assert torch.equal(model(IDS), source(IDS))
    assert (model.head.weight is model.embed.weight) == (how == "tie")
    assert len(optimizer.param_groups[0]["params"]) == (3 if how == "tie" else 4)


def test_a_redundant_head_is_left_and_another_is_refused(tmp_path: Path) -> None:
    class Functional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(50, 16)

        def forward(self, ids: Tensor) -> Tensor:
            logits: Tensor = self.embed(ids) @ self.embed.weight.T
            return logits

    model = Functional()
    table = torch.randn(50, 16)
    save_file({"embed.weight": table, "head.weight": table.clone()}, tmp_path / "equal.safetensors")
    assert "equals 'embed.weight'" in tiebeam.load(model, tmp_path / "equal.safetensors").notes[0]
    save_file({"embed.weight": table, "head.weight": table + 1}, tmp_path / "other.safetensors")
    with pytest.raises(TieError, match="no place for"):
        tiebeam.load(model, tmp_path / "other.safetensors")
    tiebeam.load(model, tmp_path / "other.safetensors", strict=False)


def test_what_does_not_fit_or_is_not_there_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    model = LM()
    before = everything(model)
    with pytest.raises(ShapeError, match=r"tiebeam\.resize"):
        tiebeam.load(model, file_of(LM(60), tmp_path))
    state = load_file(file_of(LM(), tmp_path, "whole.safetensors"))
    state.pop("mid.bias")
    save_file(state, tmp_path / "part.safetensors")
    with pytest.raises(TieError, match=r"lacks 'mid\.bias'"):
        tiebeam.load(model, tmp_path / "part.safetensors")
    with pytest.raises(InputError, match="no file"):
        tiebeam.load(model, tmp_path / "none.safetensors")
    (tmp_path / "lies.safetensors").write_bytes(struct.pack("<Q", 1 << 40) + b"{}")
    with pytest.raises(InputError, match="cannot be read"):
        tiebeam.load(model, tmp_path / "lies.safetensors")
    assert same(everything(model), before)


def test_a_failure_half_way_leaves_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, file = LM(), file_of(LM(), tmp_path)
    before = everything(model)
    from tiebeam.backends.torch.operations.files import Places

    put, calls = Places.put, []

    def second_fails(*args: Any) -> None:
        calls.append(1)
        if len(calls) == 2:
            raise OSError("gone")
        put(*args)

    monkeypatch.setattr(Places, "put", second_fails)
    with pytest.raises(OSError, match="gone"):
        tiebeam.load(model, file)
    assert same(everything(model), before)


def test_a_failed_save_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = file_of(LM(), tmp_path)
    old = file.read_bytes()

    def fails(*_: Any, **__: Any) -> None:
        raise OSError("no space")

    monkeypatch.setattr("safetensors.torch.save_file", fails)
    with pytest.raises(OSError, match="no space"):
        tiebeam.save(LM(), file)
    assert file.read_bytes() == old
    assert [p.name for p in tmp_path.iterdir()] == [file.name]


def test_a_model_on_meta_has_nothing_to_save(tmp_path: Path) -> None:
    with torch.device("meta"), pytest.raises(TieError, match="no values"):
        tiebeam.save(LM(), tmp_path / "m.safetensors")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_flag_that_contradicts_the_tensors_is_not_saved(tmp_path: Path) -> None:
    """Reloaded by the flag, the head would be random, or one of two trained matrices gone."""
    from tests.torch.operations.test_families import llama

    model = llama()
    model.config.tie_word_embeddings = False
    with pytest.raises(TieError, match="contradict"):
        tiebeam.save(model, tmp_path)
    assert list(tmp_path.iterdir()) == []
    tiebeam.save(model, tmp_path, on_conflict="fix")
    assert model.config.tie_word_embeddings
    again = type(model).from_pretrained(tmp_path)
    assert torch.equal(again(IDS).logits, model(IDS).logits)
    drifted = llama()
    drifted.lm_head.weight = nn.Parameter(drifted.lm_head.weight.detach() + 1)
    with pytest.raises(TieError, match="contradict"):
        tiebeam.save(drifted, tmp_path)


def test_shards_are_neither_saved_nor_loaded_into(tmp_path: Path) -> None:
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    file = file_of(LM(), tmp_path)
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    try:
        model = LM()
        fully_shard(model)
        for operation in (tiebeam.save, tiebeam.load):
            with pytest.raises(TieError, match="lies in shards"):
                operation(model, file)  # type: ignore[operator]
    finally:
        dist.destroy_process_group()


def test_a_read_only_file_is_left_and_a_folder_may_be_called_anything(tmp_path: Path) -> None:
    file = file_of(LM(), tmp_path)
    file.chmod(0o444)
    with pytest.raises(InputError, match="read-only"):
        tiebeam.save(LM(), file)
    (folder := tmp_path / "run.safetensors").mkdir()
    tiebeam.save(LM(), folder)
    assert [p.name for p in folder.iterdir()] == ["model.safetensors"]
    with pytest.raises(InputError, match="a folder, or the name of a file"):
        tiebeam.save(LM(), tmp_path / "weights.bin")


def test_integers_are_no_values_of_a_float_and_a_wrapper_is_spoken_of(tmp_path: Path) -> None:
    model = LM(tied=False)
    before = everything(model)
    save_file({n: t.to(torch.int8) for n, t in model.state_dict().items()}, tmp_path / "int8.safetensors")
    with pytest.raises(TieError, match="int8 in the file"):
        tiebeam.load(model, tmp_path / "int8.safetensors")
    assert same(everything(model), before)
    with pytest.raises(TieError, match="load into the module inside"):
        tiebeam.load(nn.Sequential(model), file_of(LM(), tmp_path))
