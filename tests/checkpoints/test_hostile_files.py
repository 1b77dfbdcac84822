"""Files made to do harm: nothing of them runs, nothing leads out of them, and what they would unpack to is bounded."""

import io
import json
import os
import pickle
import struct
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from tests.checkpoints.writing import READOUT, TABLE, gguf, sharded, table

from tiebeam.checkpoints import inspect, open_archive
from tiebeam.checkpoints.formats import torch_pickle
from tiebeam.errors import CheckpointError

pytestmark = pytest.mark.slow

E = table()


class Runs:
    """Pickled, it is a call of whatever it is given."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


def torch_zip(path: Path, data: bytes, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("m/data.pkl", data)
        for name, content in members.items():
            archive.writestr(f"m/{name.replace('__', '/')}", content)
    return path


def test_code_in_a_pickle_is_named_and_never_run(tmp_path: Path) -> None:
    witness = tmp_path / "ran"
    torch.save({"model": {TABLE: torch.ones(4, 2)}, "x": Runs(os.mkdir, str(witness))}, tmp_path / "m.pt")
    with pytest.raises(CheckpointError, match=r"names code, which is never run(.|\n)*mkdir"):
        inspect(tmp_path / "m.pt")
    assert not witness.exists()


@pytest.mark.parametrize("function", [eval, getattr, __import__, torch.load])
def test_no_global_but_those_of_tensors_is_known(tmp_path: Path, function: Any) -> None:
    path = torch_zip(tmp_path / "m.pt", pickle.dumps({"x": Runs(function, "1")}, 2))
    with pytest.raises(CheckpointError, match="names code"):
        inspect(path)


PICKLES = {
    "cut off": pickle.dumps({"a": [1, 2]}, 2)[:-1],
    "empty": b"",
    "no pickle": b"hello",
    "a stack that runs dry": b"\x80\x02tR.",
    "a memo that is not there": b"\x80\x02h\x05.",
    "persistent nonsense": b"\x80\x02K\x01Q.",
    "a tensor of strings": pickle.dumps("x", 2)[:-1] + b"ctorch._utils\n_rebuild_tensor_v2\n(U\x01at R.",
    "an extension": b"\x80\x02\x82\x01.",
    "an instance": b"\x80\x02(cos\nsystem\no.",
    "a long integer that lies": b"\x80\x02\x8b\xff\xff\xff\x7f.",
    "a string that lies": b"\x80\x02X\xff\xff\xff\x7fab.",
}


@pytest.mark.parametrize("name", PICKLES)
def test_a_damaged_pickle_is_an_error_of_ours(tmp_path: Path, name: str) -> None:
    with pytest.raises(CheckpointError):
        inspect(torch_zip(tmp_path / "m.pt", PICKLES[name]))


def test_a_pickle_that_holds_itself_is_walked_once(tmp_path: Path) -> None:
    endless: dict[str, Any] = {"a": {}}
    endless["a"]["b"] = endless
    assert not open_archive(torch_zip(tmp_path / "m.pt", pickle.dumps(endless, 2))).entries


def test_a_pickle_cannot_ask_for_more_objects_than_it_has_bytes(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="more objects"):
        inspect(torch_zip(tmp_path / "m.pt", b"\x80\x02" + b"]" * 400_000 + b"."))


def test_a_pickle_of_endless_opcodes_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert 10**6 < torch_pickle.MOST_OPCODES < 10**7
    monkeypatch.setattr(torch_pickle, "MOST_OPCODES", 20_000)
    with pytest.raises(CheckpointError, match="too long"):
        inspect(torch_zip(tmp_path / "m.pt", b"\x80\x02" + b"N0" * 10_001 + b"N."))


def test_a_tensor_that_reaches_beyond_its_storage_is_refused(tmp_path: Path) -> None:
    torch.save({TABLE: torch.ones(4, 2)}, tmp_path / "m.pt")
    with zipfile.ZipFile(tmp_path / "m.pt") as archive:
        held = {n: archive.read(n) for n in archive.namelist()}
    with zipfile.ZipFile(tmp_path / "short.pt", "w") as archive:
        for name, data in held.items():
            archive.writestr(name, data[:-4] if name.endswith("data/0") else data)
    with pytest.raises(CheckpointError, match="beyond its storage"):
        inspect(tmp_path / "short.pt")


@pytest.mark.parametrize("key", [b"s.", b"\x86e.", b"\x8c\x01x\x93."], ids=["item", "pair", "global"])
def test_tuples_in_tuples_do_not_end_the_process(tmp_path: Path, key: bytes) -> None:
    """As a key, or the name of a global, they were hashed: a recursion in C without a bound."""
    room = b"B" + struct.pack("<I", 2**21) + bytes(2**21) + b"0"
    deep = room + b")" + b"\x85" * 200_000
    start = {b"s.": b"}" + deep + b"N", b"\x86e.": b"ccollections\nOrderedDict\n(](" + deep + b"N"}
    ends = {b"\x86e.": b"\x86etR."}
    torch_zip(tmp_path / "m.pt", b"\x80\x04" + start.get(key, deep) + ends.get(key, key))
    ask = "import sys; from tiebeam.checkpoints import inspect; print(inspect(sys.argv[1]).state)"
    ran = subprocess.run(
        [sys.executable, "-c", ask, str(tmp_path / "m.pt")], capture_output=True, text=True, check=False
    )
    assert ran.returncode in (0, 1), ran.returncode
    assert "no-table" in ran.stdout or "damaged" in ran.stderr


def bomb(path: Path, name: str, size: int) -> Path:
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive,
        archive.open(name, "w") as member,
    ):
        for _ in range(size // 2**20):
            member.write(bytes(2**20))
    return path


def test_a_zip_bomb_is_refused_by_what_it_declares(tmp_path: Path) -> None:
    path = bomb(tmp_path / "m.pt", "m/data.pkl", 64 * 2**20)
    assert path.stat().st_size < 2**17
    with pytest.raises(CheckpointError, match="too large to be what it says"):
        inspect(path)
    with pytest.raises(CheckpointError, match="too large to be what it says"):
        open_archive(zeros(tmp_path / "m.npz", 2**20)).entries["a"].values()


def zeros(path: Path, rows: int) -> Path:
    np.savez_compressed(path, a=np.zeros((rows, 16), np.float32), embedding=E)
    return path


def test_a_mask_that_nobody_asks_for_may_unpack_to_any_size(tmp_path: Path) -> None:
    found = inspect(zeros(tmp_path / "m.npz", 2**16))
    assert (found.table, found.tensors) == ("embedding", 2)


def test_a_member_that_lies_about_its_size_is_refused(tmp_path: Path) -> None:
    stream = io.BytesIO()
    np.savez_compressed(stream, embedding=E)
    data = bytearray(stream.getvalue())
    at = data.rfind(b"PK\x01\x02")
    size = struct.unpack_from("<I", data, at + 24)[0]
    struct.pack_into("<I", data, at + 24, size + 4)
    (tmp_path / "m.npz").write_bytes(data)
    with pytest.raises(CheckpointError):
        open_archive(tmp_path / "m.npz").entries["embedding"].values()


def test_members_that_share_their_bytes_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "m.npz", a=E, b=E)
    data = bytearray((tmp_path / "m.npz").read_bytes())
    second = data.rfind(b"PK\x01\x02")
    struct.pack_into("<I", data, second + 42, 0)
    (tmp_path / "m.npz").write_bytes(data)
    with pytest.raises(CheckpointError, match="overlap"):
        open_archive(tmp_path / "m.npz")


@pytest.mark.parametrize("cut", [1, 10, 30, 100, 700])
@pytest.mark.parametrize("format_", ["pt", "npz", "gguf", "h5", "keras"])
def test_a_truncated_file_is_refused(tmp_path: Path, format_: str, cut: int) -> None:
    path = tmp_path / f"m.{format_}"
    if format_ == "pt":
        torch.save({TABLE: torch.ones(64, 8)}, path)
    elif format_ == "npz":
        np.savez(path, embedding=E)
    elif format_ == "gguf":
        gguf(path, {"token_embd.weight": (0, E.shape, E.tobytes())})
    else:
        with h5py.File(path, "w") as file:
            file["layers/embedding/vars/0"] = E
        if format_ == "keras":
            weights = path.read_bytes()
            with zipfile.ZipFile(path, "w") as archive:
                archive.writestr("config.json", '{"class_name": "Functional"}')
                archive.writestr("model.weights.h5", weights)
    inspect(path)
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(CheckpointError):
        inspect(path)


def test_python_objects_in_npz_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "m.npz", a=np.array([{}], object))
    with pytest.raises(CheckpointError, match="dtype that is not read"):
        inspect(tmp_path / "m.npz")


def test_words_and_another_byte_order_in_npz_stand_there_without_values(tmp_path: Path) -> None:
    np.savez(tmp_path / "m.npz", embedding=E, words=np.array(["a"]), days=np.array(["2020-01-01"], "M8[D]"))
    assert inspect(tmp_path / "m.npz").state == "no-readout"
    np.savez(tmp_path / "m.npz", embedding=E, out_w=E.astype(">f4"))
    assert inspect(tmp_path / "m.npz").state == "unknown"


def test_a_directory_as_large_as_the_file_is_not_read(tmp_path: Path) -> None:
    """It was, whole: a sparse file of two gigabytes took two gigabytes of memory."""
    with (tmp_path / "m.npz").open("wb") as file:
        file.write(b"PK\x03\x04" + bytes(26))
        file.seek(2**26 + 30)
        file.write(b"PK\x05\x06" + struct.pack("<HHHHIIH", 0, 0, 1, 1, 2**26, 30, 0))
    with pytest.raises(CheckpointError, match="directory is too large"):
        inspect(tmp_path / "m.npz")


GGUF_HEADS = {
    "many tensors": struct.pack("<IQQ", 3, 2**40, 0),
    "many pairs": struct.pack("<IQQ", 3, 0, 2**40),
    "another version": struct.pack("<IQQ", 9, 0, 0),
    "a string without end": struct.pack("<IQQQ", 3, 0, 1, 2**60),
    "an array without end": struct.pack("<IQQQ1sIIQ", 3, 0, 1, 1, b"a", 9, 4, 2**62),
    "strings without end": struct.pack("<IQQQ1sIIQ", 3, 0, 1, 1, b"a", 9, 8, 2**62),
    "an array of arrays": struct.pack("<IQQQ1sIIQ", 3, 0, 1, 1, b"a", 9, 9, 1),
    "an unknown type": struct.pack("<IQQQ1sI", 3, 0, 1, 1, b"a", 77),
    "a tensor of huge sizes": struct.pack("<IQQQ1sIQQIQ", 3, 1, 0, 1, b"a", 2, 2**40, 2**40, 0, 0),
    "strings without number": struct.pack("<IQQQ1sIIQ", 3, 0, 1, 1, b"a", 9, 8, 2_000_001) + bytes(8 * 2_000_001),
    "many dimensions": struct.pack("<IQQQ1sI", 3, 1, 0, 1, b"a", 2**30),
    "an unknown tensor type": struct.pack("<IQQQ1sIQIQ", 3, 1, 0, 1, b"a", 1, 1, 999, 0),
}


@pytest.mark.parametrize("name", GGUF_HEADS)
def test_a_gguf_header_that_lies_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF" + GGUF_HEADS[name] + bytes(64))
    with pytest.raises(CheckpointError):
        inspect(tmp_path / "m.gguf")


def test_overlapping_tensors_of_gguf_are_refused(tmp_path: Path) -> None:
    path = gguf(tmp_path / "m.gguf", {"a": (0, (8, 8), bytes(256)), "b": (0, (8, 8), bytes(256))})
    before, offset, after = path.read_bytes().rpartition(struct.pack("<IQ", 0, 256))
    assert offset
    path.write_bytes(before + struct.pack("<IQ", 0, 32) + after)
    with pytest.raises(CheckpointError, match="overlaps"):
        inspect(path)


def test_links_out_of_an_hdf5_file_are_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["a"] = E
    for make in (
        lambda f: f.__setitem__("a", h5py.ExternalLink("other.h5", "/a")),
        lambda f: f.__setitem__("a", h5py.SoftLink("/")),
        lambda f: f.create_dataset("a", (64, 8), "f4", external=[(str(tmp_path / "other.h5"), 0, 2048)]),
    ):
        with h5py.File(tmp_path / "m.h5", "w") as file:
            file["layers/embedding/vars/0"] = E
            make(file)
        with pytest.raises(CheckpointError, match=r"out of itself|outside"):
            inspect(tmp_path / "m.h5")


def test_a_dataset_under_two_names_is_one_storage_and_a_ring_of_groups_ends(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "m.h5", "w") as file:
        file["layers/embedding/vars/0"] = E
        file["layers/head/vars/0"] = file["layers/embedding/vars/0"]
        file["layers/again"] = file["layers"]
    found = inspect(tmp_path / "m.h5")
    assert (found.state, found.elements) == ("equal", E.size)


def test_a_dataset_that_unpacks_to_far_more_than_it_stores_is_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "m.h5", "w") as file:
        for name in ("embedding", "head"):
            file.create_dataset(f"layers/{name}/vars/0", (2**20, 64), "f4", chunks=(1024, 64), compression="gzip")
    with pytest.raises(CheckpointError, match="too large to be what it says"):
        inspect(tmp_path / "m.h5")


@pytest.mark.parametrize("file", ["../secret", "/etc/passwd", "a/../../b", "a\\b", "C:\\x", "a\0b"])
def test_an_index_that_leads_out_of_its_folder_is_refused(tmp_path: Path, file: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": file}}))
    with pytest.raises(CheckpointError, match="outside its folder"):
        inspect(tmp_path)


INDEXES = ('{"weight_map": []}', "{}", "[]", "{", '{"weight_map": {"a": 1}}', '{"a":1,"a":2}', "[" * 99999)


@pytest.mark.parametrize("text", INDEXES, ids=range(len(INDEXES)))
def test_an_index_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(CheckpointError):
        inspect(tmp_path)


def test_a_missing_shard_is_found_and_the_rest_is_judged(tmp_path: Path) -> None:
    path = sharded(tmp_path / "m", {"a.safetensors": {TABLE: E}, "b.safetensors": {READOUT: E}})
    (path / "b.safetensors").unlink()
    found = inspect(path)
    assert found.state == "unknown"
    assert (found.table, found.readout) == (TABLE, READOUT)
    assert "missing-shards" in {f.code for f in found.findings if f.severity == "error"}


def test_an_index_that_omits_what_a_shard_holds_is_found(tmp_path: Path) -> None:
    path = sharded(tmp_path / "m", {"a.safetensors": {TABLE: E}, "b.safetensors": {READOUT: E, "x": E[0]}})
    index = json.loads((path / "model.safetensors.index.json").read_text())
    del index["weight_map"][READOUT]
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    found = inspect(path)
    assert found.state == "equal"
    assert [f.where for f in found.findings if f.code == "index-disagrees"] == [READOUT]


@pytest.mark.parametrize("text", [b"[" * 200_000, b'{"a":[' + b"[]," * 150_000 + b"1]}"], ids=["deep", "wide"])
def test_a_config_of_brackets_is_refused(tmp_path: Path, text: bytes) -> None:
    sharded(tmp_path / "m", {"a.safetensors": {TABLE: E}})
    (tmp_path / "m" / "config.json").write_bytes(text)
    with pytest.raises(CheckpointError, match="brackets"):
        inspect(tmp_path / "m")


def test_a_file_that_is_no_file_is_refused() -> None:
    with pytest.raises(CheckpointError, match="no file"):
        inspect("/dev/null")


def test_a_name_of_a_million_characters_is_no_table(tmp_path: Path) -> None:
    path = sharded(tmp_path / "m", {"a.safetensors": {"embed." * 200_000: E}})
    assert inspect(path).state == "no-table"


def test_a_huge_config_is_refused(tmp_path: Path) -> None:
    sharded(tmp_path / "m", {"a.safetensors": {TABLE: E}})
    with (tmp_path / "m" / "config.json").open("wb") as file:
        file.truncate(33 * 2**20)
    with pytest.raises(CheckpointError, match="too large"):
        inspect(tmp_path / "m")
