"""Which table an operation means: the one at each end of the model, by what was seen to read it."""

from collections.abc import Sequence

from tiebeam.core.facts import Lookup, Readout, Table
from tiebeam.errors import InputError, TieError


def both_ends(tables: Sequence[Table], lookup: str | None = None, readout: str | None = None) -> tuple[Table, Table]:
    """The table that is looked up and the one that is read out; the same twice where they are one.

    Args:
        tables: What a look gave.
        lookup, readout: A name of either, where several could be meant.

    Raises:
        InputError: There is none, or there are several.

    Example:
        >>> from tiebeam.core.facts import Lookup, Readout
        >>> tied = Table(("e",), 9, 4, "float32", "tied", (Lookup("e", "e", "gather", 1.0),), (Readout("e", "h", 1.0),))
        >>> both_ends([tied])[1].name
        'e'
    """
    outs = _named([t for t in tables if t.readouts], readout, "readout", tables)
    ins = _named([t for t in tables if t.lookups], lookup, "lookup", tables)
    said = lookup is not None and readout is not None
    pairs = [(i, o) for i in ins for o in outs if said or _belong(i, o)]
    whole = [(i, o) for i, o in pairs if i is o]
    pairs = whole or pairs
    if len(pairs) > 1:
        partners = [(i, o) for i, o in pairs if o.partner in i.names or i.partner in o.names]
        pairs = partners if len(partners) == 1 else pairs
    if len(pairs) == 1:
        return pairs[0]
    seen = "; ".join(f"{t.name} {t.vocab} x {t.width}, {_roles(t)}" for t in tables) or "no vocabulary table"
    if pairs:
        raise InputError(
            "several tables could be meant",
            got=seen,
            expected="one lookup and one readout",
            hint=f"say which: lookup={pairs[0][0].name!r}, readout={pairs[0][1].name!r}",
        )
    raise InputError(
        "no lookup and readout that belong together were seen in this pass",
        got=seen,
        expected="a table read by token id and one that yields logits, of one width",
        hint="pass inputs with which the model returns its logits, or name both: lookup=..., readout=...",
    )


def _named(tables: list[Table], name: str | None, role: str, every: Sequence[Table]) -> list[Table]:
    if name is None:
        return tables
    found = [t for t in tables if name in t.names]
    if not found:
        raise InputError(
            f"no {role} named {name!r} was seen",
            got=", ".join(n for t in every for n in t.names) or "no table",
            expected=f"one of {', '.join(n for t in tables for n in t.names) or 'none'}",
        )
    return found


def _belong(i: Table, o: Table) -> bool:
    return i is o or (i.width == o.width and (i.vocab == o.vocab or o.partner in i.names or i.partner in o.names))


def _roles(t: Table) -> str:
    return " and ".join(role for role, uses in (("looked up", t.lookups), ("read out", t.readouts)) if uses)


def check_bare(*tables: Table) -> None:
    """Raise where a role reads something else than the table itself.

    Raises:
        TieError: A mask, a reparametrisation or an adapter stands between a table and its reader.
    """
    for t in tables:
        uses: list[Lookup | Readout] = [*t.lookups, *t.readouts]
        for use in uses:
            if use.reparametrized:
                raise TieError(
                    f"{t.name!r} is not read as it is in {use.where or 'the forward of the model'}",
                    got=use.reparametrized,
                    expected="the parameter itself",
                    hint="make it permanent first: torch.nn.utils.parametrize.remove_parametrizations, prune.remove, "
                    "or merge the adapter; a lookup that writes into its rows (max_norm) has to stop that meanwhile",
                )
        for out in t.readouts:
            if out.delta:
                raise TieError(
                    f"an adapter is added to the logits of {t.name!r} alone",
                    got=", ".join(out.delta),
                    expected="a readout without an adapter",
                    hint="unload the adapter first (of two tables, merging does too); to keep it at one end of a tied "
                    "table: unload, untie, load it again",
                )
