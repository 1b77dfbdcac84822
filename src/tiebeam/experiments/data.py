"""Text as token ids on disk, cut once and mapped into memory by every process that reads it."""

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tiebeam.errors import BackendError, InputError, StoreError
from tiebeam.experiments.corpus import Ids, collect_corpus, train_tokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer

STANDARD_LIBRARY, WIKITEXT, SYNTHETIC = "stdlib", "wikitext-2", "synthetic"
PYTHIA = "EleutherAI/pythia-70m"
SYNTHETIC_TOKENS = (100_000, 20_000)
VALIDATION_SHARE = 10
"""Of a file of the user's own, the last tenth is held out."""

UNKNOWN_SHARE = 0.05
"""More unknown tokens than this, and the tokenizer was made for other text."""

_PIECE = 1 << 20  # characters that are cut into tokens at once


@dataclass(frozen=True, slots=True)
class Source:
    """Which text, and how it is cut.

    Attributes:
        name: "stdlib", "wikitext-2", "synthetic" (ids drawn uniformly), or "files".
        files: The text, where `name` is "files".
        tokenizer: A `tokenizer.json`; None trains a byte-level BPE (of wikitext-2: takes Pythia's).
        vocab: Tokens of the BPE. With a tokenizer that is given: rows of the table, at least as many as ids
            occur; None is just as many.
        max_bytes: Of the standard library.
    """

    name: str = STANDARD_LIBRARY
    files: tuple[Path, ...] = ()
    tokenizer: Path | None = None
    vocab: int | None = None
    max_bytes: int = 3_000_000


@dataclass(frozen=True)
class Tokens:
    """Token ids in a folder: `train.npy`, `validation.npy` and `about.json`.

    Attributes:
        folder: Where they lie.
        train, validation: (tokens,), uint16 or uint32, mapped and read-only.
        vocab: Rows that a table for them needs.
        digest: Hash of all of it.
        label: What they are, in words.
    """

    folder: Path
    train: Ids
    validation: Ids
    vocab: int
    digest: str
    label: str

    @classmethod
    def open(cls, folder: Path) -> "Tokens":
        """Map what `prepare_tokens` has written.

        Raises:
            StoreError: A file of it is missing or damaged.
        """
        try:
            about: dict[str, Any] = json.loads((folder / "about.json").read_text(encoding="utf-8"))
            parts = [np.load(folder / f"{part}.npy", mmap_mode="r") for part in ("train", "validation")]
            return cls(folder, parts[0], parts[1], about["vocab"], about["digest"], about["label"])
        except (OSError, ValueError, KeyError) as error:  # JSON's error is a ValueError
            raise StoreError(
                f"the tokens in '{folder}' are damaged",
                got=str(error),
                hint="remove that folder, and the same command cuts the text again",
            ) from error

    @property
    def config(self) -> dict[str, Any]:
        """What a run's outcome depends on."""
        return {"label": self.label, "digest": self.digest, "vocab": self.vocab}


def prepare_tokens(source: Source, cache: Path) -> Tokens:
    """Read and cut a text, or map what an earlier call has cut of the same text.

    Args:
        source: Which.
        cache: A folder of such folders; a new one appears whole or not at all.

    Raises:
        InputError: The text, or the tokenizer, is missing or does not fit.
        BackendError: A package is missing.
        StoreError: The folder cannot be written.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     tokens = prepare_tokens(Source("synthetic", vocab=1000), Path(folder))
        >>> tokens.vocab, len(tokens.validation), tokens.train.dtype.name
        (1000, 20000, 'uint16')
    """
    if source.name == SYNTHETIC:
        return _synthetic(source, cache)
    label, train, validation = _READERS[source.name](source)
    key = _digest([*train, "\0", *validation, repr((source.vocab, _stamp(source)))])
    folder = cache / f"tokens-{key[:16]}"
    if (folder / "about.json").is_file():
        return Tokens.open(folder)
    tokenizer, given = _tokenizer(source, train)
    parts = tuple(_encode(tokenizer, texts) for texts in (train, validation))
    vocab = tokenizer.get_vocab_size()
    if given:
        parts, vocab = _only_used(parts, source.vocab)
    return _write(folder, parts, vocab, label)


def _synthetic(source: Source, cache: Path) -> Tokens:
    vocab = 4096 if source.vocab is None else source.vocab
    folder = cache / f"tokens-synthetic-{vocab}"
    if (folder / "about.json").is_file():
        return Tokens.open(folder)
    rng = np.random.default_rng(0)
    return _write(folder, tuple(rng.integers(0, vocab, size=n) for n in SYNTHETIC_TOKENS), vocab, "uniform ids")


def _standard_library(source: Source) -> tuple[str, list[str], list[str]]:
    corpus = collect_corpus(source.max_bytes)
    return f"standard library, {corpus.size / 1e6:.1f} MB", list(corpus.train), list(corpus.validation)


def _files(source: Source) -> tuple[str, list[str], list[str]]:
    train, validation = [], []
    for path in source.files:
        try:
            text = path.read_text(encoding="utf-8-sig")
        except OSError as error:
            raise InputError(f"the text '{path}' cannot be read", got=str(error)) from error
        except UnicodeDecodeError as error:
            raise InputError(
                f"the text '{path}' is no UTF-8",
                got=f"byte 0x{error.object[error.start]:02x} at {error.start:,}",
                hint=f"iconv -f ENCODING -t utf-8 '{path}' writes it as UTF-8; a compressed file has to be unpacked",
            ) from error
        cut = len(text) - len(text) // VALIDATION_SHARE
        train.append(text[:cut])
        validation.append(text[cut:])
    return ", ".join(path.name for path in source.files), train, validation


