"""What judging a checkpoint costs: an index of 1,000 shards, and two matrices of 1 GiB that are equal, or are not.

Files are written to a folder of their own (4 GiB, in /dev/shm where it is there) and are in the page cache. Private
memory is counted in a fresh process for each question. Exit status 1 says that a goal was missed.

    python benchmarks/bench_checkpoint.py [--runs 5] [--size 1024]
"""

import argparse
import ctypes
import json
import mmap
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from measuring import Row, medians, show

from tiebeam.checkpoints import inspect

SHARDS, TENSORS = 1000, 20
WIDTH = 1024
CONFIG = {"model_type": "llama", "tie_word_embeddings": True}
TABLE, READOUT = "model.embed_tokens.weight", "lm_head.weight"
MOST_PRIVATE = 64.0
"""MiB above the interpreter, NumPy imported."""

PRIVATE = """
import sys, json
from pathlib import Path
import numpy

def private():
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(l.split()[1]) for l in lines if l.startswith("Private_")) / 1024

before = private()
from tiebeam.checkpoints import inspect
report = inspect(sys.argv[1])
print(private() - before, report.state)
"""


def main() -> int:
    """Measure and print; 1 where a goal was missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--size", type=int, default=1024, help="MiB of one matrix")
    options = parser.parse_args()
    with _folder() as place:
        index, bare = _sharded(place / "shards"), _index_alone(place / "bare")
        rows = options.size * 2**20 // (4 * WIDTH)
        equal = _pair(place / "equal", rows, differ_at=None)
        early = _pair(place / "early", rows, differ_at=0)
        found = [inspect(p).state for p in (index, bare, equal, early)]
        if found != ["equal", "unknown", "equal", "different"]:
            raise SystemExit(f"the verdicts are wrong: {found}")
        compare = _memcmp(equal / "model.safetensors", 4 * rows * WIDTH)
        with_shards, alone, same, other, plain = medians(
            options.runs,
            lambda: inspect(index),
            lambda: inspect(bare),
            lambda: inspect(equal),
            lambda: inspect(early),
            compare,
        )
        table = [
            Row(f"index of {SHARDS:,} shards, alone", alone, 0.3, " s", f"{SHARDS * TENSORS:,} names"),
            Row(f"index of {SHARDS:,} shards, all headers read", with_shards, 0.3, " s"),
            Row(f"two of {options.size} MiB, first MiB differs", other, 0.05, " s"),
            Row(
                f"two of {options.size} MiB, equal, over memcmp",
                same / plain,
                1.5,
                "",
                f"{same:.3f} against {plain:.3f} s",
            ),
        ]
        for name, path in (("index", index), ("equal", equal), ("different", early)):
            table.append(Row(f"private memory, {name}", _private(path), MOST_PRIVATE, " MiB"))
    return int(show("Judging a checkpoint", table) > 0)


@contextmanager
def _folder() -> Iterator[Path]:
    quick = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=quick if quick.is_dir() else None) as name:
        yield Path(name)


def _header(tensors: dict[str, tuple[int, ...]]) -> bytes:
    header, at = {}, 0
    for name, shape in tensors.items():
        size = 4 * int(np.prod(shape))
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header, separators=(",", ":")).encode()
    return len(text).to_bytes(8, "little") + text


def _shards() -> dict[str, dict[str, tuple[int, ...]]]:
    body = {
        f"model-{i:05}-of-{SHARDS:05}.safetensors": {
            f"model.layers.{i}.block.{j}.weight": (4, 4) for j in range(TENSORS - (i in (0, SHARDS - 1)))
        }
        for i in range(SHARDS)
    }
    first, last = next(iter(body)), list(body)[-1]
    body[first][TABLE], body[last][READOUT] = (256, 4), (256, 4)
    return body


def _index_alone(place: Path) -> Path:
    place.mkdir()
    where = {name: file for file, tensors in _shards().items() for name in tensors}
    index = {"metadata": {"total_size": 1}, "weight_map": where}
    (place / "model.safetensors.index.json").write_text(json.dumps(index))
    (place / "config.json").write_text(json.dumps(CONFIG))
    return place


def _sharded(place: Path) -> Path:
    _index_alone(place)
    for file, tensors in _shards().items():
        size = 4 * sum(int(np.prod(s)) for s in tensors.values())
        (place / file).write_bytes(_header(tensors) + bytes(size))
    return place


def _pair(place: Path, rows: int, differ_at: int | None) -> Path:
    """Table and readout of one size in one file."""
    place.mkdir()
    (place / "config.json").write_text(json.dumps(CONFIG))
    block = np.random.default_rng(0).standard_normal((2**18,), dtype=np.float32).tobytes()
    size = 4 * rows * WIDTH
    with (place / "model.safetensors").open("wb") as file:
        file.write(_header({TABLE: (rows, WIDTH), READOUT: (rows, WIDTH)}))
        for end in range(2):
            for at in range(0, size, len(block)):
                changed = end == 1 and differ_at == at
                file.write(b"\1\2\3\4" + block[4:] if changed else block[: size - at])
    return place


def _memcmp(path: Path, size: int) -> Callable[[], None]:
    """Libc's comparison of both halves of a mapping, the mapping included."""
    libc = ctypes.CDLL(None)
    libc.memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    base = path.stat().st_size - 2 * size

    def run() -> None:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapping:
            view = np.frombuffer(mapping, np.uint8)
            address = view.ctypes.data + base
            if libc.memcmp(address, address + size, size):
                raise SystemExit("memcmp finds the equal matrices different")
            del view

    return run


def _private(path: Path) -> float:
    done = subprocess.run([sys.executable, "-c", PRIVATE, str(path)], capture_output=True, text=True, check=True)
    return float(done.stdout.split()[0])


if __name__ == "__main__":
    sys.exit(main())
