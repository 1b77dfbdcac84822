"""How many tokens and rows of the table are worked on at a time: by the caches and the table."""

import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path

HELD = 72 << 20  # bytes of logits held at a time; a quarter of the table where that is more
MOST_TOKENS = 512  # beyond, products get no faster
LEAST_TOKENS = 32
LINE = 64  # rows come in an odd number of these: logits a power of two apart evict each other, a fifth of a product
MOST_ROWS, LEAST_ROWS = 33 * LINE, 5 * LINE
SHARE = 12  # of the outermost cache that a block takes: others use it too
UNKNOWN_CACHE = 32 << 20


@dataclass(frozen=True, slots=True)
class Blocks:
    """Sizes of a block.

    Attributes:
        tokens: Hidden states in a block.
        rows: Rows of the table in a block.
    """

    tokens: int
    rows: int


def choose(tokens: int, vocab: int, width: int, *, itemsize: int = 4, chunk: int = 0, copies: int = 1) -> Blocks:
    """Return the sizes of blocks.

    The logits of `tokens` hidden states against the whole table are held at a time, for the gradient of the
    table needs their softmax; they are made, exponentiated and multiplied in pieces of `rows` rows, which stay
    in the cache meanwhile.

    Args:
        tokens: Hidden states in all, at least 1.
        vocab, width: Of the table.
        itemsize: Bytes of a logit.
        chunk: Tokens asked for; 0 leaves it to this.
        copies: Arrays of the size of the logits that exist at once: 1 where they are worked on in place.

    Example:
        >>> choose(4096, 33_527, 128).tokens
        512
        >>> choose(100, 33_527, 128).tokens, choose(4096, 1_000_000, 8).tokens
        (100, 32)
        >>> choose(4096, 33_527, 128, copies=4).tokens
        136
    """
    if not chunk:
        held = max(HELD // copies, vocab * width * itemsize // 4)
        chunk = min(MOST_TOKENS, max(LEAST_TOKENS, held // (itemsize * vocab) // 8 * 8))
        chunk = 8 * math.ceil(tokens / math.ceil(tokens / chunk) / 8)  # equal parts, of what registers hold
    chunk = min(chunk, tokens)
    rows = outermost_cache() // SHARE // (itemsize * (chunk + width))
    rows = min(MOST_ROWS, max(LEAST_ROWS, LINE * ((rows // LINE - 1) | 1)))
    return Blocks(chunk, min(rows, vocab))


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
