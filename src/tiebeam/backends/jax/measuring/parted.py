"""Values that exist once for each kind of use of a table: what they are, and how they go through transformations."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

from tiebeam.core.measuring.passes import Role

Kind = Role | Literal["other"]
KINDS: tuple[Kind, ...] = ("lookup", "readout", "other")


class Parted:
    """A value that is made of tables and numbers alone, once for each kind of use.

    Args:
        leaves: Keys of the tables.
        make: The value for a kind; asked once.
    """

    def __init__(self, leaves: frozenset[int], make: Callable[[Kind], Any]) -> None:
        self.leaves, self._make = leaves, make
        self._made: dict[Kind, Any] = {}

    def get(self, kind: Kind) -> Any:
        """The value for uses of a kind."""
        if kind not in self._made:
            self._made[kind] = self._make(kind)
        return self._made[kind]


def one_of(value: Any, kind: Kind) -> Any:
    """The value for a kind: of what is not parted, itself."""
    return value.get(kind) if isinstance(value, Parted) else value


def result_of(whole: Parted, number: int, kind: Kind) -> Any:
    """One of several results."""
    return whole.get(kind)[number]


def leaves_of(values: Iterable[Any]) -> frozenset[int]:
    """Keys of all tables that values are made of."""
    return frozenset(key for v in values if isinstance(v, Parted) for key in v.leaves)


class Flat:
    """Operands of a body as lists of arrays, and results likewise.

    Attributes:
        parts: Of each operand its arrays.
        several: Whether a result comes out once for each kind.
    """

    def __init__(self, operands: Sequence[Any], kinds: Sequence[Sequence[Kind]], results: Sequence[Any]) -> None:
        self._operands, self._kinds, self._results = operands, kinds, results
        self.parts = [
            [v.get(k) for k in ks] if isinstance(v, Parted) else [v] for v, ks in zip(operands, kinds, strict=True)
        ]
        self.several = [isinstance(v, Parted) for v in results]

    def again(self, given: Sequence[Sequence[Any]]) -> list[Any]:
        """Operands of these arrays."""
        return [
            Parted(v.leaves, dict(zip(ks, arrays, strict=True)).__getitem__) if isinstance(v, Parted) else arrays[0]
            for v, ks, arrays in zip(self._operands, self._kinds, given, strict=True)
        ]

    def handed_out(self, results: Sequence[Any]) -> list[list[Any]]:
        """Results as arrays; what comes out once is of no role."""
        return [
            [one_of(v, k) for k in (KINDS if several else ("other",))]
            for v, several in zip(results, self.several, strict=True)
        ]

    def taken_in(self, arrays: Sequence[Sequence[Any]]) -> list[Any]:
        """Results of these arrays."""
        return [
            Parted(like.leaves, dict(zip(KINDS, found, strict=True)).__getitem__) if several else found[0]
            for found, like, several in zip(arrays, self._results, self.several, strict=True)
        ]
