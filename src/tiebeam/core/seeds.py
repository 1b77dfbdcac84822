"""What a seed may be."""

import operator
from typing import Any

import numpy as np

from tiebeam.errors import RangeError


def checked_seed(seed: Any) -> int:
    """A seed as a Python int, of any library's whole numbers.

    Raises:
        RangeError: It is no whole number, below 0, or a truth value.

    Example:
        >>> checked_seed(np.int64(3))
        3
    """
    try:
        number = -1 if isinstance(seed, bool | np.bool_) else operator.index(seed)
    except TypeError:
        number = -1
    if number < 0:
        raise RangeError(
            "the seed is no natural number",
            got=repr(seed),
            expected="an int of 0 or above",
            hint="seed=0, or another: each gives one draw, the same everywhere",
        )
    return number
