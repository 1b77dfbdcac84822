"""Write a corrected copy of a checkpoint: a folder that appears whole, judged before it does, or not at all."""

import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from tiebeam.checkpoints.archive import Archive
from tiebeam.checkpoints.bounded import read_json
from tiebeam.checkpoints.fixing.planning import Work, plan
from tiebeam.checkpoints.fixing.values import Tensor, as_it_is
from tiebeam.checkpoints.fixing.writing import write
from tiebeam.checkpoints.formats import safetensors
from tiebeam.checkpoints.judging import judge
from tiebeam.checkpoints.opening import CONFIG, INDEX_SUFFIX, open_archive
from tiebeam.core.checkpoint_fix import FixPlan, OnConflict
from tiebeam.core.operations.conflicts import check_policy
from tiebeam.errors import CheckpointError


def fix(
    path: str | Path,
    out: str | Path,
    *,
    config: object = None,
    tie: bool | None = None,
    on_conflict: OnConflict = "error",
    table: str | None = None,
    readout: str | None = None,
    dry_run: bool = False,
) -> FixPlan:
    """Write a copy of a checkpoint in which file, flag and metadata say one thing.

    The source is never changed. The copy is written to a temporary folder beside `out`, judged there, and renamed:
    `out` appears whole or not at all. Shards keep their names and metadata, other files of the folder are copied. A
    tied copy stores the table once and records the readout's name in the metadata of its file, as
    `safetensors.torch.save_model` does; `inspect` reads that back.

    Args:
        path: safetensors, one file or an index with its shards, or the folder that holds them.
        out: The folder to write; it must not exist, or be empty.
        config: As for `inspect`.
        tie: True: store one table. False: store both ends. None: what config, family and metadata ask for, and a tie
            where there is no readout and nothing speaks for one.
        on_conflict: Whose values count where one table is asked for and two matrices differ: "embedding", "readout",
            "mean", or "untie" (keep both, and say so in the config). "error" refuses.
        table: Name of the table, where it cannot be told.
        readout: Name of the readout, likewise; also of one that has to be made.
        dry_run: Say what would be done, and write nothing.

    Returns:
        What was done.

    Raises:
        CheckpointError: There is a conflict and `on_conflict` is "error"; the file is of another format, or cannot be
            judged; or `out` holds something or cannot be written. Nothing is left behind.
        RangeError: There is no such `on_conflict`.

    Example:
        >>> import numpy as np
        >>> from safetensors.numpy import save_file
        >>> place = Path(tempfile.mkdtemp())
        >>> rows = np.ones((64, 8), np.float32)
        >>> save_file({"model.embed_tokens.weight": rows, "lm_head.weight": rows.copy()}, place / "model.safetensors")
        >>> _ = (place / "config.json").write_text('{"model_type": "llama", "tie_word_embeddings": true}')
        >>> done = fix(place, place / "tied")
        >>> done.dropped, done.bytes_saved
        ('lm_head.weight', 2048)
        >>> open_archive(place / "tied").metadata
        {'lm_head.weight': 'model.embed_tokens.weight'}
    """
    check_policy(on_conflict, get_args(OnConflict))
    source, target = Path(path), Path(out)
    _check_target(target, source)
    archive = open_archive(source, config)
    known = readout if readout in archive.entries else None
    facts = judge(archive, table, known)
    work = plan(facts, target, tie=tie, on_conflict=on_conflict, readout=readout)
    folder = source if source.is_dir() else source.parent
    work = replace(work, plan=replace(work.plan, copied=tuple(_copied(work, folder, source.is_dir()))))
    if dry_run:
        return work.plan
    _publish(work, folder, target)
    return replace(work.plan, written=True)


def _check_target(target: Path, source: Path) -> None:
    try:
        _check_place(target, source)
    except OSError as e:
        raise CheckpointError(f"'{target}' cannot be written", got=e.strerror or str(e)) from e


def _check_place(target: Path, source: Path) -> None:
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise CheckpointError(
            f"'{target}' cannot be written", got="something is there", expected="a new folder, or an empty one"
        )
    parent = target.resolve().parent
    if not parent.is_dir():
        raise CheckpointError(f"'{target}' cannot be made", got=f"no folder '{parent}'", expected="its parent")
    if target.resolve() == source.resolve():
        raise CheckpointError(f"'{target}' is the checkpoint itself", expected="another folder")


