"""What a readout loss is told, checked once: the same in every framework."""

import math
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Literal, cast

from tiebeam.errors import InputError, NotFiniteError, RangeError, ShapeError

NAME = "readout_loss"
Reduction = Literal["mean", "sum", "none"]
REDUCTIONS = ("mean", "sum", "none")
Shape = tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class Options:
    """Numbers of a readout loss; `of` checks them.

    Attributes:
        soft_cap: c of `c * tanh(z / c)` on the logits, or None.
        ignore_index: Targets of this value do not count.
        label_smoothing: Share of the target that is spread over the vocabulary.
        z_loss: Multiplies the square of the log of the softmax's denominator.
        reduction: "mean", "sum" or "none".
        chunk: Tokens whose logits are held at a time; 0 is "by the size of the caches".

    Raises:
        RangeError: A number lies outside what makes sense.
    """

    soft_cap: float | None = None
    ignore_index: int = -100
    label_smoothing: float = 0.0
    z_loss: float = 0.0
    reduction: Reduction = "mean"
    chunk: int = 0

    @classmethod
    def of(
        cls,
        *,
        soft_cap: object = None,
        ignore_index: object = -100,
        label_smoothing: object = 0.0,
        z_loss: object = 0.0,
        reduction: object = "mean",
        chunk: object = "auto",
    ) -> "Options":
        """Return checked options.

        Raises:
            RangeError: A number lies outside what makes sense.

        Example:
            >>> Options.of(label_smoothing=0.1).chunk
            0
        """
        if reduction not in REDUCTIONS:
            raise RangeError(
                f"reduction of {NAME}",
                got=repr(reduction),
                expected=" or ".join(map(repr, REDUCTIONS)),
                hint='leave it out for "mean"; "none" gives the loss of each token',
            )
        return cls(
            soft_cap=None if soft_cap is None else _number("soft_cap", soft_cap, least=0.0, open_end=True),
            ignore_index=_whole("ignore_index", ignore_index),
            label_smoothing=_number("label_smoothing", label_smoothing, least=0.0, most=1.0),
            z_loss=_number("z_loss", z_loss, least=0.0),
            reduction=cast(Reduction, reduction),
            chunk=_chunk(chunk),
        )


def checked_factor(factor: object) -> float:
    """Return a constant factor as a number.

    Raises:
        RangeError: It is none, or not finite.
    """
    return _number("factor", factor)


def check_shapes(hidden: Shape, table: Shape, targets: Shape, **more: Shape | None) -> None:
    """Raise where shapes do not fit; None is a size that a graph does not know yet, and fits any.

    Args:
        hidden: (..., width).
        table: (vocab, width).
        targets: (...).
        more: `bias` and `weight`, (vocab,), and `ids`, (...), where given.

    Raises:
        InputError: There is no token.
        ShapeError: They do not fit.

    Example:
        >>> check_shapes((2, 3, 8), (11, 8), (2, 3), bias=(11,))
    """
    if len(table) != 2 or 0 in table:
        hint = f"{NAME}(hidden, table, targets): the table is the second" if len(table) > 2 else ""
        raise ShapeError(f"the table of {NAME}", got=f"shape {table}", expected="(vocab, width)", hint=hint)
    if not hidden or not _fits(hidden[-1:], table[1:]):
        raise ShapeError(
            f"{NAME} reads hidden states out of a table of another width",
            got=f"hidden of shape {hidden}, table of shape {table}",
            expected=f"hidden of shape (..., {table[1]})",
            hint="pass the table as it is looked up, (vocab, width), and what the last normalisation returns",
        )
    wanted = {"targets": hidden[:-1], "ids": hidden[:-1], "bias": table[:1], "weight": table[:1]}
    for name, shape in {"targets": targets, **more}.items():
        if shape is not None and not _fits(shape, wanted[name]):
            raise ShapeError(
                f"{name} of {NAME}",
                got=f"shape {shape}",
                expected=f"{wanted[name]}, beside hidden of shape {hidden} and a table of shape {table}",
                hint=_instead(shape, hidden, table[0]) if name in ("targets", "ids") else "",
            )
    if 0 in targets:
        raise InputError(
            f"{NAME} was given an empty batch",
            got=f"hidden of shape {hidden}",
            expected="at least one token",
            hint="skip the batch: its mean is no number",
        )


