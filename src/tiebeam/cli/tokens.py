"""Text as token ids: by the target's own tokenizer, or byte by byte where it has none."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tiebeam.cli.target import Target
from tiebeam.errors import TargetError

Ints = npt.NDArray[np.int64]

FAST = "tokenizer.json"
_OTHERS = ("tokenizer_config.json", "vocab.json", "vocab.txt", "tokenizer.model", "spiece.model")
_BYTES_PER_TOKEN = 64  # more than any tokenizer packs into one on average: how much of a long file is read


def tokens_of(file: Path, target: str, found: Target, *, most: int) -> tuple[str, Ints]:
    """The first tokens of a file.

    Args:
        file: UTF-8, where a tokenizer reads it.
        target: As on the command line: a folder, a file in one, or `hf:org/name`.
        found: The model, whose table bounds the ids.
        most: How many are wanted.

    Returns:
        Who made the ids, and the ids: one for each token, at most `most`.

    Raises:
        TargetError: The file is empty or no text, or its bytes are no tokens of the model.
    """
    raw = _beginning(file, most * _BYTES_PER_TOKEN)
    if not raw:
        raise TargetError(f"'{file}' is empty", expected="text")
    folder = _folder(target)
    if folder is not None and (folder / FAST).is_file():
        return f"by {folder / FAST}", _encoded(_fast(folder / FAST), _text(raw, file), most)
    if folder is not None and any((folder / name).is_file() for name in _OTHERS):
        return f"by the tokenizer in {folder}", _encoded(_slow(folder), _text(raw, file), most)
    return "its bytes as ids: the target has no tokenizer", _bytes(raw[:most], found, file)


def _beginning(file: Path, size: int) -> bytes:
    try:
        with file.open("rb") as stream:
            return stream.read(size)
    except OSError as e:
        raise TargetError(f"'{file}' cannot be read", got=str(e)) from e


def _text(raw: bytes, file: Path) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as e:
        if e.end >= len(raw) - 3 and e.reason == "unexpected end of data":
            return raw[: e.start].decode("utf-8")  # what was read ends within a character
        raise TargetError(f"'{file}' is no UTF-8 text", got=str(e), expected="text, or ids in .npy or .json") from e


def _folder(target: str) -> Path | None:
    path = Path(target).expanduser()
    if not target or not path.exists():
        return None
    return path if path.is_dir() else path.parent


def _fast(file: Path) -> Any:
    try:
        from tokenizers import Tokenizer
    except ImportError as e:
        raise TargetError(f"'{file}' needs tokenizers", got=str(e), hint="pip install tokenizers") from e
    try:
        held = Tokenizer.from_file(str(file))
    except Exception as e:
        raise TargetError(f"'{file}' is no tokenizer", got=str(e).splitlines()[0]) from e
    return lambda text: held.encode(text, add_special_tokens=False).ids


def _slow(folder: Path) -> Any:
    from tiebeam.checkpoints.transformers_configs import quiet

    try:
        import transformers

        with quiet():
            held = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (ImportError, OSError, ValueError, KeyError, TypeError) as e:
        lines = str(e).strip().splitlines() or [type(e).__name__]
        raise TargetError(
            f"the tokenizer in '{folder}' cannot be built", got=lines[0], hint="give ids instead: --data ids.npy"
        ) from e
    return lambda text: held.encode(text, add_special_tokens=False)


def _encoded(encode: Any, text: str, most: int) -> Ints:
    ids = np.asarray(encode(text)[:most], dtype=np.int64)
    if not len(ids):
        raise TargetError("the tokenizer finds no token in the text", got=repr(text[:40]))
    return ids


def _bytes(raw: bytes, found: Target, file: Path) -> Ints:
    from tiebeam.backends import resolve

    ids = np.frombuffer(raw, dtype=np.uint8).astype(np.int64)
    bound = resolve(found.model, found.params).vocab_bound()
    if bound is not None and int(ids.max()) >= bound:
        raise TargetError(
            f"the bytes of '{file}' are no tokens of {type(found.model).__name__}",
            got=f"a byte of {int(ids.max())}, and {bound} rows in its tallest table",
            expected="a tokenizer beside the target, or ids in .npy or .json",
        )
    return ids
