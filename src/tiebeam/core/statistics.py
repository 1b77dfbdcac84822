"""What a backend tells core about weights: numbers, never tensors."""

from dataclasses import dataclass
from typing import Protocol

from tiebeam.ir import Leaf


@dataclass(frozen=True, slots=True)
class TableStatistics:
    """What one pass over a table's rows tells; every field None where its values cannot be read.

    Attributes:
        std: Root mean square of the entries; None too where one is not finite or there are none.
        finite: Whether every entry is finite.
        spread: Coefficient of variation of the non-zero row norms times `sqrt(2 * width)`; None too with
            fewer than two such rows.
        zero_rows: The first rows that are all zero, at most 8.
        constant: Whether all entries are the same number.
        zero_count: How many rows are all zero.
    """

    std: float | None = None
    finite: bool | None = None
    spread: float | None = None
    zero_rows: tuple[int, ...] = ()
    constant: bool | None = None
    zero_count: int = 0


@dataclass(frozen=True, slots=True)
class Distance:
    """How far two tables are apart over the rows that both have.

    Attributes:
        relative: Frobenius norm of the difference over the root mean square of the two norms: 0 for equal
            tables, sqrt(2) for independent ones of whatever stds, 2 for opposite ones; None where an entry is
            not finite or no row is common.
        equal: Whether one holds bit for bit the other's values, after a cast to its own dtype.
        rows: How many rows were compared.
    """

    relative: float | None
    equal: bool
    rows: int


class Weights(Protocol):
    """The model's weights as core may ask about them."""

    def statistics(self, leaf: Leaf, vocab_axis: int) -> TableStatistics:
        """Numbers of one table, by one pass over it."""
        ...

    def distance(self, a: Leaf, axis_a: int, b: Leaf, axis_b: int) -> Distance | None:
        """How far two tables are apart; None where there are no values."""
        ...
