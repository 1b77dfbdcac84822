"""Which stds a dtype can hold."""

from tiebeam.errors import RangeError

#: Largest number and smallest step above zero, by dtype name; of dtypes that are not here nothing is said.
RANGES = {
    "float64": (2.0**127, 2.0**-149),  # draws are float32 everywhere
    "float32": (2.0**127, 2.0**-149),
    "bfloat16": (2.0**127, 2.0**-133),
    "float16": (65504.0, 2.0**-24),
    "float8_e4m3fn": (448.0, 2.0**-9),
    "float8_e5m2": (57344.0, 2.0**-16),
}

LARGEST_DRAW = 8.0
"""In stds: one in 1e15 independent draws lies further out."""

STEPS = 8
"""Steps that a std must have: rounding to fewer adds more than 0.2 % to it (its variance is step**2 / 12)."""


def bounds(dtype: str) -> tuple[float, float] | None:
    """Smallest and largest std that entries of a dtype can have, or None where nothing is known of it.

    Example:
        >>> bounds("float16")
        (4.76837158203125e-07, 8188.0)
    """
    known = RANGES.get(dtype)
    return None if known is None else (STEPS * known[1], known[0] / LARGEST_DRAW)


def fits(std: float, dtype: str) -> bool:
    """Whether draws of this std neither overflow a dtype nor vanish in it."""
    limits = bounds(dtype)
    return limits is None or limits[0] <= std <= limits[1]


def check_fits(name: str, std: float, dtype: str) -> None:
    """Refuse a std before anything is written.

    Raises:
        RangeError: Draws of `std` would be infinite, or zero, in the table's dtype.
    """
    limits = bounds(dtype)
    if limits is not None and not limits[0] <= std <= limits[1]:
        raise RangeError(
            f"the std that table {name!r} wants does not fit its dtype",
            got=f"std {std:.3g} for a table of {dtype}",
            expected=f"{limits[0]:.3g} to {limits[1]:.3g}",
            hint="change the factor that the model multiplies by, or keep the table in a wider dtype",
        )
