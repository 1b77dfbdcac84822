"""How many parameters files of weights hold, by their headers: no value is read."""

from dataclasses import dataclass

from tiebeam.checkpoints.archive import Archive, Entry
from tiebeam.checkpoints.families import Tying
from tiebeam.checkpoints.judging import roles_in, tying_in
from tiebeam.checkpoints.llama2c import NO_PARAMETERS
from tiebeam.core.advising.advice import BITS, Counted, Now
from tiebeam.errors import TargetError

_PACKED = ("uint8", "int8", "int32")


@dataclass(frozen=True, slots=True)
class Ends:
    """The two tables as a file holds them.

    Attributes:
        lookup, readout: None where the file holds none; of an index alone the shapes are not known.
        tying: What file and config say.
        total_size: Bytes of all tensors as an index declares them, or None.
    """

    lookup: Entry | None
    readout: Entry | None
    tying: Tying
    total_size: int | None

    @property
    def names(self) -> list[str]:
        return [e.name for e in (self.lookup, self.readout) if e is not None]

    @property
    def both(self) -> bool:
        return len(self.names) == 2

    @property
    def now(self) -> Now:
        """What a model that loads the file does, as far as headers tell."""
        a, b = self.lookup, self.readout
        if a is not None and b is not None:
            one = a.source is not None and b.source is not None and a.source.identity == b.source.identity
            return "tied" if one and a.shape == b.shape else "untied"
        said: dict[bool | None, Now] = {True: "tied", False: "unknown" if a is None else "no-readout", None: "unknown"}
        return said[self.tying.effective]


def ends_of(archive: Archive) -> Ends:
    """Which tensors are the tables, by names and shapes."""
    tying = tying_in(archive)
    roles = roles_in(archive, tying)
    named = [archive.entries[n] if n else None for n in (roles.table, roles.readout)]
    return Ends(named[0], named[1], tying, archive.totals.get("total_size") or None)


def count_archive(archive: Archive, what: str) -> Counted:
    """Count the files of one model.

    Args:
        archive: Its headers, from `open_archive`.
        what: For messages.

    Raises:
        TargetError: They hold no table.
    """
    ends = ends_of(archive)
    held = [e.shape for e in (ends.lookup, ends.readout) if e is not None and e.shape is not None and len(e.shape) == 2]
    if not held or len(held) < len(ends.names):
        raise TargetError(
            f"'{what}' holds no table that could be tied",
            got=", ".join(list(archive.entries)[:8]) or "no tensors",
            expected="a matrix by a name such as embed_tokens.weight or lm_head.weight",
            hint="pass config=, or the sizes alone: vocab=, width=, body=",
        )
    lookup = held[0]
    rows, columns = lookup if ends.lookup is not None else (max(lookup), min(lookup))
    readout = held[-1]
    fits = sorted(readout) == sorted(lookup)
    if not fits:  # of two sizes it is the readout's that counts
        turned = readout[1] == rows or readout[0] == columns
        rows, columns = readout[::-1] if turned and rows != readout[0] and columns != readout[1] else readout
    total, _ = archive.held()
    if archive.format == "llama2.c":
        total -= sum(archive.entries[name].elements for name in NO_PARAMETERS if name in archive.entries)
    one = ends.now == "tied" and ends.both
    tables = rows * columns if one or len(held) == 1 else sum(a * b for a, b in held)
    return Counted(
        vocab=rows,
        width=columns,
        body=total - tables,
        now=ends.now,
        how="file",
        other=0 if fits else lookup[0] * lookup[1],
        notes=tuple(_notes(archive, ends, total)),
    )


def _notes(archive: Archive, ends: Ends, total: int) -> list[str]:
    notes = []
    if ends.now == "unknown":
        notes.append(f"the file holds {ends.names[0]!r} alone: tied, or it has no readout; its config says which")
    packed = sum(e.elements for e in archive.entries.values() if e.dtype is not None and e.dtype.name in _PACKED)
    if packed > total // 2:
        notes.append("the file is quantised: stored numbers were counted, of which one may hold several parameters")
    return notes


def count_index(ends: Ends, vocab: int | None, width: int | None, dtype: str | None, what: str) -> Counted:
    """Count by an index alone: it has one size for all, so shapes of the table and the dtype must be given.

    Raises:
        TargetError: They were not, or do not fit.
    """
    missing = [n for n, v in (("vocab", vocab), ("width", width), ("dtype", dtype)) if v is None]
    if ends.total_size is None or vocab is None or width is None or dtype is None:
        raise TargetError(
            f"'{what}' alone does not say how large the tables are",
            got=f"{' and '.join(ends.names) or 'no table'}, {ends.total_size or 'no'} bytes in all, no shapes",
            expected="config=, the files beside it, or " + " and ".join(missing or ["a total_size"]),
            hint="a config.json beside the index is found by itself",
        )
    total, table = ends.total_size * 8 // BITS.get(dtype, 32), vocab * width
    body = total - table * (2 if ends.both else 1)
    if body < 0:
        raise TargetError(
            f"'{what}' is too small for its tables", got=f"{total:,} parameters", expected=f"{table:,} each"
        )
    now: Now = "untied" if ends.both else "unknown"
    return Counted(vocab, width, body, now, "file", notes=(f"parameters are its bytes as {dtype}",))
