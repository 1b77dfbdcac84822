"""The usual ways to scale one table for two roles, as data: each std and factor is a power of the width."""

from collections.abc import Iterable
from dataclasses import dataclass

from tiebeam.errors import RangeError


@dataclass(frozen=True, slots=True)
class PowerOfWidth:
    """`base * width**exponent`.

    Example:
        >>> PowerOfWidth(1.0, -0.5)(256)
        0.0625
    """

    base: float = 1.0
    exponent: float = 0.0

    def __call__(self, width: int) -> float:
        """Return its value at one width."""
        return float(self.base * width**self.exponent)


ONE, ROOT, INVERSE_ROOT = PowerOfWidth(), PowerOfWidth(exponent=0.5), PowerOfWidth(exponent=-0.5)


@dataclass(frozen=True, slots=True)
class Scheme:
    """How a model scales its table.

    Attributes:
        name: One letter, with a prime where the model is the same and its training differs.
        summary: Who does it.
        table_std: Std of the table (of the lookup's, where there are two).
        lookup_factor: Multiplies the looked-up rows.
        readout_factor: Multiplies the logits.
        tie: Whether one table serves both roles.
        readout_std: Std of the readout's own table; None where tied.
        table_rate: Multiplies the learning rate of the table, for Adam's family.
    """

    name: str
    summary: str
    table_std: PowerOfWidth
    lookup_factor: PowerOfWidth = ONE
    readout_factor: PowerOfWidth = ONE
    tie: bool = True
    readout_std: PowerOfWidth | None = None
    table_rate: PowerOfWidth = ONE


SCHEMES: dict[str, Scheme] = {
    scheme.name: scheme
    for scheme in (
        Scheme("A", "tied, std 1: nn.Embedding's default", ONE),
        Scheme("B", "tied, std 0.02: GPT-2", PowerOfWidth(0.02)),
        Scheme("C", "tied, std 1/sqrt(width), lookup * sqrt(width): Transformer, Gemma", INVERSE_ROOT, ROOT),
        Scheme("D", "tied, std 1, logits / sqrt(width): PaLM, T5", ONE, ONE, INVERSE_ROOT),
        Scheme("D'", "as D, the table's rate * sqrt(width)", ONE, ONE, INVERSE_ROOT, table_rate=ROOT),
        Scheme("E", "untied, lookup std 1, readout std 1/sqrt(width)", ONE, tie=False, readout_std=INVERSE_ROOT),
        Scheme("F", "tied, std 1/sqrt(width), no factor", INVERSE_ROOT),
    )
}


def scheme(name: str) -> Scheme:
    """Return the scheme called `name`.

    Raises:
        RangeError: There is none.

    Example:
        >>> scheme("C").lookup_factor(256)
        16.0
    """
    if name not in SCHEMES:
        raise RangeError(f"no scheme is called {name!r}", expected=f"one of {', '.join(SCHEMES)}")
    return SCHEMES[name]


def check_schemes(names: Iterable[str]) -> None:
    """Raise where one of `names` is no scheme's.

    Raises:
        RangeError: It is not.
    """
    for name in names:
        scheme(name)
