"""What has to be done to a checkpoint so that file, flag and metadata say one thing."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from tiebeam.checkpoints.archive import Archive, Entry
from tiebeam.checkpoints.fixing.flags import Change, with_flag
from tiebeam.checkpoints.judging import Facts
from tiebeam.core.checkpoint_fix import FixPlan, OnConflict
from tiebeam.errors import CheckpointError

Values = Literal["embedding", "readout", "mean"]
_ALIKE = ("equal", "equal-after-cast", "transposed", "sliced")


@dataclass(frozen=True, slots=True)
class Work:
    """A plan, and what carrying it out needs."""

    plan: FixPlan
    facts: Facts
    config: dict[str, Any] | None


def plan(facts: Facts, out: Path, *, tie: bool | None, on_conflict: OnConflict, readout: str | None) -> Work:
    """Decide.

    Args:
        facts: From `judge`.
        out: The folder to be written.
        tie: Whether the copy is to be tied; None: what config and file ask for.
        on_conflict: Whose values count where a tie is asked for and two matrices differ.
        readout: Name for a readout that has to be made, where family and metadata name none.

    Raises:
        CheckpointError: Nothing sensible can be done, or `on_conflict` is "error" and there is one.
    """
    table = _check(facts)
    wanted, values = _wanted(facts, tie, on_conflict)
    dropped = facts.readout if wanted and facts.readout is not None else None
    added = "" if wanted or facts.readout is not None else _name_for(facts, readout)
    config, changes = _config(facts.archive, wanted)
    alias = (dropped.name if dropped is not None else _alias(facts) or readout or "") if wanted else ""
    made = FixPlan(
        path=str(facts.archive.path), out=str(out), tie=wanted, table=table.name, values=values,
        dropped=dropped.name if dropped is not None else "", added=added, alias=alias, config=changes,
        bytes_saved=_saved(facts, table, dropped, added, values),
    )  # fmt: skip
    return Work(replace(made, rewritten=_rewritten(made, facts)), facts, config)


def _check(facts: Facts) -> Entry:
    archive = facts.archive
    if archive.format != "safetensors" or not archive.has_values:
        raise CheckpointError(
            f"'{archive.path}' is not mended",
            got=f"{archive.format}{'' if archive.has_values else ', an index alone'}",
            expected="safetensors, with all their files", hint="convert it to safetensors first",
        )  # fmt: skip
    if archive.missing or archive.strays:
        raise CheckpointError(
            f"the index of '{archive.path}' and its files disagree",
            got=", ".join((archive.missing or archive.strays)[:4]),
            hint="complete the files first",
        )
    if facts.table is None or facts.state == "unknown":
        raise CheckpointError(
            f"what '{archive.path}' holds could not be judged",
            got=f"state {facts.state!r}" + (f": {facts.comparison.why}" if facts.comparison.why else ""),
            expected="a table, and a readout that can be compared with it",
            hint="name them: table=..., readout=... (--table, --readout)",
        )
    return facts.table


def _wanted(facts: Facts, tie: bool | None, on_conflict: OnConflict) -> tuple[bool, Values]:
    """Whether the copy is tied, and whose values the table takes."""
    asked = tie if tie is not None else facts.ties or facts.state == "no-readout"
    if not asked or facts.state in ("omitted", "no-readout"):
        return asked, "embedding"
    if facts.state in _ALIKE:
        return True, "readout" if _readout_has_more(facts) else "embedding"
    if on_conflict == "untie":
        return False, "embedding"
    if on_conflict == "error":
        gap = facts.comparison.gap
        raise CheckpointError(
            f"'{facts.roles.table}' and '{facts.roles.readout}' differ, and one table is asked for",
            got=f"relative distance {gap.distance:.3g}" if gap is not None else facts.comparison.why,
            hint="decide whose values count: on_conflict='embedding', 'readout', 'mean' or 'untie' (--on-conflict)",
        )
    return True, on_conflict


def _readout_has_more(facts: Facts) -> bool:
    """Of two ends that are alike, the one that was rounded or cut is the one to drop."""
    a, b = facts.table, facts.readout
    if a is None or b is None or facts.state not in ("equal-after-cast", "sliced"):
        return False
    wider = a.dtype is not None and b.dtype is not None and b.dtype.bits > a.dtype.bits
    longer = a.shape is not None and b.shape is not None and b.shape[-1] == a.shape[-1] and b.shape[0] > a.shape[0]
    return wider if facts.state == "equal-after-cast" else longer


def _name_for(facts: Facts, readout: str | None) -> str:
    name = readout or _alias(facts)
    if not name:
        raise CheckpointError(
            "the readout that is to be written has no name",
            got="a family that is not known, and no alias in the metadata",
            hint="name it: readout='lm_head.weight' (--readout)",
        )
    if name in facts.archive.entries:
        raise CheckpointError(f"'{name}' is in the file already", hint="name another")
    return name


def _alias(facts: Facts) -> str:
    """What the readout would be called: by the file's own metadata, else by the family, if the table is its own too."""
    table, family = facts.roles.table, facts.tying.family
    recorded = next((name for name, owner in facts.aliases.items() if owner == table), "")
    if recorded or family is None or not table or not table.endswith(family.table or "\0"):
        return recorded
    name = table.removesuffix(family.table) + family.readout
    return "" if name in facts.archive.entries else name


def _config(archive: Archive, tie: bool) -> tuple[dict[str, Any] | None, tuple[Change, ...]]:
    if archive.config is None:
        return None, ()
    return with_flag(archive.config, tie)


def _saved(facts: Facts, table: Entry, dropped: Entry | None, added: str, values: Values) -> int:
    if dropped is None:
        return -table.nbytes if added else 0
    return table.nbytes if values == "readout" else dropped.nbytes


def _rewritten(made: FixPlan, facts: Facts) -> tuple[str, ...]:
    """Files whose tensors or metadata change."""
    archive = facts.archive
    files = {archive.entries[name].file for name in (made.table, made.dropped) if name and _touched(made, name, facts)}
    return tuple(f for f in archive.files if f in files)


def _touched(made: FixPlan, name: str, facts: Facts) -> bool:
    if name == made.dropped:
        return True
    recorded = facts.archive.metadata.get(made.alias) == made.table if made.alias else not facts.aliases
    return made.values != "embedding" or bool(made.added) or not recorded