def _copied(work: Work, folder: Path, whole: bool) -> Iterator[str]:
    """Files that go over as they are: shards that do not change, and whatever else the folder holds."""
    weights = {f for f in work.facts.archive.files if f not in work.plan.rewritten and not f.endswith(INDEX_SUFFIX)}
    yield from sorted(weights)
    if whole:
        known = {*work.facts.archive.files, CONFIG}
        yield from sorted(p.name for p in folder.iterdir() if p.is_file() and p.name not in known)


def _publish(work: Work, folder: Path, target: Path) -> None:
    place = target.resolve()
    try:
        draft = Path(tempfile.mkdtemp(prefix=f".{place.name}.", dir=place.parent))
    except OSError as e:
        raise CheckpointError(f"'{target}' cannot be written", got=e.strerror or str(e)) from e
    try:
        _fill(work, folder, draft)
        _verify(work, draft)
        draft.chmod(0o777 & ~_umask())
        _sync(p for p in (*draft.rglob("*"), draft))
        draft.replace(place)  # over an empty folder too
        _sync_parent(place)
    except OSError as e:
        raise CheckpointError(f"'{target}' cannot be written", got=e.strerror or str(e)) from e
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _fill(work: Work, folder: Path, draft: Path) -> None:
    for name in work.plan.copied:
        (draft / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(folder / name, draft / name)
    left: dict[str, list[Tensor]] = {}
    for file in work.plan.rewritten:
        left[file] = list(_tensors(work, file))
        if left[file]:
            (draft / file).parent.mkdir(parents=True, exist_ok=True)
            write(draft / file, left[file], _metadata(work, folder / file, file))
    archive = work.facts.archive
    for name in archive.files:
        if name.endswith(INDEX_SUFFIX):
            _write_json(draft / name, _index(work, folder / name))
    if work.config is not None:
        _write_json(draft / CONFIG, work.config)


def _tensors(work: Work, file: str) -> Iterator[Tensor]:
    made, facts = work.plan, work.facts
    for name in _names(facts.archive, file):
        entry = facts.archive.entries[name]
        if name in work.gone:
            continue
        yield work.table if name == made.table else as_it_is(entry)
        if name == made.table and made.added:
            yield as_it_is(entry, made.added)


def _names(archive: Archive, file: str) -> list[str]:
    return [name for name in archive.entries if archive.entries[name].file == file]


def _metadata(work: Work, path: Path, file: str) -> dict[str, str]:
    """What the file said, without the aliases of this table, and with the one that is so now."""
    made, archive = work.plan, work.facts.archive
    kept = {
        k: v for k, v in safetensors.read(path).metadata.items() if not (v == made.table and k in work.facts.aliases)
    }
    here = archive.entries[made.table].file == file
    return kept | ({made.alias: made.table} if made.alias and here else {})


def _index(work: Work, path: Path) -> dict[str, Any]:
    made, index = work.plan, read_json(path)
    where: dict[str, str] = index["weight_map"]
    for name in work.gone:
        where.pop(name, None)
    if made.added:
        where[made.added] = where[made.table]
    totals = index.get("metadata")
    if isinstance(totals, dict):
        for key, change in (("total_size", made.bytes_saved), ("total_parameters", work.elements_saved)):
            if isinstance(totals.get(key), int | float):
                totals[key] = int(totals[key]) - change
    return index


def _verify(work: Work, draft: Path) -> None:
    """The copy is judged like any other checkpoint, before anyone sees it."""
    made = work.plan
    found = judge(open_archive(draft, work.config), made.table, made.added or None)
    right = found.state == "omitted" if made.tie else found.readout is not None
    if not right or found.archive.strays or found.archive.missing:
        raise CheckpointError(
            f"the copy of '{made.path}' did not come out as planned", got=f"state {found.state!r}", expected=str(made)
        )


def _write_json(path: Path, data: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        text = json.dumps(data, indent=2, ensure_ascii=False).encode()
    except UnicodeEncodeError:  # half of a pair, which JSON can say and UTF-8 cannot
        text = json.dumps(data, indent=2).encode()
    path.write_bytes(text + b"\n")


def _sync(places: Iterable[Path]) -> None:
    """Put files and folders on the disk, so that what a rename shows is whole after a power cut too."""
    for place in places:
        handle = os.open(place, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _sync_parent(place: Path) -> None:
    with suppress(OSError):  # the copy is there and whole; a folder that can be written need not be readable
        _sync([place.parent])


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
