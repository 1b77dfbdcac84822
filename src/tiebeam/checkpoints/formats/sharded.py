"""Shards: an index says which file holds which tensor, with or without the files; or names alone say how many."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tiebeam.checkpoints.archive import Archive, Counted, Entry
from tiebeam.checkpoints.bounded import read_json
from tiebeam.errors import CheckpointError

MOST_SHARDS = 20_000
MOST_NAMES = 5_000_000

_PART = re.compile(r"(.*[-.])([0-9]{3,6})-of-([0-9]{3,6})(\.[A-Za-z0-9.]+)")

Reader = Callable[[Path], Archive]


class Shards(Counted):
    """The tensors that an index names, each made from its own file's header when it is asked for."""

    def __init__(self, where: dict[str, str], shards: Mapping[str, Archive]) -> None:
        self._where, self._shards = where, shards

    def __getitem__(self, name: str) -> Entry:
        file = self._where[name]
        shard = self._shards.get(file)
        found = None if shard is None else shard.entries.get(name)
        if found is None:
            return Entry(name, file=file)
        return found if found.file == file else replace(found, file=file)

    def __iter__(self) -> Iterator[str]:
        return iter(self._where)

    def __len__(self) -> int:
        return len(self._where)

    def __contains__(self, name: object) -> bool:
        return name in self._where

    def held(self) -> tuple[int, int]:
        sizes = [shard.held() for shard in self._shards.values()]
        return sum(elements for elements, _ in sizes), sum(size for _, size in sizes)


def read(path: Path, reader: Reader) -> Archive:
    """An index and, where they are there, the files that it names.

    Args:
        path: The index.
        reader: Reads one of its files.

    Raises:
        CheckpointError: The index is no index, or names files outside its folder.
    """
    index = read_json(path)
    where = _weight_map(index, path)
    names = sorted(set(where.values()))
    there = [n for n in names if (path.parent / n).is_file()]
    shards = {n: reader(path.parent / n) for n in there}
    held = {name: n for n, shard in shards.items() for name in shard.entries}
    strays = [n for n, file in where.items() if file in shards and n not in shards[file].entries]
    strays += [n for n in held if n not in where]
    where |= {n: file for n, file in held.items() if n not in where}  # a loader of files, not of the index, sees them
    metadata = {key: value for shard in shards.values() for key, value in shard.metadata.items()}
    return Archive(
        path,
        next((s.format for s in shards.values()), "safetensors" if "safetensors" in path.name else "torch"),
        Shards(where, shards),
        (path.name, *there),
        metadata,
        totals=_totals(index),
        missing=tuple(n for n in names if n not in shards) if shards else (),
        strays=tuple(strays),
        has_values=bool(shards),
    )


def siblings(name: str) -> tuple[str, ...]:
    """Names of all files of the checkpoint that one file is a part of, by that file's name; none where it is whole.

    Example:
        >>> siblings("model-00002-of-00002.safetensors"), siblings("model.safetensors")
        (('model-00001-of-00002.safetensors', 'model-00002-of-00002.safetensors'), ())
    """
    found = _PART.fullmatch(name)
    if found is None or not 1 < int(found[3]) <= MOST_SHARDS or not 1 <= int(found[2]) <= int(found[3]):
        return ()
    width = len(found[2])
    return tuple(f"{found[1]}{i:0{width}}-of-{found[3]}{found[4]}" for i in range(1, int(found[3]) + 1))


def read_set(path: Path, reader: Reader) -> Archive:
    """Files that belong together by their names, as GGUF is split; those that are not there are `missing`.

    Args:
        path: One of them.
        reader: Reads one.
    """
    names = siblings(path.name)
    shards = {n: reader(path.parent / n) for n in names if (path.parent / n).is_file()}
    held = {name: n for n, shard in shards.items() for name in shard.entries}
    first = next(iter(shards.values()))
    return Archive(
        path,
        first.format,
        Shards(held, shards),
        tuple(shards),
        {key: value for shard in shards.values() for key, value in shard.metadata.items()},
        config=first.config,
        missing=tuple(n for n in names if n not in shards),
    )


def _weight_map(index: Mapping[str, Any], path: Path) -> dict[str, str]:
    where = index.get("weight_map")
    if not isinstance(where, dict) or not all(isinstance(f, str) for f in where.values()):
        raise CheckpointError(f"'{path}' is no index", expected="an object 'weight_map' of names and files")
    files = set(where.values())
    if len(where) > MOST_NAMES or len(files) > MOST_SHARDS:
        raise CheckpointError(
            f"'{path}' is too large to be an index",
            got=f"{len(where):,} names in {len(files):,} files",
            expected=f"at most {MOST_NAMES:,} in {MOST_SHARDS:,}",
        )
    for file in files:
        parts = file.split("/")
        if not all(parts) or ".." in parts or any(c in file for c in "\0\\:"):
            raise CheckpointError(
                f"'{path}' names a file outside its folder", got=repr(file)[:200], expected="files beside the index"
            )
    return where


def _totals(index: Mapping[str, Any]) -> dict[str, int]:
    said = index.get("metadata")
    said = said if isinstance(said, dict) else {}
    wanted = ("total_size", "total_parameters")
    numbers = {k: said[k] for k in wanted if isinstance(said.get(k), int | float) and not isinstance(said[k], bool)}
    return {k: int(v) for k, v in numbers.items() if 0 <= v < 2**63}
