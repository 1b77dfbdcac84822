"""What has to be done to a checkpoint so that file, flag and metadata say one thing."""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from tiebeam.checkpoints.archive import Archive, Entry
from tiebeam.checkpoints.fixing.flags import Change, with_flag
from tiebeam.checkpoints.fixing.values import Tensor, as_it_is, mean, other_end
from tiebeam.checkpoints.judging import Facts
from tiebeam.checkpoints.opening import INDEX_SUFFIX
from tiebeam.checkpoints.roles import companions
from tiebeam.core.checkpoint_fix import FixPlan, OnConflict
from tiebeam.errors import CheckpointError

Values = Literal["embedding", "readout", "mean"]
_ALIKE = ("equal", "equal-after-cast", "transposed", "sliced")


@dataclass(frozen=True, slots=True)
class Work:
    """A plan, and what carrying it out needs.

    Attributes:
        table: What is written under the table's name.
        gone: Names that are not written: the readout, and the scales beside a quantised one.
    """

    plan: FixPlan
    facts: Facts
    config: dict[str, Any] | None
    table: Tensor
    gone: frozenset[str] = frozenset()

    @property
    def elements_saved(self) -> int:
        """As `bytes_saved`, in numbers."""
        made, entries = self.plan, self.facts.archive.entries
        if made.added:
            return -entries[made.table].elements
        before = sum(entries[name].elements for name in {made.table, *self.gone})
        return before - math.prod(self.table.shape)


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
    beside = companions(dropped.name, facts.archive.entries) if dropped is not None else ()
    written = _written(table, dropped, values, beside)
    added = "" if wanted or facts.readout is not None else _name_for(facts, readout)
    config, changes = _config(facts.archive, wanted)
    alias = _said_to_be(facts, dropped, readout) if wanted else ""
    made = FixPlan(
        path=str(facts.archive.path), out=str(out), tie=wanted, table=table.name, values=values,
        dropped=dropped.name if dropped is not None else "", beside=beside, added=added, alias=alias, config=changes,
        bytes_saved=_saved(facts, table, dropped, added, values) + sum(facts.archive.entries[n].nbytes for n in beside),
    )  # fmt: skip
    gone = frozenset((made.dropped, *beside) if made.dropped else ())
    return Work(replace(made, rewritten=_rewritten(made, facts)), facts, config, written, gone)


def _written(table: Entry, dropped: Entry | None, values: Values, beside: tuple[str, ...]) -> Tensor:
    """What stands under the table's name in the copy; what cannot is refused before anything is written."""
    if values == "embedding" or dropped is None:
        return as_it_is(table)
    if beside:
        raise CheckpointError(
            f"'{dropped.name}' cannot take the place of '{table.name}'",
            got=f"quantised values, with {', '.join(beside)} beside them",
            hint="on_conflict='embedding' or 'untie' (--on-conflict)",
        )
    return mean(table, dropped) if values == "mean" else other_end(table, dropped)


def _said_to_be(facts: Facts, dropped: Entry | None, readout: str | None) -> str:
    """The name that the metadata will record for the table's second role; the config may do without."""
    name = dropped.name if dropped is not None else _alias(facts) or readout or ""
    if not name and facts.archive.config is None:
        raise CheckpointError(
            f"nothing would say that '{facts.roles.table}' is the readout too",
            got="no config, and no name of a readout",
            hint="give the config (--config), or a name for the metadata: readout='lm_head.weight' (--readout)",
        )
    return name


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
    if len(archive.files) > 1 and not any(f.endswith(INDEX_SUFFIX) for f in archive.files):
        raise CheckpointError(
            f"'{archive.path}' has shards and no index", got=", ".join(archive.files[:4]), hint="write the index first"
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
    if facts.state == "equal-after-cast":
        return a.dtype is not None and b.dtype is not None and b.dtype.bits > a.dtype.bits
    if a.shape is None or b.shape is None:
        return False
    rows, others = a.shape[0], b.shape[0] if b.shape[1] == a.shape[1] else b.shape[1]
    return others > rows and (facts.vocab is None or facts.vocab > rows)  # rows beyond the vocabulary are padding


def _name_for(facts: Facts, readout: str | None) -> str:
    if facts.quantised:
        raise CheckpointError(
            f"'{facts.roles.table}' is quantised: a copy of it is no readout without the scales beside it",
            hint="untie before quantising",
        )
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
    names = (made.table, made.dropped, *made.beside)
    files = {archive.entries[name].file for name in names if name and _touched(made, name, facts)}
    return tuple(f for f in archive.files if f in files)


def _touched(made: FixPlan, name: str, facts: Facts) -> bool:
    if name != made.table:
        return True
    recorded = facts.archive.metadata.get(made.alias) == made.table if made.alias else not facts.aliases
    return made.values != "embedding" or bool(made.added) or not recorded
