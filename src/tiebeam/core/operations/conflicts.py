"""Whose values count where two parameters that become one differ."""

from collections.abc import Sequence
from typing import Literal, get_args

from tiebeam.errors import RangeError, TieError

OnConflict = Literal["error", "embedding", "readout", "mean"]
"""Refuse; the lookup's values; the readout's; the mean of both."""


def check_policy(on_conflict: str, allowed: Sequence[str] = get_args(OnConflict)) -> None:
    """Raise unless it is a policy.

    Raises:
        RangeError: It is none.
    """
    if on_conflict not in allowed:
        raise RangeError(
            "there is no such policy",
            got=f"on_conflict={on_conflict!r}",
            expected=", ".join(map(repr, allowed)),
            hint="take one of these, or leave it out: what differs is refused then",
        )


def conflict(on_conflict: OnConflict, names: Sequence[str], apart: float) -> Literal["embedding", "readout", "mean"]:
    """What to do about values that differ.

    Args:
        names: Of the parameters, the lookup's first.
        apart: Largest difference of two entries.

    Raises:
        TieError: The policy is to refuse.

    Example:
        >>> conflict("mean", ["embed.weight", "head.weight"], 0.5)
        'mean'
    """
    if on_conflict == "error":
        raise TieError(
            f"{' and '.join(map(repr, names))} hold different values",
            got=f"entries up to {apart:.3g} apart",
            expected="equal tables, or a word on whose values count",
            hint="on_conflict='embedding' keeps those of the lookup, 'readout' those of the readout, 'mean' neither",
        )
    return on_conflict
