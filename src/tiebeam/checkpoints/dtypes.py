"""Dtypes of stored tensors: how wide they are, how NumPy carries their bits, and what numbers the bits mean.

NumPy has no bfloat16 and no float8: their bits are carried as unsigned integers and decoded here. Quantised blocks
are carried as bytes; nothing decodes them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class DType:
    """One dtype.

    Attributes:
        name: NumPy's or PyTorch's name; that of the format where neither has one ("q4_k").
        bits: Of one element; of a whole block where `block` is not 1. Unit: bits.
        carrier: NumPy dtype that holds the bits.
        kind: "float" where `decode` knows the numbers, "integer", "complex" or "packed".
        block: Elements that are stored together.
    """

    name: str
    bits: int
    carrier: str
    kind: str
    block: int = 1

    def nbytes(self, elements: int) -> int | None:
        """Bytes of so many elements; None where they do not fill whole blocks or bytes.

        Example:
            >>> FLOAT32.nbytes(3), DType("f4", 4, "u1", "packed").nbytes(3)
            (12, None)
        """
        if elements % self.block:
            return None
        bits = elements // self.block * self.bits
        return None if bits % 8 else bits // 8


def _floats(*rows: tuple[str, int, str]) -> dict[str, DType]:
    return {name: DType(name, bits, carrier, "float") for name, bits, carrier in rows}


DTYPES: dict[str, DType] = {
    **_floats(
        ("float64", 64, "<f8"), ("float32", 32, "<f4"), ("float16", 16, "<f2"), ("bfloat16", 16, "<u2"),
        ("float8_e4m3fn", 8, "u1"), ("float8_e5m2", 8, "u1"),
        ("float8_e4m3fnuz", 8, "u1"), ("float8_e5m2fnuz", 8, "u1"),
    ),
    **{
        name: DType(name, bits, carrier, "integer")
        for name, bits, carrier in (
            ("int64", 64, "<i8"), ("int32", 32, "<i4"), ("int16", 16, "<i2"), ("int8", 8, "i1"),
            ("uint64", 64, "<u8"), ("uint32", 32, "<u4"), ("uint16", 16, "<u2"), ("uint8", 8, "u1"), ("bool", 8, "u1"),
        )
    },
    "complex64": DType("complex64", 64, "<c8", "complex"),
    "complex128": DType("complex128", 128, "<c16", "complex"),
    "float8_e8m0fnu": DType("float8_e8m0fnu", 8, "u1", "packed"),
    "float6_e2m3": DType("float6_e2m3", 6, "u1", "packed"),
    "float6_e3m2": DType("float6_e3m2", 6, "u1", "packed"),
    "float4": DType("float4", 4, "u1", "packed"),
}  # fmt: skip
FLOAT32 = DTYPES["float32"]


def decode(raw: Array, dtype: DType) -> Array:
    """The numbers that stored bits mean.

    Args:
        raw: Bits in the carrier of `dtype`, any shape.
        dtype: Of kind "float".

    Returns:
        float64 for float64, else float32; exact.

    Example:
        >>> decode(np.array([0x3F80], "<u2"), DTYPES["bfloat16"]).tolist()
        [1.0]
    """
    if dtype.name == "bfloat16":
        return (raw.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if dtype.name in _EIGHT:
        return _meaning(dtype.name)[raw]
    return raw if dtype.name in ("float64", "float32") else raw.astype(np.float32)


def encode(values: Array, dtype: DType) -> Array | None:
    """Numbers rounded to nearest even, as the bits that `dtype` would store; None where no rounding is known here.

    Example:
        >>> [hex(bits) for bits in encode(np.float32([1.0, -2.5]), DTYPES["bfloat16"])]
        ['0x3f80', '0xc020']
    """
    if dtype.name == "bfloat16":
        bits = values.astype(np.float32).view(np.uint32)
        rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
        return np.where(np.isnan(values), np.uint32(0x7FC0), rounded).astype("<u2")
    if dtype.name in _EIGHT:
        return _rounded_to_eight(values, dtype.name)
    if dtype.name in ("float64", "float32", "float16"):
        with np.errstate(over="ignore", invalid="ignore"):
            return values.astype(dtype.carrier)
    return None


def _finite_only(mantissa: int, bias: int) -> Callable[[int], float]:
    def value(code: int) -> float:
        sign, rest = -1.0 if code & 0x80 else 1.0, code & 0x7F
        if code & 0x7F == 0x7F:
            return float("nan")
        return sign * _scaled(rest, mantissa, bias)

    return value


def _ieee(mantissa: int, bias: int) -> Callable[[int], float]:
    def value(code: int) -> float:
        sign, rest = -1.0 if code & 0x80 else 1.0, code & 0x7F
        if rest >> mantissa == (1 << (7 - mantissa)) - 1:
            return sign * float("inf") if rest & ((1 << mantissa) - 1) == 0 else float("nan")
        return sign * _scaled(rest, mantissa, bias)

    return value


def _one_nan(mantissa: int, bias: int) -> Callable[[int], float]:
    def value(code: int) -> float:
        if code == 0x80:
            return float("nan")
        return (-1.0 if code & 0x80 else 1.0) * _scaled(code & 0x7F, mantissa, bias)

    return value


def _scaled(rest: int, mantissa: int, bias: int) -> float:
    exponent, fraction = rest >> mantissa, rest & ((1 << mantissa) - 1)
    if not exponent:
        return float(fraction) * 2.0 ** (1 - bias - mantissa)
    return (1 + fraction / (1 << mantissa)) * 2.0 ** (exponent - bias)


# Source: "FP8 Formats for Deep Learning", arXiv 2209.05433; the "fnuz" pair as ml_dtypes and PyTorch define it.
_EIGHT: dict[str, Callable[[int], float]] = {
    "float8_e4m3fn": _finite_only(3, 7),
    "float8_e5m2": _ieee(2, 15),
    "float8_e4m3fnuz": _one_nan(3, 8),
    "float8_e5m2fnuz": _one_nan(2, 16),
}


@cache
def _meaning(name: str) -> Array:
    return np.array([_EIGHT[name](code) for code in range(256)], np.float32)


def _rounded_to_eight(values: Array, name: str) -> Array:
    """The nearest of the 128 magnitudes, ties to the even code; beyond the largest, what is not a finite number."""
    steps = _meaning(name)[:128].astype(np.float64)
    last = int(np.flatnonzero(np.isfinite(steps))[-1])
    size = np.abs(values.astype(np.float64))
    middles = (steps[:last] + steps[1 : last + 1]) / 2
    code = np.searchsorted(middles, size, side="left")
    tie = (code < last) & (size == middles[np.minimum(code, last - 1)])
    code = np.where(tie & (code % 2 == 1), code + 1, code)
    beyond = size > steps[last] + (steps[last] - steps[last - 1]) / 2
    unsigned = name.endswith("fnuz")  # one NaN, and no negative zero
    code = np.where(beyond, 128 if unsigned else last + (name != "float8_e4m3fn"), code)  # PyTorch saturates that one
    code = np.where(np.isnan(size), 128 if unsigned else 127, code)
    negative = np.signbit(values) & ~((code == 0) & unsigned) & (code < 128)
    return np.where(negative, code | 0x80, code).astype(np.uint8)
