"""Real text that every machine has: Python's own standard library, cut into tokens by a BPE trained on it."""

import hashlib
import os
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tiebeam.errors import BackendError, InputError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Ids = npt.NDArray[np.integer]
"""(tokens,), in memory or mapped from a file."""

END = "<|end|>"
"""Stands after every file; always token 0."""

SKIPPED = frozenset(
    {"site-packages", "dist-packages", "__pycache__"}  # not the standard library's
    | {"test", "tests", "idlelib", "lib2to3"}  # not installed everywhere, so no two machines would agree
    | {"encodings", "pydoc_data"}  # tables of numbers, not code
)

VALIDATION_EVERY = 10

_ENDLESS = r"\S{1000}|\s{1000}"


@dataclass(frozen=True, slots=True)
class Corpus:
    """Source files, whole, in an order that depends on their names alone.

    Attributes:
        root: Where they lie.
        train: The text of nine files in ten.
        validation: The text of the others.
        size: Bytes of both.
    """

    root: Path
    train: tuple[str, ...]
    validation: tuple[str, ...]
    size: int

    @property
    def files(self) -> int:
        """How many files there are."""
        return len(self.train) + len(self.validation)


@dataclass(frozen=True)
class TokenData:
    """A corpus as token ids.

    Attributes:
        train, validation: (tokens,), integers.
        vocab: How many different ids there can be.
        tokenizer: What turns ids back into text.
    """

    train: Ids
    validation: Ids
    vocab: int
    tokenizer: "Tokenizer"


def collect_corpus(max_bytes: int = 3_000_000, root: Path | None = None) -> Corpus:
    """Read the standard library's Python files, at most `max_bytes` of them.

    The order is by a hash of each file's path, so that a capped corpus is a fair sample of all of it and
    validation files are like training files.

    Args:
        max_bytes: Files are taken while they fit. Unit: bytes.
        root: Where to look; None is where this Python keeps its standard library.

    Raises:
        InputError: Fewer than two files were found there.

    Example:
        >>> corpus = collect_corpus(max_bytes=200_000)
        >>> len(corpus.train) > len(corpus.validation) > 0
        True
    """
    root = Path(sysconfig.get_path("stdlib")) if root is None else root
    texts: list[str] = []
    size = 0
    for path in sorted(_python_files(root), key=lambda p: _fingerprint(p.relative_to(root))):
        data = path.read_bytes()
        if data and size + len(data) <= max_bytes:
            size += len(data)
            texts.append(data.decode("utf-8", errors="replace"))
    if len(texts) < 2:
        raise InputError(
            f"no text to train on under {root}",
            got=f"{len(texts)} Python files that fit into {max_bytes} bytes",
            expected="two or more",
            hint="this Python may keep its standard library in a zip file: use one that does not",
        )
    validation = texts[::VALIDATION_EVERY]
    train = [text for i, text in enumerate(texts) if i % VALIDATION_EVERY]
    return Corpus(root, tuple(train), tuple(validation), size)


def train_tokenizer(texts: Sequence[str], vocab: int = 4096) -> "Tokenizer":
    """Train a byte-level BPE.

    Args:
        texts: What it learns from.
        vocab: Tokens wanted; at least 257 (every byte, and the end of a file). Little text gives fewer.

    Raises:
        BackendError: The `tokenizers` package is missing.
        InputError: `vocab` is too small for every byte to have a token.
    """
    try:
        from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    except ImportError as error:
        raise BackendError(
            "the demo cuts text into tokens with 'tokenizers', which is missing",
            hint="pip install 'tiebeam[demo]'",
        ) from error
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    if vocab <= len(alphabet):
        raise InputError("vocabulary of the demo", got=str(vocab), expected=f"more than {len(alphabet)}")
    tokenizer = Tokenizer(models.BPE())
    # The time that a word takes to learn from goes as the square of its length: a line without end is cut.
    endless = pre_tokenizers.Split(Regex(_ENDLESS), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([endless, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab, special_tokens=[END], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer=trainer)
    return tokenizer


def encode_corpus(corpus: Corpus, tokenizer: "Tokenizer") -> TokenData:
    """Turn both parts of `corpus` into ids, `END` after every file.

    Example:
        >>> corpus = Corpus(Path(), train=("a = 1",), validation=("b",), size=6)
        >>> encode_corpus(corpus, train_tokenizer(corpus.train, vocab=300)).validation.size
        2
    """

    def ids(texts: Sequence[str]) -> Ids:
        end = tokenizer.token_to_id(END)
        parts = [[*encoding.ids, end] for encoding in tokenizer.encode_batch(list(texts))]
        return np.concatenate([np.asarray(part, dtype=np.int64) for part in parts])

    return TokenData(ids(corpus.train), ids(corpus.validation), tokenizer.get_vocab_size(), tokenizer)


def _python_files(root: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name not in SKIPPED]
        yield from (Path(folder) / name for name in files if name.endswith(".py"))


def _fingerprint(path: Path) -> str:
    return hashlib.sha256(path.as_posix().encode()).hexdigest()


def check_length(ids: Ids, window: int) -> None:
    """Raise where not one window fits into `ids`.

    Raises:
        InputError: It does not.
    """
    if len(ids) < window:
        raise InputError("the text is shorter than one window", got=f"{len(ids)} tokens", expected=f"at least {window}")
