"""Normal draws that every framework shares: block by block, each from its own place in one counter.

A table is drawn in blocks of 64 rows. Block `b` of a table is what NumPy's Philox4x64-10 (Salmon et al.
2011, "Parallel random numbers: as easy as 1, 2, 3") yields under a key made of seed, kind and ordinal, with
its 256-bit counter started at `b * 2**128`: any block can be drawn alone, on any thread, process or shard,
in any order. Rows are drawn in order, so a last block of few rows holds the first rows of the whole block,
and a longer vocabulary keeps the rows of a shorter one.

The key's two words, each of 64 bits::

    word 0   the seed, or of a seed of 2**64 and above the first 8 bytes (big-endian) of the SHA-256 of
             its shortest big-endian bytes
    word 1   bit 63: whether word 0 is such a hash; bits 32-62: the kind's number; bits 0-31: the ordinal

Names, devices and vocabularies have no part in it. NumPy does not promise the stream of
`standard_normal` for ever (NEP 19); a golden hash in the tests notices a change.
"""

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from numbers import Integral
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from tiebeam.errors import RangeError, ShapeError

Kind = Literal["table", "weight"]
Float32 = npt.NDArray[np.float32]

ROWS_PER_BLOCK: Final = 64
KINDS: Final[dict[str, int]] = {"table": 1, "weight": 2}
"""Number of each kind: vocabulary tables, and every other weight. Never renumber: it changes all draws."""

_WORD = 2**64
_ORDINALS = 2**32


@dataclass(frozen=True, slots=True)
class Block:
    """Rows `start` to `stop` of a table, which are the first rows of block `index`."""

    index: int
    start: int
    stop: int

    @property
    def rows(self) -> int:
        """How many they are, 64 in all blocks but the last."""
        return self.stop - self.start


def blocks(vocab: int) -> Iterator[Block]:
    """Cut the rows of a table into blocks.

    Args:
        vocab: Number of rows, 0 or more.

    Yields:
        Every block, in order.

    Raises:
        RangeError: `vocab` is negative or no integer.

    Source: `ROWS_PER_BLOCK`.

    Example:
        >>> [(block.index, block.start, block.rows) for block in blocks(130)]
        [(0, 0, 64), (1, 64, 64), (2, 128, 2)]
    """
    return _blocks(_integer("vocab", vocab))


def _blocks(vocab: int) -> Iterator[Block]:
    for index, start in enumerate(range(0, vocab, ROWS_PER_BLOCK)):
        yield Block(index, start, min(start + ROWS_PER_BLOCK, vocab))


def _integer(what: str, value: int, below: int | None = None) -> int:
    if not isinstance(value, Integral) or value < 0 or (below is not None and value >= below):
        expected = "an integer of 0 or above" + ("" if below is None else f" and below {below}")
        raise RangeError(f"{what} is out of range", got=repr(value), expected=expected)
    return int(value)


def _key(seed: int, kind: Kind, ordinal: int) -> tuple[int, int]:
    word, hashed = _integer("seed", seed), 0
    if kind not in KINDS:
        kinds = " or ".join(map(repr, KINDS))
        raise RangeError("the kind of a draw is unknown", got=repr(kind), expected=kinds)
    if word >= _WORD:
        digest = hashlib.sha256(word.to_bytes((word.bit_length() + 7) // 8, "big")).digest()
        word, hashed = int.from_bytes(digest[:8], "big"), 1
    return word, hashed << 63 | KINDS[kind] << 32 | _integer("ordinal", ordinal, _ORDINALS)


def float32_std(std: float) -> np.float32:
    """Std as draws are multiplied by it: rounded to float32 once.

    Args:
        std: Std of the entries, above 0 in float32. Unit: 1.

    Returns:
        The nearest float32.

    Raises:
        RangeError: It is not finite, or not above 0 in float32.

    Source: IEEE 754, round to nearest even.

    Example:
        >>> float(float32_std(0.5))
        0.5
    """
    with np.errstate(over="ignore", under="ignore"):
        rounded = np.float32(std)
    if not (math.isfinite(rounded) and rounded > 0):
        raise RangeError(
            "std is out of range",
            got=repr(std),
            expected="a number above 0 that float32 can hold",
            hint="to empty a table, fill it with zeros",
        )
    return rounded


def draw_block(
    seed: int,
    kind: Kind,
    ordinal: int,
    block: int,
    rows: int,
    width: int,
    std: float,
    *,
    out: Float32 | None = None,
) -> Float32:
    """Draw the first `rows` rows of one block of a table.

    Args:
        seed: Any integer of 0 or above, however large.
        kind: What is drawn: "table", or "weight" for everything else.
        ordinal: Which of its kind, in order of first use, below 2**32.
        block: Which 64 rows, below 2**64.
        rows: How many of them, 0 to 64.
        width: Entries of a row. Unit: features.
        std: Std of the entries, above 0. Unit: 1.
        out: C-contiguous float32 array of shape `(rows, width)` to draw into, or None for a new one.

    Returns:
        `(rows, width)`, float32, unit 1: standard normal draws times float32(std). It is `out` where given.
        The caller rounds once, to the table's dtype.

    Raises:
        RangeError: A number lies outside its bounds, or the kind is unknown.
        ShapeError: `out` cannot take the rows.

    Assumes: nothing of its surroundings; equal arguments give equal bits on one machine with one NumPy
    (its tails use the C library's `log`, which may differ between platforms in the last bit).
    Source: Salmon et al. 2011 (Philox4x64-10); Marsaglia and Tsang 2000 (NumPy's ziggurat).

    Example:
        >>> whole = draw_block(seed=0, kind="table", ordinal=0, block=3, rows=64, width=8, std=0.02)
        >>> part = draw_block(seed=0, kind="table", ordinal=0, block=3, rows=5, width=8, std=0.02)
        >>> bool((part == whole[:5]).all()), part.dtype.name
        (True, 'float32')
    """
    shape = (_integer("rows", rows, ROWS_PER_BLOCK + 1), _integer("width", width))
    factor = float32_std(std)
    key = np.array(_key(seed, kind, ordinal), dtype=np.uint64)
    counter = np.array((0, 0, _integer("block", block, _WORD), 0), dtype=np.uint64)
    if out is None:
        out = np.empty(shape, dtype=np.float32)
    elif out.shape != shape or out.dtype != np.float32 or not out.flags.carray:
        raise ShapeError(
            "the array to draw into does not fit",
            got=f"{out.shape} of {out.dtype}" + ("" if out.flags.carray else ", not contiguous or read-only"),
            expected=f"{shape} of float32, C-contiguous and writable",
        )
    np.random.Generator(np.random.Philox(key=key, counter=counter)).standard_normal(dtype=np.float32, out=out)
    np.multiply(out, factor, out=out)
    return out
