"""Whether an operation came out as planned: the same reads with the same factors, of the tables that it should be."""

import math
from collections.abc import Sequence

from tiebeam.core.facts import Lookup, Readout, Table
from tiebeam.errors import TieError

CLOSE = 1e-5
"""Relative: factors are constants of the program, but a low precision may round them at another place."""


def check_same_reads(operation: str, before: Sequence[Table], after: Sequence[Table]) -> None:
    """Raise where a table is read elsewhere, or through another factor, than before.

    Raises:
        TieError: So it is.
    """
    old, new = _reads(before), _reads(after)
    if old.keys() != new.keys():
        raise TieError(
            f"{operation} changed where tables are read, and was undone",
            got=_said(new.keys()),
            expected=_said(old.keys()),
        )
    for key, use in old.items():
        other = new[key]
        if not _same(use, other):
            raise TieError(
                f"{operation} changed a factor of the {key[0]} in {key[1] or 'the model'}, and was undone",
                got=f"{other.factor}, soft cap {getattr(other, 'soft_cap', None)}",
                expected=f"{use.factor}, soft cap {getattr(use, 'soft_cap', None)}, as before",
                hint="the model's code reads the config that says whether it is tied, and multiplies by it: write the "
                "factor into the model first",
            )


def check_one(operation: str, tables: Sequence[Table], names: Sequence[str]) -> None:
    """Raise unless one table bears all the names and is tied in one parameter."""
    found = [t for t in tables if set(t.names) & set(names)]
    if len(found) != 1 or found[0].state != "tied":
        raise _not_as_planned(operation, found, "one table in the state 'tied'")


def check_two(operation: str, tables: Sequence[Table], lookup: Sequence[str], readout: Sequence[str]) -> None:
    """Raise unless lookup and readout are two tables."""
    ins = [t for t in tables if set(t.names) & set(lookup)]
    outs = [t for t in tables if set(t.names) & set(readout)]
    apart = len(ins) == 1 and len(outs) == 1 and not ins[0].readouts and not outs[0].lookups
    if not apart:
        raise _not_as_planned(operation, [*ins, *outs], "two tables, one only looked up and one only read out")


def check_sizes(operation: str, tables: Sequence[Table], names: Sequence[str], vocab: int) -> None:
    """Raise unless every named table has so many rows."""
    found = [t for t in tables if set(t.names) & set(names)]
    if not found or any(t.vocab != vocab for t in found):
        raise _not_as_planned(operation, found, f"{vocab} rows each")


def _not_as_planned(operation: str, found: Sequence[Table], expected: str) -> TieError:
    seen = "; ".join(f"{', '.join(t.names)}: {t.state}, {t.vocab} x {t.width}" for t in found)
    return TieError(
        f"{operation} did not come out as planned, and was undone",
        got=seen or "no such table",
        expected=expected,
        hint="the model's code reads the parameter from elsewhere too; change it there, or name lookup= and readout=",
    )


def _reads(tables: Sequence[Table]) -> dict[tuple[str, str, int], Lookup | Readout]:
    """By role, place and number at that place, in order."""
    found: dict[tuple[str, str, int], Lookup | Readout] = {}
    for role, uses in (
        ("lookup", [u for t in tables for u in t.lookups]),
        ("readout", [u for t in tables for u in t.readouts]),
    ):
        places: dict[str, int] = {}
        for use in uses:
            places[use.where] = n = places.get(use.where, -1) + 1
            found[role, use.where, n] = use
    return found


def _same(a: Lookup | Readout, b: Lookup | Readout) -> bool:
    caps = getattr(a, "soft_cap", None), getattr(b, "soft_cap", None)
    return all(
        (x is None) == (y is None) and (x is None or y is None or math.isclose(x, y, rel_tol=CLOSE))
        for x, y in ((a.factor, b.factor), caps)
    )


def _said(keys: object) -> str:
    return ", ".join(sorted({f"{role} in {where or 'the model'}" for role, where, _ in keys}))  # type: ignore[attr-defined]
