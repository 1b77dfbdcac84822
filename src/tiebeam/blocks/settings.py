"""What a tied embedding is told, checked once, and the std that follows: the same in every framework."""

import math
from dataclasses import dataclass
from numbers import Integral, Real

from tiebeam.core.initialising.moments import target_std_readout
from tiebeam.errors import InputError, RangeError, ShapeError

OWNER = "TiedEmbedding"


@dataclass(frozen=True, slots=True)
class Settings:
    """Sizes and factors of a `TiedEmbedding`; `of` makes one from what a user leaves out.

    Attributes:
        vocab: Rows of the table.
        width: Of the stream: what a lookup returns and a readout takes.
        table_width: Columns of the table. Where it is not `width`, a projection stands in each role.
        lookup_factor: Multiplies the looked-up rows.
        readout_factor: Multiplies the product with the table, before the bias and the soft cap.
        soft_cap: c of `c * tanh(z / c)` on the logits, or None.
        padding_idx: The id whose lookup is zero, or None.

    Raises:
        RangeError: A number lies outside what makes sense.

    Example:
        >>> settings = Settings.of(vocab=100, width=64)
        >>> settings.lookup_factor, settings.std
        (8.0, 0.125)
    """

    vocab: int
    width: int
    table_width: int
    lookup_factor: float
    readout_factor: float = 1.0
    soft_cap: float | None = None
    padding_idx: int | None = None

    @classmethod
    def of(
        cls,
        vocab: int,
        width: int,
        *,
        table_width: int | None = None,
        lookup_factor: float | None = None,
        readout_factor: float = 1.0,
        soft_cap: float | None = None,
        padding_idx: int | None = None,
    ) -> "Settings":
        """Return checked settings: `table_width` is `width` and `lookup_factor` its root where they are None.

        Raises:
            RangeError: A number lies outside what makes sense.
        """
        vocab, width = _size("vocab", vocab), _size("width", width)
        table_width = width if table_width is None else _size("table_width", table_width)
        return cls(
            vocab=vocab,
            width=width,
            table_width=table_width,
            lookup_factor=math.sqrt(table_width) if lookup_factor is None else _factor("lookup_factor", lookup_factor),
            readout_factor=_factor("readout_factor", readout_factor),
            soft_cap=None if soft_cap is None else _cap(soft_cap),
            padding_idx=None if padding_idx is None else _row(padding_idx, vocab),
        )

    @property
    def factorised(self) -> bool:
        """Whether the table is narrower or wider than the stream."""
        return self.table_width != self.width

    @property
    def std(self) -> float:
        """The std that the table is drawn with, for unit-variance logits of a hidden state of root mean square 1.

        Source: `tiebeam.core.initialising.moments.target_std_readout`. A projection drawn with `1/sqrt(fan in)` keeps
        the hidden state's size, so it is the table's own width that counts.
        """
        return target_std_readout(self.readout_factor, 1.0, self.table_width)

    def check_hidden(self, shape: tuple[int | None, ...]) -> None:
        """Raise where a readout cannot take a hidden state of that shape; None is a size not known yet.

        Raises:
            ShapeError: It cannot.
        """
        if not shape or shape[-1] not in (self.width, None):
            raise ShapeError(
                f"the readout of {OWNER} takes the stream",
                got=f"shape {tuple(shape)}",
                expected=f"(..., {self.width})",
                hint="pass what the last normalisation returns",
            )

    def describe(self) -> str:
        """The settings as `repr` shows them, without what is at its default."""
        said = [f"vocab={self.vocab}", f"width={self.width}"]
        said += [f"table_width={self.table_width}"] if self.factorised else []
        said += [f"lookup_factor={self.lookup_factor:.6g}"]
        said += [f"readout_factor={self.readout_factor:.6g}"] if self.readout_factor != 1.0 else []
        said += [f"soft_cap={self.soft_cap:.6g}"] if self.soft_cap is not None else []
        said += [f"padding_idx={self.padding_idx}"] if self.padding_idx is not None else []
        return ", ".join(said)


def wrong_ids(dtype: object) -> InputError:
    """The error of a lookup that was given no integers."""
    return InputError(
        f"the lookup of {OWNER} takes token ids",
        got=f"{dtype}",
        expected="integers",
        hint="a hidden state is read out, not looked up; ids are made integers where they enter the model",
    )


def _size(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < 1:
        raise RangeError(f"{name} of {OWNER}", got=repr(value), expected="a whole number of at least 1")
    return int(value)


def _number(name: str, value: object, expected: str, hint: str = "") -> float:
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise RangeError(f"{name} of {OWNER}", got=repr(value), expected=expected, hint=hint)
    return float(value)


def _factor(name: str, value: object) -> float:
    expected, hint = "a finite number other than 0", "a factor multiplies; the inverse of what a model divides by"
    number = _number(name, value, expected, hint)
    if number == 0:
        raise RangeError(f"{name} of {OWNER}", got=repr(value), expected=expected, hint=hint)
    return number


def _cap(value: object) -> float:
    number = _number("soft_cap", value, "a positive number, or None")
    if number <= 0:
        raise RangeError(f"soft_cap of {OWNER}", got=repr(value), expected="a positive number, or None")
    return number


def _row(value: object, vocab: int) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral) or not 0 <= int(value) < vocab:
        raise RangeError(
            f"padding_idx of {OWNER} is no row of the table",
            got=repr(value),
            expected=f"0 to {vocab - 1}, or None",
            hint="a negative index is not counted from the end",
        )
    return int(value)
