"""A module's tensors in safetensors: each once with its other names in the metadata, and back."""

import contextlib
import json
import os
import tempfile
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tiebeam.backends.torch.operations.slots import check_whole, slots
from tiebeam.blocks.torch import TiedEmbedding
from tiebeam.core.operations.transaction import Transaction
from tiebeam.errors import InputError, TieError

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"

FORMAT = {"format": "pt"}
"""What transformers asks of a file's metadata."""


def state(model: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers that are saved, by every path; the objects themselves."""
    kept = set(model.state_dict())
    return {path: place.tensor for place in slots(model) for path in place.paths if path in kept}


def same_tensors(held: Mapping[str, torch.Tensor]) -> list[tuple[str, ...]]:
    """Groups of names that are one tensor: one object, or one view of one storage."""
    found: dict[Any, list[str]] = {}
    for name, t in held.items():
        key: Any = id(t)
        if not t.is_meta and t.layout == torch.strided and t.numel():
            key = (t.untyped_storage()._cdata, t.storage_offset(), tuple(t.shape), t.stride(), t.dtype)
        found.setdefault(key, []).append(name)
    return [tuple(names) for names in found.values()]


def write(model: nn.Module, file: Path, apart: Collection[str] = ()) -> tuple[tuple[str, ...], ...]:
    """Write a file as a whole or not at all; the groups of names that were written once.

    Args:
        apart: Names that are written although their tensor is there under another one.

    Raises:
        TieError: A tensor has no values, or none that safetensors could hold.
        InputError: The file or its folder is not to be written to.
    """
    from safetensors.torch import save_file

    held = state(model)
    for n, t in held.items():
        check_whole(t, n)
    groups = [g for names in same_tensors(held) for g in _apart(names, apart)]
    empty = [n for n, t in held.items() if t.is_meta or t.layout != torch.strided]
    if empty:
        raise TieError(
            f"{empty[0]!r} has no values to write",
            got=f"a tensor on {held[empty[0]].device} of layout {held[empty[0]].layout}",
            hint="give the model memory and load it first",
        )
    tensors = {names[0]: held[names[0]].detach().contiguous() for names in groups}
    seen: set[int] = set()
    for name, t in tensors.items():  # views of one storage that are not the same tensor get memory of their own
        if t.untyped_storage()._cdata in seen:
            tensors[name] = t.clone()
        seen.add(t.untyped_storage()._cdata)
    aliases = {alias: names[0] for names in groups for alias in names[1:]} | _read_out(model, groups)
    if file.exists() and not file.stat().st_mode & 0o222:
        raise InputError(f"{file} is read-only", expected="a file that may be replaced, or another name")
    try:
        handle, name = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)
    except OSError as error:
        raise InputError(f"{file.parent} cannot be written to: {error}", expected="a folder that can be") from error
    os.close(handle)
    try:
        save_file(tensors, name, metadata={**FORMAT, **aliases})
        Path(name).chmod(0o666 & ~_umask())
        Path(name).replace(file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return tuple(names for names in groups if len(names) > 1)


def _read_out(model: nn.Module, groups: Sequence[tuple[str, ...]]) -> dict[str, str]:
    """Names for the readouts that are no parameter, as `TiedEmbedding`'s is: else a file seems to lack them."""
    stored = {name: names[0] for names in groups for name in names}
    blocks = [(f"{path}." if path else "", m) for path, m in model.named_modules() if isinstance(m, TiedEmbedding)]
    return {f"{front}readout": stored[f"{front}weight"] for front, _ in blocks if f"{front}weight" in stored}


def _apart(names: tuple[str, ...], apart: Collection[str]) -> Iterator[tuple[str, ...]]:
    together = tuple(n for n in names if n not in apart) or names[:1]
    yield together
    yield from ((n,) for n in names if n not in together)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


class Stored:
    """The tensors of a safetensors file, or of the shards of an index; read when asked for.

    Args:
        path: A file, an index, or the folder of either.

    Raises:
        InputError: There is no such file, or it is none that safetensors reads.
    """

    def __init__(self, path: Path) -> None:
        from safetensors import SafetensorError, safe_open

        files = _files(path)
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.metadata: dict[str, str] = {}
        self._homes: dict[str, Any] = {}
        self._open = contextlib.ExitStack()
        for file in files:
            try:
                opened = self._open.enter_context(safe_open(file, "pt"))
            except (OSError, SafetensorError) as error:
                self._open.close()
                raise InputError(
                    f"{file} cannot be read: {error}",
                    expected="a safetensors file",
                    hint="what torch.save wrote: torch.load(path, weights_only=True), then model.load_state_dict(...)",
                ) from error
            self.metadata.update(opened.metadata() or {})
            for name in opened.keys():  # noqa: SIM118 - it is no mapping
                self._homes[name] = opened
                self.shapes[name] = tuple(opened.get_slice(name).get_shape())

    def __getitem__(self, name: str) -> torch.Tensor:
        tensor: torch.Tensor = self._homes[name].get_tensor(name)
        return tensor

    def __enter__(self) -> "Stored":
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        path = next((path / n for n in (WEIGHTS, INDEX) if (path / n).is_file()), path / WEIGHTS)
    if not path.is_file():
        raise InputError(
            f"there is no file {path}",
            expected=f"a .safetensors file, or a folder with {WEIGHTS}",
            hint="give the path that tiebeam.save wrote to; a relative one counts from the working folder",
        )
    if path.suffix != ".json":
        return [path]
    try:
        shards = sorted(set(json.loads(path.read_text("utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise InputError(f"{path} is no index of shards", got=f"{type(error).__name__}: {error}") from error
    outside = [s for s in shards if not isinstance(s, str) or Path(s).name != s]
    if outside:
        raise InputError(f"{path} names shards elsewhere", got=repr(outside[0]), expected="names beside the index")
    return [path.parent / shard for shard in shards]


class Places:
    """Every place of a model, found once, to put values into.

    Args:
        model: The module; places that come later are not known.
    """

    def __init__(self, model: nn.Module) -> None:
        self.every = list(slots(model))
        self.by_path = {path: place for place in self.every for path in place.paths}
        tensors = {id(s.tensor): s.tensor for s in self.every}.values()
        plain = [t for t in tensors if t.layout == torch.strided and not t.is_meta]
        self._holders = Counter(t.untyped_storage()._cdata for t in plain)

    def put(self, name: str, values: torch.Tensor, undo: Transaction) -> None:
        """Let the tensor under a name, and every place that holds it, hold these values: cast, and on its device.

        A tensor without memory (on meta) becomes a new one, under all its names; the optimizer is not told, it cannot
        have stepped one.
        """
        tensor = self.by_path[name].tensor
        if values.is_floating_point() != tensor.is_floating_point() and not tensor.is_complex():
            raise TieError(
                f"{name!r} does not fit",
                got=f"{values.dtype} in the file",
                expected=f"{tensor.dtype}, as the model has it",
                hint="a quantised file is for the quantised model",
            )
        if tensor.is_meta:
            fresh = values.to(tensor.dtype)
            made: torch.Tensor = (
                nn.Parameter(fresh, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else fresh
            )
            for place in [s for s in self.every if s.tensor is tensor]:
                place.put(made, undo)
            return
        fresh = values.to(tensor.device, tensor.dtype)
        if self._seen_by_others(tensor):
            kept = tensor.detach().clone()
            undo.did(lambda: tensor.detach().copy_(kept))
            tensor.detach().copy_(fresh)
            return
        before = tensor.data
        undo.did(lambda: setattr(tensor, "data", before))
        tensor.data = fresh.clone() if fresh is values else fresh  # what was read may be a mapping of the file

    def _seen_by_others(self, tensor: torch.Tensor) -> bool:
        """Whether another tensor lies in the same memory."""
        storage = tensor.untyped_storage()
        return storage.nbytes() != tensor.nbytes or self._holders[storage._cdata] > 1
