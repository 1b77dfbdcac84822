"""How a number is written, the same in every report: four significant digits, never "-0"."""

import math
from collections.abc import Iterable
from decimal import Decimal

_DIGITS = 4
_LARGE = Decimal("1e6")
_SMALL = Decimal("1e-4")


def number(value: float) -> str:
    """Write a measured or predicted number.

    Args:
        value: Any float. Unit: the caller's.

    Returns:
        Four significant digits, trailing zeros dropped, thousands separated; powers of ten from a million up
        and below a ten-thousandth; "nan", "inf" and "-inf" by name.

    Example:
        >>> number(0.0360844), number(27.7128), number(9999.7), number(-0.0), number(1.5e-8), number(2e6)
        ('0.03608', '27.71', '10,000', '0', '1.5e-8', '2e6')
    """
    value = float(value)
    if not math.isfinite(value):
        return str(value)
    if value == 0:
        return "0"
    rounded = Decimal(f"{value:.{_DIGITS - 1}e}")
    if _SMALL <= abs(rounded) < _LARGE:
        return _trimmed(f"{rounded:,f}")
    mantissa, exponent = f"{value:.{_DIGITS - 1}e}".split("e")
    return f"{_trimmed(mantissa)}e{int(exponent)}"


def known(value: float | None) -> str:
    """Write a number that may be unknown.

    Example:
        >>> known(None), known(0.5)
        ('unknown', '0.5')
    """
    return "unknown" if value is None else number(value)


def ids(values: Iterable[int]) -> str:
    """Write ids, which are no numbers of things.

    Example:
        >>> ids((0, 1234))
        'id 0, id 1234'
    """
    return ", ".join(f"id {value}" for value in values)


def count(value: int) -> str:
    """Write a whole number of things with thousands separated.

    Example:
        >>> count(124439808)
        '124,439,808'
    """
    return f"{int(value):,}"


def size(value: int) -> str:
    """Write a number of bytes in binary units.

    Example:
        >>> size(153_600_000), size(512), size(3 * 2**40)
        ('146.5 MiB', '512 B', '3 TiB')
    """
    scaled, unit = float(value), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        if scaled < 1024:
            break
        scaled, unit = scaled / 1024, larger
    return f"{number(scaled)} {unit}"


def percent(share: float | None) -> str:
    """Write a share.

    Example:
        >>> percent(0.2367), percent(None)
        ('23.7 %', 'unknown')
    """
    return "unknown" if share is None else f"{100 * share:.1f} %"


def interval(bounds: tuple[float, float]) -> str:
    """Write the two bounds of a number.

    Example:
        >>> interval((0.0, 27.7128))
        '0 to 27.71'
    """
    return f"{number(bounds[0])} to {number(bounds[1])}"


def _trimmed(digits: str) -> str:
    return digits.rstrip("0").rstrip(".") if "." in digits else digits