def _instead(shape: Shape, hidden: Shape, vocab: int | None) -> str:
    """What to do about ids that do not lie beside the hidden states."""
    if len(shape) == len(hidden) and shape[-1] == vocab:
        return "pass the ids of the tokens, not one-hot rows or probabilities: targets.argmax(-1)"
    if len(shape) == len(hidden) - 1 and shape[:-1] == hidden[:-2]:
        return "shift both: the hidden states of ids[:, :-1] predict ids[:, 1:]"
    return "one for each hidden state, in their shape: flatten both, or neither"


def _fits(shape: Shape, wanted: Shape) -> bool:
    return len(shape) == len(wanted) and all(None in (a, b) or a == b for a, b in zip(shape, wanted, strict=True))


def outside(name: str, first: tuple[int, ...], value: int, count: int, vocab: int) -> InputError:
    """The error of a token id that is no row of the table."""
    others = f", and {count - 1} more" if count > 1 else ""
    where = first[0] if len(first) == 1 else first
    ignored = " or ignore_index" if name == "targets" else ""
    return InputError(
        f"{name} of {NAME} lie outside the table",
        got=f"{value} at index {where}{others}",
        expected=f"0 to {vocab - 1}{ignored}",
        hint="the tokenizer and the model must have one vocabulary; what is to be left out is set to ignore_index",
    )


def not_beside(name: str) -> str:
    """What a graph says of ids whose number is known only when it runs, and is another than the hidden states'."""
    return f"{name} of {NAME} are not beside the hidden states, of which there are others. Hint: shift both, or neither"


def not_integers(name: str, dtype: object) -> InputError:
    """The error of ids that are no integers."""
    return InputError(
        f"{name} of {NAME}",
        got=str(dtype),
        expected="token ids: integers",
        hint="make integers of ids where they enter; probabilities are not taken",
    )


def no_array(name: str, given: object) -> InputError:
    """The error of what is no array, as a layer in the place of its table."""
    return InputError(
        f"{name} of {NAME}",
        got=type(given).__name__,
        expected="an array",
        hint="pass the array that it holds: its weight, embedding or embeddings, or the leaf of a tree of params",
    )


def no_such_returns(returns: object) -> RangeError:
    """The error of a `returns` that is none."""
    expected, hint = "'loss' or 'stats'", "'stats' gives the loss and its statistics, as a pair"
    return RangeError(f"returns of {NAME}", got=repr(returns), expected=expected, hint=hint)


def not_floating(name: str, dtype: object) -> InputError:
    """The error of a tensor that should hold real numbers and does not."""
    hint = "token ids are looked up first; what is read out is the hidden state" if name == "hidden" else ""
    return InputError(f"{name} of {NAME}", got=str(dtype), expected="floating-point numbers", hint=hint)


def not_finite(name: str, first: tuple[int, ...]) -> NotFiniteError:
    """The error of NaN or infinity in what is read."""
    left_out = "a row that is to get no probability has a bias such as -1e9; else " if name == "bias" else ""
    return NotFiniteError(
        f"{name} of {NAME} holds NaN or infinity: so would every gradient",
        got=f"the first at index {first[0] if len(first) == 1 else first}",
        expected="finite numbers",
        hint=f"{left_out}look for the layer or the step that made it",
    )


def _number(
    name: str, value: object, *, least: float = -math.inf, most: float = math.inf, open_end: bool = False
) -> float:
    no_number = isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value)
    number = math.nan if no_number else float(value)  # type: ignore[arg-type]
    if not least <= number <= most or (open_end and number == least):
        expected = "a finite number"
        if least > -math.inf:
            expected = f"a number {'above' if open_end else 'from'} {least:g}"
            expected += f" to {most:g}" if most < math.inf else ""
        raise RangeError(
            f"{name} of {NAME}", got=repr(value), expected=expected, hint=f"leave {name} out for its default"
        )
    return number


def _whole(name: str, value: object, least: int | None = None) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral) or (least is not None and int(value) < least):
        expected = "a whole number" + ("" if least is None else f" of at least {least}")
        raise RangeError(
            f"{name} of {NAME}", got=repr(value), expected=expected, hint=f"leave {name} out for its default"
        )
    return int(value)


def _chunk(value: object) -> int:
    if isinstance(value, str):
        if value == "auto":
            return 0
        raise RangeError(
            f"chunk of {NAME}", got=repr(value), expected='"auto", or tokens at a time', hint='chunk="auto"'
        )
    return _whole("chunk", value, least=1)
