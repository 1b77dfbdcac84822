"""The verdict on a checkpoint: what is there, what is said, and what the two are to one another."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tiebeam.checkpoints.archive import Archive, Entry
from tiebeam.checkpoints.compare import Comparison, compare, std_of
from tiebeam.checkpoints.declared import declare
from tiebeam.checkpoints.families import Tying, tying_of
from tiebeam.checkpoints.near import near
from tiebeam.checkpoints.roles import Roles, aliases, companions, find_roles
from tiebeam.checkpoints.runtimes import falls_back
from tiebeam.core.checkpoint import CheckpointState, Stored
from tiebeam.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class Facts:
    """What the rules ask.

    Attributes:
        aliases: Readouts that the file's own metadata says are the table.
        comparison: Of the two ends, where both are there.
        others: Further tensors that could be the table, and what they are to it.
        backbone: The config's class, where its name is not that of one with a readout; "": it is, or nothing says.
        quantised: The ends that are.
    """

    archive: Archive
    tying: Tying
    roles: Roles
    state: CheckpointState
    table: Entry | None
    readout: Entry | None
    comparison: Comparison
    aliases: Mapping[str, str]
    others: tuple[tuple[str, str], ...] = ()
    vocab: int | None = None
    backbone: str = ""
    quantised: tuple[str, ...] = ()

    @property
    def ties(self) -> bool:
        """Whether the config, the family or the file itself asks for one table."""
        return self.tying.declared is True or self.tying.effective is True or bool(self.aliases)

    @property
    def one_storage(self) -> bool:
        """Whether both ends are the same bytes of the same file."""
        ends = [e.source.identity for e in (self.table, self.readout) if e is not None and e.source is not None]
        return len(ends) == 2 and ends[0] == ends[1]

    def stored(self) -> tuple[Stored, ...]:
        """Both ends, as data."""
        return tuple(_stored(e, self.state == "different") for e in (self.table, self.readout) if e is not None)


def judge(archive: Archive, table: str | None = None, readout: str | None = None) -> Facts:
    """Judge what was read.

    Args:
        archive: From `open_archive`.
        table: Name of the table, where it cannot be found.
        readout: Name of the readout, likewise.

    Raises:
        CheckpointError: A name that was given is not in the file, or values end before their header says.
    """
    tying = tying_in(archive)
    vocab = _vocab(archive)
    roles = roles_in(archive, tying, table, readout)
    lookup = archive.entries[roles.table] if roles.table else None
    head = archive.entries[roles.readout] if roles.readout else None
    names = aliases(archive.metadata, archive.entries, roles.table)
    comparison = Comparison("unknown")
    if lookup is not None and head is not None:
        comparison = _with_companions(compare(lookup, head), archive, lookup, head)
    ties = tying.declared is True or tying.effective is True or bool(names)
    return Facts(
        archive, tying, roles, _state(roles, comparison, ties), lookup, head, comparison, names,
        others=_others(archive, roles, lookup), vocab=vocab, backbone=_backbone(archive.config),
        quantised=tuple(e.name for e in (lookup, head) if e is not None and _is_quantised(e, archive)),
    )  # fmt: skip


def roles_in(archive: Archive, tying: Tying, table: str | None = None, readout: str | None = None) -> Roles:
    """Table and readout of a file, by names and shapes; names that are given count before all others."""
    roles = _named(find_roles(archive.entries, tying.family, _vocab(archive)), archive, table, readout)
    if roles.table is None and len(roles.readouts) == 1:
        alone = roles.readouts[0]
        if tying.effective is True or aliases(archive.metadata, archive.entries, alone):
            return Roles(tables=roles.readouts)  # a tied file keeps one name, and this one kept the readout's
    return roles


def _vocab(archive: Archive) -> int | None:
    return declare(archive.config).vocab if archive.config is not None else None


def tying_in(archive: Archive) -> Tying:
    """What config and file say of the tie."""
    if archive.format == "gguf":
        return _of_gguf(archive)
    said = tying_of(archive.config)
    if archive.declares is None:
        return said
    return Tying(archive.declares, archive.declares, said.family, "the file's header")


def _of_gguf(archive: Archive) -> Tying:
    """The format has no flag: a stored readout is read as such, and one that is absent is the runtime's to decide."""
    kind = str((archive.config or {}).get("gguf_architecture", ""))
    if "output.weight" in archive.entries:
        return Tying(None, False, why="a readout is stored, and is read as one")
    effective = falls_back(kind)
    does = {True: "reads 'token_embd.weight' in its place", False: "refuses the file", None: "may do either"}
    return Tying(None, effective, why=f"of '{kind}' without an 'output.weight', llama.cpp {does[effective]}")


def _named(found: Roles, archive: Archive, table: str | None, readout: str | None) -> Roles:
    if table is None and readout is None:
        return found
    for name in (table, readout):
        if name is not None and name not in archive.entries:
            raise CheckpointError(
                f"'{archive.path}' holds no {name!r}",
                got=", ".join(list(archive.entries)[:6]),
                expected="the name of a stored tensor",
                hint=near(name, list(archive.entries)) or "name it as the file does, in full",
            )
    tables = (table,) if table is not None else found.tables[:1] if found.table != readout else ()
    readouts = (readout,) if readout is not None else tuple(r for r in found.readouts if r != table)
    return Roles(tables, readouts)


def _state(roles: Roles, comparison: Comparison, ties: bool) -> CheckpointState:
    if roles.ambiguous:
        return "unknown"
    if roles.table is None:
        return "no-table"
    if roles.readout is None:
        return "omitted" if ties else "no-readout"
    return comparison.likeness


def _with_companions(found: Comparison, archive: Archive, a: Entry, b: Entry) -> Comparison:
    """Equal integers with different scales are different weights."""
    if found.likeness != "equal":
        return found
    scales = companions(a.name, archive.entries), companions(b.name, archive.entries)
    if len(scales[0]) != len(scales[1]):
        return Comparison("different", why="one end has scales beside it, the other has none")
    for p, q in zip(*scales, strict=True):
        if compare(archive.entries[p], archive.entries[q]).likeness not in ("equal", "unknown"):
            return Comparison("different", why=f"the scales '{p}' and '{q}' differ")
    return found


def _others(archive: Archive, roles: Roles, table: Entry | None) -> tuple[tuple[str, str], ...]:
    """Further names that could be the table: at most four are compared."""
    if table is None:
        return tuple((name, "") for name in roles.tables) if roles.ambiguous else ()
    more = [archive.entries[n] for n in roles.tables[1:5]]
    return tuple((e.name, compare(table, e).likeness) for e in more if e.shape is None or e.shape == table.shape)


def _backbone(config: Mapping[str, Any] | None) -> str:
    classes = config.get("architectures") if config is not None else None
    if not isinstance(classes, list) or not classes or not all(isinstance(c, str) for c in classes):
        return ""
    has_readout = any("LM" in c or "Generation" in c or "PreTraining" in c for c in classes)
    return "" if has_readout else str(classes[0])


def _is_quantised(entry: Entry, archive: Archive) -> bool:
    packed = entry.dtype is not None and entry.dtype.kind in ("packed", "integer")
    return packed or bool(companions(entry.name, archive.entries))


def _stored(entry: Entry, with_std: bool) -> Stored:
    dtype = entry.dtype.name if entry.dtype is not None else ""
    std = std_of(entry) if with_std else None
    return Stored(entry.name, entry.shape, dtype, entry.file, entry.nbytes, std)
