"""The header of safetensors: what is sound is read, whatever the order and spacing; all else is refused by name."""

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.checkpoints.writing import header_bytes, safetensors, table

from tiebeam.checkpoints import open_archive
from tiebeam.checkpoints.formats.safetensors import CODES, MOST_HEADER, MOST_METADATA
from tiebeam.errors import CheckpointError

T = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def written(tmp_path: Path, header: bytes | dict[str, Any], body: bytes = b"\0" * 8) -> Path:
    path = tmp_path / "m.safetensors"
    path.write_bytes(header_bytes(header) + body)
    return path


def test_what_the_library_writes_is_read_as_it_is(tmp_path: Path) -> None:
    tensors = {
        f"t{i}": np.zeros((i, 3), d) for i, d in enumerate((np.float32, np.float16, np.int8, np.bool_, np.uint64))
    }
    path = tmp_path / "m.safetensors"
    save_file(tensors, path, {"ключ": 'a "quoted" \\ value\n'})
    found = open_archive(path)
    assert {n: e.shape for n, e in found.entries.items()} == {n: a.shape for n, a in tensors.items()}
    assert {n: e.dtype.name for n, e in found.entries.items() if e.dtype} == {
        n: a.dtype.name for n, a in tensors.items()
    }
    assert found.metadata == {"ключ": 'a "quoted" \\ value\n'}


def test_values_are_mapped_where_the_header_says(tmp_path: Path) -> None:
    path = safetensors(tmp_path / "m.safetensors", {"a": table(5, 3), "b": table(7, 2, seed=1)})
    found, right = open_archive(path), load_file(path)
    for name, entry in found.entries.items():
        values = entry.values()
        assert np.array_equal(values, right[name])
        assert not values.flags.writeable
        assert not values.flags.owndata
    assert np.array_equal(np.concatenate(list(found.rows("a", 24))), right["a"])


@pytest.mark.parametrize(
    "header",
    [
        b'{"a":{"data_offsets":[0,8],"shape":[2],"dtype":"F32"}}',
        b" { }".replace(b" {", b"{"),
        b'{\n  "a" : { "shape" : [ 2 ] , "dtype" : "F32" , "data_offsets" : [ 0 , 8 ] }\n}  ',
        b'{"\\u0061":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"__metadata__":{"k":"v"}}   ',
        b'{"__metadata__":{},"a":{"dtype":"F32","shape":[1,2,1],"data_offsets":[0,8]}}',
        b'{"a":{"dtype":"F64","shape":[],"data_offsets":[0,8]}}',
        b'{"z":{"dtype":"F32","shape":[0,5],"data_offsets":[0,0]},"a":{"dtype":"I8","shape":[8],"data_offsets":[0,8]}}',
    ],
    ids="order empty spaces escape metadata scalar no-elements".split(),
)
def test_sound_headers_are_read_whatever_their_order_and_spacing(tmp_path: Path, header: bytes) -> None:
    body = b"" if b"data" not in header else b"\0" * 8
    found = open_archive(written(tmp_path, header, body))
    assert len(found.entries) == header.count(b"dtype")


def test_every_dtype_of_the_format_is_known_to_the_last_bit(tmp_path: Path) -> None:
    for code, dtype in CODES.items():
        size = dtype.nbytes(16)
        assert size is not None
        entry = {"dtype": code.decode(), "shape": [4, 4], "data_offsets": [0, size]}
        assert open_archive(written(tmp_path, {"a": entry}, b"\1" * size)).entries["a"].values().nbytes == size


