"""`tiebeam.save` and `load`: a file and a live model that may not agree on the tie, and a word on what then."""

import contextlib
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from tiebeam.api.operating import put, site_of
from tiebeam.checkpoints.declared import declared_by
from tiebeam.checkpoints.settings import left_shared, tie_settings
from tiebeam.core.operations.change import Change
from tiebeam.core.operations.conflicts import check_policy
from tiebeam.core.operations.loading import POLICIES, OnFileConflict, OnMissing
from tiebeam.core.operations.transaction import Transaction
from tiebeam.errors import InputError, TieError

OnFlag = Literal["error", "fix", "keep"]
WEIGHTS = "model.safetensors"
CONFIGS = ("config", "generation_config")
"""What a model holds that writes itself into a folder."""


def save(model: Any, path: str | Path, *, on_conflict: OnFlag = "error") -> tuple[tuple[str, ...], ...]:
    """Write a model's tensors to safetensors, each once; other names stand in the metadata, where `load` reads them.

    What is one tensor is seen in memory, not read from a flag. The file is written beside and then put in place, so
    that nothing half-written is left. Of a folder the configs are written too, where they can write themselves. What a
    class declares to be one while its flag is off is written under each name: a loader goes by the flag.

    Args:
        model: A PyTorch model.
        path: A file that ends in `.safetensors`, or a folder for `model.safetensors`.
        on_conflict: Where config and tensors contradict each other: "error" refuses; "fix" makes the live model's
            config say what is so; "keep" writes as it is.

    Returns:
        The groups of names that were written once.

    Raises:
        TieError: Config and tensors contradict each other, or a tensor has no values.
        InputError: There is no folder to write to, or the file is read-only.
        BackendError: The model is of a framework without operations.

    Example:
        >>> import pathlib, tempfile, tiebeam
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 9, bias=False))
        >>> model[1].weight = model[0].weight
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = pathlib.Path(folder) / "tied.safetensors"
        ...     print(tiebeam.save(model, file), tiebeam.load(model, file))
        (('0.weight', '1.weight'),) load: 0.weight = 1.weight
    """
    check_policy(on_conflict, ("error", "fix", "keep"))
    site = site_of(model, None, "save")
    target = Path(path)
    folder = target if target.is_dir() or target.suffix != ".safetensors" else None
    if not (target if folder else target.parent).is_dir():
        raise InputError(
            f"there is no folder {target if folder else target.parent}",
            expected="a folder, or the name of a file in one that ends in .safetensors",
            hint="make it first",
        )
    with Transaction() as undo, contextlib.ExitStack() as stack:
        groups = site.operator.groups()
        _agree(model, site.operator.names(), groups, on_conflict, undo)
        beside = () if folder is None else _configs(model, folder, stack)
        written = site.operator.write(target / WEIGHTS if folder else target, left_shared(model, groups))
        for file in beside:
            file.replace(target / file.name)
    return written


def _configs(model: Any, folder: Path, stack: contextlib.ExitStack) -> list[Path]:
    """What configs write of themselves, beside their place: put there when the weights are."""
    held: list[Any] = [c for name in CONFIGS if hasattr(c := getattr(model, name, None), "save_pretrained")]
    if not held:
        return []
    aside = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=".config.", dir=folder)))
    for config in held:
        config.save_pretrained(aside)
    return sorted(aside.iterdir())


def _agree(
    model: Any, names: Sequence[str], groups: Sequence[Sequence[str]], on_conflict: OnFlag, undo: Transaction
) -> None:
    """Hold what config and class declare against what is one tensor."""
    declared = declared_by(model)
    if on_conflict == "keep" or declared is None or not declared.keys or not declared.flag_present:
        return
    wanted = [g for g in declared.groups(names) if len(g) > 1]
    if not declared.tied:  # what else the class ties is no contradiction: both are written
        wanted = [g for g in wanted if model.get_parameter(g[0]).dim() > 1]
    one = [any(set(g) <= set(held) for held in groups) for g in wanted]
    if not wanted or (all(one) if declared.tied else not any(one)):
        return
    real = any(one)
    if on_conflict == "error":
        raise TieError(
            f"config and tensors of {type(model).__name__} contradict each other: a loader goes by the config",
            got=f"{' = '.join(wanted[0])} are {'one tensor' if real else 'several'}, "
            f"tie_word_embeddings is {declared.tied}",
            expected="a flag that says what is so",
            hint="on_conflict='fix' sets the flag; tiebeam.retie(model) or tiebeam.untie(model) changes the tensors",
        )
    put(tie_settings(model, real, None, [n for g in wanted for n in g]), undo)


def load(
    model: Any,
    path: str | Path,
    *,
    on_conflict: OnFileConflict = "error",
    on_missing: OnMissing = "error",
    strict: bool = True,
    optimizer: Any = None,
) -> Change:
    """Load a safetensors file into a live model, and decide on purpose where they are tied otherwise.

    A name that the file lacks is no loss where it is one with another: by the model's tie, by the file's metadata, or
    by what config and class declare. The model's tie is what it was, on meta too, unless a policy says otherwise.

    Args:
        model: A PyTorch model.
        path: A file, an index of shards, or the folder of either.
        on_conflict: The model has one table where the file has two that differ: "error"; whose values count
            ("embedding", "readout", "mean"); or "untie", which gives the model two and lets the config say so.
        on_missing: The model has two tables where the file has one: "error"; "tie" makes them one and lets the config
            say so; "copy" loads it twice.
        strict: False leaves tensors of the file alone that the model has no place for. One that is equal to a tensor
            that was loaded is always left.
        optimizer: As for `tie`; its state stays.

    Returns:
        What was done; `tables` are the names that are one in the end.

    Raises:
        ShapeError: A tensor does not fit.
        TieError: File and model differ and the policy is "error"; or the file lacks a tensor, or has one too many.
        InputError: The file cannot be read.
        BackendError: The model is of a framework without operations.

    Whatever is raised, the model, its config and the optimizer are as they were.
    """
    check_policy(on_conflict, POLICIES["on_conflict"])
    check_policy(on_missing, POLICIES["on_missing"])
    site = site_of(model, optimizer, "load")
    declared = declared_by(model)
    names = site.operator.names()
    pairs = declared.groups(names) if declared is not None else ()
    policy: Mapping[str, Any] = {"on_conflict": on_conflict, "on_missing": on_missing, "strict": strict}
    with Transaction() as undo:
        done = site.operator.load(Path(path), pairs, policy, undo)
        config: tuple[str, ...] = ()
        if done.tied or done.parted:
            config = put(tie_settings(model, bool(done.tied), None, done.parted), undo)
    return Change("load", site.operator.groups(), None, config, site.operator.said, done.notes)
