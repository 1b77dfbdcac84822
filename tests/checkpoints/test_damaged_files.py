"""Bytes of every format changed at random: each file is read or refused, and nothing else happens."""

import random
import zipfile
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from tests.checkpoints.test_formats import llama2c
from tests.checkpoints.writing import READOUT, TABLE, gguf, table

from tiebeam.checkpoints import inspect
from tiebeam.errors import CheckpointError

E = table()
COUNT = 150
RUNS = (b"\xff" * 8, b"\0" * 8, b"\xff" * 7 + b"\x7f", (2**31).to_bytes(8, "little"))


def hdf5(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["layers/embedding/vars/0"] = E
        file.create_dataset("layers/head/vars/0", data=E, compression="gzip")


def keras_archive(path: Path) -> None:
    hdf5(path.with_suffix(".h5"))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("config.json", '{"class_name": "Functional", "config": {"layers": [1, 2]}}')
        archive.write(path.with_suffix(".h5"), "model.weights.h5")


MAKERS: dict[str, Callable[[Path], object]] = {
    "m.pt": lambda p: torch.save({TABLE: torch.ones(64, 8), READOUT: torch.ones(64, 8)}, p),
    "m.npz": lambda p: np.savez(p, embedding=E, head=E),
    "packed.npz": lambda p: np.savez_compressed(p, embedding=E, head=E),
    "m.gguf": lambda p: gguf(p, {n: (0, E.shape, E.tobytes()) for n in ("token_embd.weight", "output.weight")}),
    "m.bin": lambda p: llama2c(p, shared=False),
    "m.h5": hdf5,
    "m.keras": keras_archive,
}


def damaged(data: bytes, rng: random.Random) -> bytes:
    """A few bytes changed, most of them near either end, where headers are."""
    made = bytearray(data)
    for _ in range(rng.randrange(1, 6)):
        size = len(made)
        at = rng.choice([rng.randrange(size), rng.randrange(min(300, size)), size - 1 - rng.randrange(min(600, size))])
        kind = rng.randrange(5)
        if kind == 0:
            made[at] = rng.randrange(256)
        elif kind == 1:
            made[at] ^= 1 << rng.randrange(8)
        elif kind == 2:
            made[at : at + 8] = rng.choice(RUNS)
        elif kind == 3:
            del made[at : at + rng.randrange(1, 9)]
        else:
            made[at:at] = rng.randbytes(rng.randrange(1, 9))
    return bytes(made)


@pytest.mark.slow
@pytest.mark.parametrize("name", MAKERS)
def test_a_damaged_file_is_read_or_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    MAKERS[name](path)
    sound, rng = path.read_bytes(), random.Random(0)
    inspect(path)
    refused = 0
    for _ in range(COUNT):
        path.write_bytes(damaged(sound, rng))
        try:
            inspect(path)
        except CheckpointError:
            refused += 1
    assert COUNT // 3 < refused < COUNT