BAD: dict[str, tuple[bytes | dict[str, Any], str]] = {
    "a name twice": (b'{"a":%s,"a":%s}' % ((json.dumps(T).encode(),) * 2), "stands twice"),
    "a name twice, once escaped": (b'{"a":%s,"\\u0061":%s}' % ((json.dumps(T).encode(),) * 2), "stands twice"),
    "metadata twice": (b'{"__metadata__":{},"__metadata__":{},"a":%s}' % json.dumps(T).encode(), "stands twice"),
    "a key of the metadata twice": (b'{"__metadata__":{"a":"1","a":"2"}}', "stands twice"),
    "a field twice": (b'{"a":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}}', "byte"),
    "a field missing": (b'{"a":{"dtype":"F32","shape":[2]}}', "byte"),
    "a field of its own": (b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1}}', "byte"),
    "overlap": ({"a": T, "b": {**T, "shape": [1], "data_offsets": [4, 8]}}, "overlaps"),
    "one range under two names": ({"a": T, "b": T}, "overlaps"),
    "hole": ({"a": {**T, "shape": [1], "data_offsets": [4, 8]}}, "hole"),
    "hole between": (
        {"a": {**T, "shape": [1], "data_offsets": [0, 4]}, "b": {**T, "shape": [0], "data_offsets": [8, 8]}}, "hole"),
    "too short for the file": ({"a": {**T, "shape": [1], "data_offsets": [0, 4]}}, "do not fill"),
    "beyond the end": ({"a": {**T, "shape": [4], "data_offsets": [0, 16]}}, "ends before"),
    "size of another shape": ({"a": {**T, "shape": [3]}}, "not the size of its shape"),
    "off by one": ({"a": {**T, "data_offsets": [0, 7]}}, "not the size of its shape"),
    "backwards": ({"a": {**T, "data_offsets": [8, 0]}}, "not the size of its shape"),
    "negative": (b'{"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}}', "byte"),
    "a float": (b'{"a":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}}', "byte"),
    "NaN": (b'{"a":{"dtype":"F32","shape":[NaN],"data_offsets":[0,8]}}', "byte"),
    "a leading zero": (b'{"a":{"dtype":"F32","shape":[02],"data_offsets":[0,8]}}', "byte"),
    "overflow": ({"a": {**T, "shape": [2**62, 4]}}, "too large"),
    "overflow to zero": ({"a": {**T, "shape": [2**32, 2**32]}}, "too large"),
    "more digits than an offset has": (
        b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,99999999999999999999]}}', "byte"),
    "too many dimensions": ({"a": {**T, "shape": [1] * 70}}, "too large"),
    "three offsets": ({"a": {**T, "data_offsets": [0, 8, 8]}}, "no pair"),
    "an unknown dtype": ({"a": {**T, "dtype": "F99"}}, "dtype"),
    "nesting": (b'{"a":' + b"[" * 5000 + b"]" * 5000 + b"}", "byte"),
    "a tensor that is a string": (b'{"a":"b"}', "byte"),
    "metadata that is no object": (b'{"__metadata__":[]}', "byte"),
    "metadata of numbers": (b'{"__metadata__":{"a":1}}', "byte"),
    "a list": (b"[]", "begin"),
    "nothing": (b"", "begin"),
    "cut off": (b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}', "byte"),
    "something behind it": (b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}x', "byte"),
    "a second object": (b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}{}', "byte"),
    "half of a surrogate pair": (b'{"\\ud800":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}', "no text"),
    "no UTF-8": (b'{"\xff":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}', "no text"),
    "a raw line break in a name": (b'{"a\nb":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}', "byte"),
    "a comma too many": (b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},}', "byte"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_header_that_is_none_is_refused(tmp_path: Path, name: str) -> None:
    header, message = BAD[name]
    with pytest.raises(CheckpointError, match=message):
        open_archive(written(tmp_path, header))


@pytest.mark.parametrize("data", [b"", b"\1", struct.pack("<Q", 2**63) + b"{}", struct.pack("<Q", 3) + b"{}"])
def test_a_length_that_lies_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "m.safetensors").write_bytes(data)
    with pytest.raises(CheckpointError, match="truncated"):
        open_archive(tmp_path / "m.safetensors")


def test_a_header_of_more_than_100_million_bytes_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", MOST_HEADER + 1) + b"{")
        file.truncate(MOST_HEADER + 64)  # sparse: it takes no room
    with pytest.raises(CheckpointError, match="too long"):
        open_archive(path)


def test_metadata_without_end_is_refused(tmp_path: Path) -> None:
    pairs = ",".join(f'"{i}":""' for i in range(MOST_METADATA + 1))
    with pytest.raises(CheckpointError, match="too many"):
        open_archive(written(tmp_path, f'{{"__metadata__":{{{pairs}}}}}'.encode(), b""))


def test_a_truncated_file_is_refused_before_any_value_is_read(tmp_path: Path) -> None:
    path = safetensors(tmp_path / "m.safetensors", {"model.embed_tokens.weight": table()})
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="ends before"):
        open_archive(path)


def test_a_file_that_shrinks_after_its_header_was_read_is_an_error(tmp_path: Path) -> None:
    path = safetensors(tmp_path / "m.safetensors", {"a": table()})
    entry = open_archive(path).entries["a"]
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(CheckpointError, match="cannot be read"):
        entry.values()
