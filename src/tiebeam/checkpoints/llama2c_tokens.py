"""llama2.c's tokenizer files: byte pairs with scores, as run.c reads and applies them."""

import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path

from tiebeam.errors import TargetError

BOS, EOS = 1, 2
_BYTES = 3  # the first of 256 tokens that stand for a byte each
_RAW = re.compile(rb"<0x([0-9A-F]{2})>")


@dataclass(frozen=True)
class Tokens:
    """A vocabulary.

    Attributes:
        pieces: What each token stands for.
        scores: The higher, the sooner a pair is joined.
    """

    pieces: tuple[bytes, ...]
    scores: tuple[float, ...]

    @cached_property
    def _ids(self) -> dict[bytes, int]:
        return {piece: i for i, piece in reversed(list(enumerate(self.pieces)))}  # the first of equals

    def decode(self, ids: Iterable[int]) -> str:
        """Text of tokens; behind a start of text the leading blank goes, as in run.c."""
        out, before = [], None
        for i in ids:
            piece = self.pieces[i]
            if before == BOS and piece.startswith(b" "):
                piece = piece[1:]
            raw = _RAW.fullmatch(piece)
            if i not in (BOS, EOS):
                out.append(bytes([int(raw[1], 16)]) if raw else piece)
            before = i
        return b"".join(out).decode("utf-8", "replace")

    def encode(self, text: str) -> list[int]:
        """Tokens of a text, its start first: pairs are joined, the best score before the others."""
        ids = [BOS]
        if text:
            ids += [i for i in [self._ids.get(b" ")] if i is not None]
        for character in text:
            piece = character.encode("utf-8")
            known = self._ids.get(piece)
            ids += [known] if known is not None else [b + _BYTES for b in piece]
        while True:
            pairs = [self.pieces[a] + self.pieces[b] for a, b in pairwise(ids)]
            joins = [(self.scores[i], -at, i) for at, p in enumerate(pairs) if (i := self._ids.get(p)) is not None]
            if not joins:
                return ids
            _, at, joined = max(joins)
            ids[-at : 2 - at] = [joined]


def read_tokens(path: str | Path, vocab: int) -> Tokens:
    """Read a tokenizer of `vocab` tokens.

    Raises:
        TargetError: The file holds fewer, or more.

    Source: github.com/karpathy/llama2.c, `tokenizer.py` and `run.c`.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as e:
        raise TargetError(f"'{path}' cannot be read", got=str(e)) from e
    pieces, scores, at = [], [], 4
    for _ in range(vocab):
        if at + 8 > len(data):
            break
        score, length = struct.unpack_from("<fi", data, at)
        at += 8
        if not 0 <= length <= len(data) - at:
            break
        pieces.append(data[at : at + length])
        scores.append(score)
        at += length
    if len(pieces) != vocab or at != len(data):
        raise TargetError(
            f"'{path}' is no tokenizer of {vocab} tokens", got=f"{len(pieces)} tokens in {at} of {len(data)} bytes"
        )
    return Tokens(tuple(pieces), tuple(scores))
