"""The batch that `tiebeam measure` runs: from text, from arrays of token ids, or from a function of the user's."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tiebeam.cli.target import Target
from tiebeam.cli.targets import CALLABLE, object_of
from tiebeam.cli.tokens import tokens_of
from tiebeam.errors import TargetError

Array = npt.NDArray[Any]

_MOST_BYTES = 1 << 30  # of a .npy or .npz file, whose arrays are read whole
_EXPECTED = "text, ids in .npy, .npz or .json, or module:callable"


def batch_of(data: str, target: str, found: Target, *, rows: int, tokens: int) -> tuple[Any, str]:
    """Read a batch.

    Args:
        data: A file, or `module:callable`, whose code runs: it returns a batch, or is one.
        target: What the model was made from: its tokenizer lies beside it.
        found: The model.
        rows, tokens: How much of a text, or of a long list of ids, is taken.

    Returns:
        What `tiebeam.measure` takes, and what it is, in words.

    Raises:
        TargetError: There is no such file or function, or it holds no batch.
    """
    path = file_of(data)
    if path is None:
        return object_of(data, "a batch"), f"what {data} gave"
    if path.suffix in (".npy", ".npz", ".json"):
        arrays = _arrays(path)
        if list(arrays) == [""]:
            ids = _cut(_integers(arrays[""], path), rows, tokens)
            return _named(found, ids), f"{_size(ids)} ids of {path.name}"
        strange = [f"{name}: {a.dtype}" for name, a in arrays.items() if a.dtype.kind not in "biuf"]
        if strange or not arrays:
            raise TargetError(f"'{path}' holds no batch", got=", ".join(strange) or "nothing", expected=_EXPECTED)
        return {name: _batched(a) for name, a in arrays.items()}, f"{', '.join(arrays)} of {path.name}"
    said, ids = tokens_of(path, target, found, most=rows * tokens)
    cut = _cut(ids, rows, tokens)
    return _named(found, cut), f"{_size(cut)} tokens of {path.name}, {said}"


def file_of(data: str) -> Path | None:
    """The file of a batch, which is asked for before a model is built; None where it is `module:callable`.

    Raises:
        TargetError: There is no such file.
    """
    path = Path(data).expanduser()
    if not path.exists() and CALLABLE.fullmatch(data):
        return None
    if not path.is_file():
        raise TargetError(
            f"there is no file '{data}' to measure on",
            got="a folder" if path.is_dir() else repr(data),
            expected=_EXPECTED,
            hint="paths are taken from the current folder",
        )
    return path


def _arrays(path: Path) -> dict[str, Array]:
    """Arrays by name; one without a name has ""."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise TargetError(f"'{path}' is too large for a batch", got=f"{path.stat().st_size} bytes")
        if path.suffix == ".json":
            held = json.loads(path.read_text(encoding="utf-8"))
            return {k: np.asarray(v) for k, v in (held if isinstance(held, Mapping) else {"": held}).items()}
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return {"": loaded}
        with loaded:
            arrays = {name: loaded[name] for name in loaded.files}
    except (OSError, ValueError, EOFError, RecursionError) as e:
        lines = str(e).strip().splitlines() or [type(e).__name__]
        raise TargetError(f"'{path}' cannot be read", got=lines[0], expected="arrays of one length each") from e
    return {"": next(iter(arrays.values()))} if list(arrays) == ["arr_0"] else arrays


def _integers(ids: Array, path: Path) -> Array:
    if not np.issubdtype(ids.dtype, np.integer) or ids.ndim not in (1, 2):
        raise TargetError(
            f"'{path}' holds no token ids",
            got=f"{ids.dtype} {ids.shape}",
            expected="integers of shape (tokens,) or (rows, tokens)",
        )
    return ids.astype(np.int64)


def _cut(ids: Array, rows: int, tokens: int) -> Array:
    """A long list as rows of `tokens`; rows stay as they are."""
    if ids.ndim == 2:
        return ids
    whole = min(rows, len(ids) // tokens)
    return ids[: whole * tokens].reshape(whole, tokens) if whole else ids[None]


def _batched(a: Array) -> Array:
    a = a.astype(np.int64) if np.issubdtype(a.dtype, np.integer) else a
    return a[None] if a.ndim == 1 else a


def _size(ids: Array) -> str:
    return " x ".join(f"{n:,}" for n in ids.shape)


def _named(found: Target, ids: Array) -> Any:
    """Ids under the names by which the model takes them."""
    names = _names(found)
    return dict.fromkeys(names, ids) if names else ids


def _names(found: Target) -> tuple[str, ...]:
    """What example inputs of this model hold that is made of token ids; empty where ids are the one argument.

    Raises:
        TargetError: It takes more than ids.
    """
    example = _example(found)
    if example is None:
        return ()
    of_ids = [name for name, a in example.items() if name.endswith("ids") and _is_ids(a)]
    if len(of_ids) < len(example):
        raise TargetError(
            f"{type(found.model).__name__} takes more than token ids",
            got=f"inputs {', '.join(example)}",
            expected="a .npz file with these names, or module:callable that returns the batch",
        )
    return tuple(of_ids)


def _example(found: Target) -> dict[str, Any] | None:
    """The inputs that came with the model, or those that its config asks for, where they go by names."""
    if found.inputs is not None:
        return dict(found.inputs) if isinstance(found.inputs, Mapping) else None
    from tiebeam.backends import resolve
    from tiebeam.checkpoints import example_inputs

    config = getattr(found.model, "config", None)
    forward = resolve(found.model, found.params).forward
    made = None if config is None else example_inputs.from_config(config, forward)
    return None if made is None else dict(made)


def _is_ids(a: Any) -> bool:
    dtype = str(getattr(a, "dtype", ""))
    return len(getattr(a, "shape", ())) == 2 and "int" in dtype
