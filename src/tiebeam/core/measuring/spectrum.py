"""Singular values of a table, from its Gram matrix: the table itself is never decomposed."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Spectrum:
    """How a table uses its width.

    Attributes:
        values: Singular values, largest first.
        effective_rank: `exp` of the entropy of their shares (Roy and Vetterli, 2007): width for an even spectrum.
        top_share: Share of the squared Frobenius norm in the largest one: near 1, all rows point one way.
    """

    values: tuple[float, ...]
    effective_rank: float
    top_share: float


def spectrum(gram: npt.NDArray[np.float64]) -> Spectrum | None:
    """Return the singular values of the table whose `table.T @ table` this is.

    Args:
        gram: (width, width), symmetric, float64. Values below `1e-8` of the largest are rounding.

    Returns:
        None where an entry is not finite or all are zero.

    Source: Roy and Vetterli, The Effective Rank, 2007.

    Example:
        >>> found = spectrum(np.diag([4.0, 4.0, 0.0]))
        >>> found.values, round(found.effective_rank, 6), found.top_share
        ((2.0, 2.0, 0.0), 2.0, 0.5)
    """
    if not np.isfinite(gram).all() or not gram.any():
        return None
    squares = np.clip(np.linalg.eigvalsh(gram)[::-1], 0.0, None)
    values = np.sqrt(squares)
    shares = values[values > 0] / values.sum()
    entropy = float(-(shares * np.log(shares)).sum())
    return Spectrum(tuple(map(float, values)), float(np.exp(entropy)), float(squares[0] / squares.sum()))
