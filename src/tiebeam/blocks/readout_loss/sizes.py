"""How many tokens and rows of the table are worked on at a time: by the caches and the table."""

import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path

HELD = 72 << 20  # bytes of logits held at a time; a quarter of the table where that is more
HELD_NEAR = 20 << 20  # the same beside a table that stays in the cache: fewer tokens at a time cost nothing there
MOST = 2048  # bytes that the logits of all tokens of a block take against one row; beyond, products get no faster
LEAST_TOKENS = 32
LINE = 64  # rows come in an odd number of these: logits a power of two apart evict each other, a fifth of a product
MOST_ROWS, LEAST_ROWS = 33 * LINE, 5 * LINE
SHARE = 12  # of the outermost cache that a block takes: others use it too
WIDE = 4  # bytes of a logit that is worked on
UNKNOWN_CACHE = 32 << 20


@dataclass(frozen=True, slots=True)
class Blocks:
    """Sizes of a block.

    Attributes:
        tokens: Hidden states in a block.
        rows: Rows of the table in a block.
        wide_tokens: `tokens`, or fewer where logits are held in float32 after all, so that they take no more.
    """

    tokens: int
    rows: int
    wide_tokens: int


def choose(
    tokens: int,
    vocab: int,
    width: int,
    *,
    itemsize: int = 4,
    chunk: int = 0,
    copies: int = 1,
    in_place: bool = False,
) -> Blocks:
    """Return the sizes of blocks.

    The logits of `tokens` hidden states against the whole table are held at a time, for the gradient of the
    table needs their softmax; they are made, exponentiated and multiplied in pieces of `rows` rows, which stay
    in the cache meanwhile. What each block costs beside its logits is a pass over the table and its gradient: many
    tokens share it, unless both stay in the cache. Then few tokens and large pieces are faster.

    Args:
        tokens: Hidden states in all, at least 1.
        vocab, width: Of the table.
        itemsize: Bytes of a logit as it is held.
        chunk: Tokens asked for; 0 leaves it to this.
        copies: Arrays of the size of the logits that exist at once.
        in_place: Whether a processor works on logits where they lie.

    Example:
        >>> choose(4096, 33_527, 128).tokens
        512
        >>> choose(100, 33_527, 128).tokens, choose(4096, 1_000_000, 8).tokens
        (100, 32)
        >>> choose(4096, 33_527, 128, copies=4).tokens
        136
    """
    share = outermost_cache() // SHARE
    near = in_place and 2 * vocab * width * itemsize <= share
    asked = bool(chunk)
    if not chunk:
        held = HELD_NEAR if near else max(HELD // copies, vocab * width * itemsize // 4)
        chunk = min(MOST // itemsize, max(LEAST_TOKENS, held // (itemsize * vocab) // 8 * 8))
        chunk = 8 * math.ceil(tokens / math.ceil(tokens / chunk) / 8)  # equal parts, of what registers hold
    chunk = min(chunk, tokens)
    rows = share // (max(itemsize, WIDE) * (chunk + width))
    rows = max(LEAST_ROWS, LINE * ((rows // LINE - 1) | 1))
    wide = chunk if asked or itemsize >= WIDE else max(min(LEAST_TOKENS, chunk), chunk * itemsize // WIDE)
    return Blocks(chunk, min(rows if near else min(rows, MOST_ROWS), vocab), wide)


@cache
def outermost_cache() -> int:
    """Bytes of the processor's largest cache, where the system says; 32 MiB where it does not."""
    found = [_bytes(file) for file in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")]
    return max(found, default=0) or UNKNOWN_CACHE


def _bytes(file: Path) -> int:
    """Of a size such as `32768K`; 0 where it cannot be read."""
    try:
        text = file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return 0
    number, unit = text.rstrip("KMG"), text[-1:]
    return int(number) << {"K": 10, "M": 20, "G": 30}.get(unit, 0) if number.isdigit() else 0
