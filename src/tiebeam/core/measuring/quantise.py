"""Rounding a table to few bits and back: what a kernel would compute with, without the kernel.

Symmetric round to nearest: each row, or each group of a row's entries, has one scale, the largest absolute value over
`2**(bits - 1) - 1`. That is what weight-only kernels for embeddings do at their simplest; scales stay in float32 here.
"""

import numpy as np
import numpy.typing as npt

from tiebeam.errors import RangeError

Rows = npt.NDArray[np.float32]

CHUNK = 2**22
"""Entries rounded at a time."""


def quantised(rows: Rows, bits: int, group: int | None = None) -> Rows:
    """Round to `bits` bits and back.

    Args:
        rows: (vocab, width), float32.
        bits: 2 to 16.
        group: Entries of a row that share a scale; the last group of a row may be shorter. None: the whole row.

    Returns:
        (vocab, width), float32, of at most `2**bits - 1` values a group.

    Raises:
        RangeError: `bits` or `group` is out of range.

    Example:
        >>> quantised(np.array([[1.0, 0.26, -0.5]], np.float32), 3)
        array([[ 1.        ,  0.33333334, -0.6666667 ]], dtype=float32)
    """
    if not 2 <= bits <= 16:
        raise RangeError("bits of a quantised table", got=str(bits), expected="2 to 16")
    if group is not None and group < 1:
        raise RangeError("entries that share a scale", got=str(group), expected="at least 1, or None for the row")
    vocab, width = rows.shape
    size = width if group is None else min(group, width)
    out = np.empty_like(rows, dtype=np.float32)
    step = max(1, CHUNK // max(1, width))
    for start in range(0, vocab, step):
        part = rows[start : start + step]
        for left in range(0, width, size):
            out[start : start + step, left : left + size] = _rounded(part[:, left : left + size], bits)
    return out


def _rounded(part: Rows, bits: int) -> Rows:
    top = np.float32(2 ** (bits - 1) - 1)
    scale = np.abs(part).max(axis=1, keepdims=True) / top
    scale[scale == 0] = 1  # a row of zeros stays one
    found: Rows = np.rint(part / scale) * scale
    return found


def bits_each(bits: int, width: int, group: int | None = None, scale_bits: int = 16) -> float:
    """Bits that one entry takes, its share of the scale included.

    Example:
        >>> bits_each(4, 4096, 32), bits_each(8, 64)
        (4.5, 8.25)
    """
    return bits + scale_bits / min(width, group or width)