def _wikitext(source: Source) -> tuple[str, list[str], list[str]]:
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise BackendError(
            "wikitext-2 comes through 'datasets', which is missing",
            hint="pip install datasets, or name text files with --data FILE",
        ) from error
    try:
        parts = [
            "".join(load_dataset("Salesforce/wikitext", "wikitext-2-raw-v1", split=split)["text"])
            for split in ("train", "validation")
        ]
    except (OSError, ValueError) as error:  # OSError: no network; ValueError: offline, and not in the cache
        raise InputError(
            "wikitext-2 cannot be had",
            got=str(error).splitlines()[0] if str(error) else type(error).__name__,
            expected="a connection to the Hugging Face hub, or the data set in its cache",
            hint="name text files with --data FILE, and a tokenizer with --tokenizer FILE",
        ) from error
    return WIKITEXT, parts[:1], parts[1:]


_READERS: dict[str, Callable[[Source], tuple[str, list[str], list[str]]]] = {
    STANDARD_LIBRARY: _standard_library,
    "files": _files,
    WIKITEXT: _wikitext,
}


def _tokenizer(source: Source, train: Sequence[str]) -> "tuple[Tokenizer, bool]":
    """The tokenizer, and whether it was given rather than made of this text."""
    if source.tokenizer is None and source.name != WIKITEXT:
        return train_tokenizer(train, 4096 if source.vocab is None else source.vocab), False
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise BackendError(
            "text is cut into tokens with 'tokenizers', which is missing", hint="pip install tokenizers"
        ) from error
    named = PYTHIA if source.tokenizer is None else str(source.tokenizer)
    try:
        found = Tokenizer.from_pretrained(PYTHIA) if source.tokenizer is None else Tokenizer.from_file(named)
    except Exception as error:
        raise InputError(
            f"the tokenizer '{named}' cannot be loaded",
            got=str(error),
            expected="a tokenizer.json of the 'tokenizers' package",
            hint="name one with --tokenizer FILE" if source.tokenizer is None else "",
        ) from error
    # What a model is fed with may be cut and filled up to a length; a text is read whole.
    found.no_truncation()
    found.no_padding()
    return found, True


def _encode(tokenizer: "Tokenizer", texts: Sequence[str]) -> Ids:
    pieces = [text[i : i + _PIECE] for text in texts for i in range(0, len(text), _PIECE)]
    found = [np.asarray(e.ids, dtype=np.int64) for piece in pieces for e in tokenizer.encode_batch([piece])]
    ids = np.concatenate(found) if found else np.zeros(0, dtype=np.int64)
    unknown = getattr(tokenizer.model, "unk_token", None)
    number = tokenizer.token_to_id(unknown) if unknown else None
    share = float(np.mean(ids == number)) if number is not None and ids.size else 0.0
    if share > UNKNOWN_SHARE:
        raise InputError(
            "the tokenizer does not fit the text",
            got=f"{share:.0%} of its tokens are unknown ({unknown!r})",
            expected=f"at most {UNKNOWN_SHARE:.0%}",
        )
    return ids


def _only_used(parts: tuple[Ids, ...], vocab: int | None) -> tuple[tuple[Ids, ...], int]:
    """Number the ids that occur from 0 up, as the source does: a table has no row that no text reads."""
    used, renumbered = np.unique(np.concatenate(parts), return_inverse=True)
    if vocab is not None and len(used) > vocab:
        raise InputError(
            "the tokenizer does not fit the vocabulary",
            got=f"a text of {len(used):,} different tokens",
            expected=f"at most {vocab:,}",
            hint="raise --vocab, or leave it out",
        )
    return tuple(np.split(renumbered, [len(parts[0])])), len(used) if vocab is None else vocab


def _write(folder: Path, parts: tuple[Ids, ...], vocab: int, label: str) -> Tokens:
    kind = np.uint16 if vocab <= 2**16 else np.uint32
    arrays = [part.astype(kind) for part in parts]
    digest = _digest([str(vocab), *(hashlib.sha256(a.tobytes()).hexdigest() for a in arrays)])
    about = {"vocab": vocab, "digest": digest, "label": f"{label}, {len(arrays[0]):,} tokens of {vocab:,}"}
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        made = folder.parent / f".tokens-{secrets.token_hex(8)}"
        made.mkdir()  # whoever may read the store may read them
        try:
            for name, array in zip(("train", "validation"), arrays, strict=True):
                np.save(made / f"{name}.npy", array)
            (made / "about.json").write_text(json.dumps(about), encoding="utf-8")
            _settle(made, folder)
        finally:
            shutil.rmtree(made, ignore_errors=True)
    except OSError as error:
        raise StoreError(f"the tokens cannot be kept in '{folder}'", got=str(error), hint="make room there") from error
    return Tokens.open(folder)


def _settle(made: Path, folder: Path) -> None:
    """Move a whole folder to its place, unless another process was there first."""
    try:
        os.replace(made, folder)  # noqa: PTH105 - Path.replace would do the same; a folder that is not empty refuses
    except OSError:
        if not (folder / "about.json").is_file():
            raise


def _stamp(source: Source) -> str:
    return (
        ""
        if source.tokenizer is None
        else _digest([source.tokenizer.read_bytes()] if source.tokenizer.is_file() else [])
    )


def _digest(parts: Sequence[str | bytes]) -> str:
    found = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", errors="surrogatepass") if isinstance(part, str) else part
        found.update(len(data).to_bytes(8, "big"))
        found.update(data)
    return found.hexdigest()
