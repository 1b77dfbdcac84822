"""`tiebeam.tie`, `untie`, `retie` and `ties`."""

from collections.abc import Sequence
from typing import Any

from tiebeam.api.inspection import report_of
from tiebeam.api.operating import nothing, put, site_of
from tiebeam.checkpoints.declared import declared_by
from tiebeam.checkpoints.settings import left_shared, tie_settings
from tiebeam.core.operations import verify
from tiebeam.core.operations.change import Change
from tiebeam.core.operations.conflicts import OnConflict, check_policy
from tiebeam.core.operations.ends import both_ends, check_bare
from tiebeam.core.operations.ties import as_named_now
from tiebeam.core.operations.transaction import Transaction
from tiebeam.errors import InputError, TieError


def tie(
    model: Any,
    inputs: Any = None,
    *,
    lookup: str | None = None,
    readout: str | None = None,
    on_conflict: OnConflict = "error",
    optimizer: Any = None,
) -> Change:
    """Make lookup and readout of a live model one parameter, the lookup's.

    Every place that held the readout's parameter holds the lookup's. Gradients that were accumulated are added; the
    optimizer steps one parameter, with what it remembered of both: means of gradients and of their squares are added,
    equal ones stay. The config says so. Tying what is tied changes nothing.

    Args:
        model: A PyTorch model.
        inputs: As for `inspect`; the model is looked at before and after. With both names given it is not run, and
            identity is what is verified.
        lookup, readout: Names of the parameters, where several could be meant.
        on_conflict: Where values differ: "error", or whose count: "embedding", "readout", "mean".
        optimizer: What trains the model: an optimizer of PyTorch, or a list. One that is not given still steps a
            parameter that the model no longer has.

    Returns:
        What was done.

    Raises:
        TieError: The two cannot be one (dtype, device, frozen, sharded, parametrised), or their values differ.
        ShapeError: Their shapes differ.
        InputError: No such tables were seen; or as `inspect`.
        BackendError: The model is of a framework without operations.

    Whatever is raised, the model, its config and the optimizer are as they were.

    Example:
        >>> import torch, tiebeam
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Embedding(300, 64), nn.LayerNorm(64), nn.Linear(64, 300, bias=False))
        >>> print(tiebeam.tie(model, torch.arange(8)[None], on_conflict="readout"))
        tie: 0.weight = 2.weight
        >>> model[0].weight is model[2].weight
        True
    """
    check_policy(on_conflict)
    site = site_of(model, optimizer, "tie")
    seen = None if lookup and readout else site.seen(inputs)
    if seen is None:
        names = [str(lookup), str(readout)]
        vocab = None
    else:
        first, second = both_ends(seen.tables, lookup, readout)
        check_bare(first, second)
        names, vocab = list(dict.fromkeys((*first.names, *second.names))), first.vocab
    if site.operator.one(names):
        return nothing("tie", names, seen, tie_settings(model, True, vocab, site.operator.names_of(names[0])))
    with Transaction() as undo:
        notes = site.operator.join(names, on_conflict, undo)
        config = put(tie_settings(model, True, vocab, site.operator.names_of(names[0])), undo)
        if not site.operator.one(names):
            raise TieError("tie did not come out as planned, and was undone", got=f"{names} are several parameters")
        after = None if seen is None else site.again(seen, "tie")
        if seen is not None and after is not None:
            verify.check_one("tie", after.tables, names)
            verify.check_same_reads("tie", seen.tables, after.tables)
    return Change(
        "tie", (site.operator.names_of(names[0]),), None, config, site.operator.said,
        (*notes, *_undeclared(model, names)), None if after is None else report_of(after),
    )  # fmt: skip


def untie(
    model: Any, inputs: Any = None, *, lookup: str | None = None, readout: str | None = None, optimizer: Any = None
) -> Change:
    """Give the readout of a tied model a parameter of its own.

    It starts with equal values, gradient and optimizer state, so the next loss is the one that the tied model would
    have had, bit by bit. The optimizer steps it right behind the table, in its group. The config says so. Untying what
    is untied changes nothing.

    Args:
        model, inputs, optimizer: As for `tie`.
        lookup: A name of the table, where several could be meant.
        readout: The name that the readout keeps, where the model's code does not show it. Named alone it is not run.

    Returns:
        What was done.

    Raises:
        TieError: The readout has no place of its own: the model's code reads one parameter twice.
        InputError, BackendError: As for `tie`.

    Whatever is raised, the model, its config and the optimizer are as they were.

    Example:
        >>> import torch, tiebeam
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Embedding(300, 64), nn.LayerNorm(64), nn.Linear(64, 300, bias=False))
        >>> model[2].weight = model[0].weight
        >>> optimizer = torch.optim.AdamW(model.parameters())
        >>> print(tiebeam.untie(model, torch.arange(8)[None], optimizer=optimizer))
        untie: 0.weight; 2.weight
        >>> len(optimizer.param_groups[0]["params"])
        4
    """
    site = site_of(model, optimizer, "untie")
    seen = None if readout and inputs is None else site.seen(inputs)
    vocab: int | None = None
    readouts: tuple[str, ...] = ()
    lookups: tuple[str, ...] = ()
    if seen is None:
        table = site.operator.names_of(str(readout))
    else:
        first, second = both_ends(seen.tables, lookup, readout)
        vocab = first.vocab
        check_bare(first, second)
        if first is not second:
            return nothing("untie", [first.name, second.name], seen, tie_settings(model, False, vocab, second.names))
        table = first.names
        readouts, lookups = tuple(r.where for r in first.readouts), tuple(u.where for u in first.lookups)
    with Transaction() as undo:
        outs, ins, notes = site.operator.part(table, readouts, lookups, readout, undo)
        if not (site.operator.one(outs) and site.operator.one(ins)) or site.operator.one([*outs, *ins]):
            raise TieError("untie did not come out as planned, and was undone", got=f"{outs} and {ins}")
        config = put(tie_settings(model, False, vocab, outs), undo)
        after = None if seen is None else site.again(seen, "untie")
        if seen is not None and after is not None:
            verify.check_two("untie", after.tables, ins, outs)
            verify.check_same_reads("untie", seen.tables, after.tables)
    report = None if after is None else report_of(after)
    notes += _left(model, site.operator.groups())
    return Change("untie", (ins, outs), None, config, site.operator.said, notes, report)


def _left(model: Any, groups: Sequence[Sequence[str]]) -> tuple[str, ...]:
    left = left_shared(model, groups)
    if not left:
        return ()
    said = "stay shared, and a loader that goes by the config would not share them: save with tiebeam.save"
    return (f"{', '.join(left)} {said}",)


def retie(
    model: Any,
    ties: Sequence[Sequence[str]] | None = None,
    *,
    on_conflict: OnConflict = "error",
    optimizer: Any = None,
) -> Change:
    """Make parameters one again that were one before a load, a move or a copy.

    The model is not run, so it may be one whose memory was just made (`to_empty`) or holds no values yet.

    Args:
        model: A PyTorch model, wrapped or not.
        ties: Names that belong together, as `tiebeam.ties(model)` gave them while it was sound, or `guard(...).ties`.
            None: what the model's class and config declare.
        on_conflict: As for `tie`; the first name of a tie counts as the embedding, the last as the readout. On meta the
            one that has values counts.
        optimizer: As for `tie`.

    Returns:
        What was done; `tables` are the ties that were lost.

    Raises:
        InputError: Nothing says what was tied, or the model lacks a name.
        TieError, ShapeError, BackendError: As for `tie`; a parametrised end (`weight_norm`, `prune`) is no parameter.

    Whatever is raised, the model and the optimizer are as they were.

    Example:
        >>> import torch, tiebeam
        >>> from torch import nn
        >>> with torch.device("meta"):
        ...     model = nn.ModuleDict({"embed": nn.Embedding(99, 8), "head": nn.Linear(8, 99, bias=False)})
        >>> model["head"].weight = model["embed"].weight
        >>> ties = tiebeam.ties(model)
        >>> _ = model.to_empty(device="cpu")
        >>> model["head"].weight is model["embed"].weight
        False
        >>> print(tiebeam.retie(model, ties, on_conflict="embedding"))
        retie: embed.weight = head.weight
    """
    check_policy(on_conflict)
    site = site_of(model, optimizer, "retie")
    names = site.operator.names()
    wanted = _declared(model, names) if ties is None else tuple(as_named_now(tuple(group), names) for group in ties)
    if not wanted:
        raise InputError(
            f"nothing says what was tied in {type(model).__name__}",
            got="no ties, and no config and class that declare one" if ties is None else f"ties={ties!r}",
            expected="groups of names",
            hint="ties = tiebeam.ties(model) while it is sound; or ties=[('embed.weight', 'head.weight')]",
        )
    broken = [group for group in wanted if not site.operator.one(group)]
    notes: list[str] = []
    with Transaction() as undo:
        for group in broken:
            notes += site.operator.join(group, on_conflict, undo)
        if any(not site.operator.one(group) for group in wanted):
            raise TieError("retie did not come out as planned, and was undone", got=str(wanted))
    return Change("retie", tuple(map(tuple, broken)), None, (), site.operator.said, tuple(notes))


def ties(model: Any) -> tuple[tuple[str, ...], ...]:
    """Which names of a model are one parameter, to hold a later state of it against.

    Args:
        model: A PyTorch model.

    Returns:
        Groups of parameter paths, in the model's order.

    Raises:
        BackendError: The model is of a framework without operations.

    Example:
        >>> import tiebeam
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 9, bias=False))
        >>> model[1].weight = model[0].weight
        >>> tiebeam.ties(model)
        (('0.weight', '1.weight'),)
    """
    return site_of(model, None, "ties").operator.groups()


def _declared(model: Any, names: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    declared = declared_by(model)
    return declared.groups(names) if declared is not None and declared.tied else ()


def _undeclared(model: Any, names: Sequence[str]) -> list[str]:
    """A tie that the model's class does not know is not made again by its loader."""
    declared = declared_by(model)
    if declared is None or not declared.owner:
        return []
    if declared.tied and any(declared.names(a, b) for a in names for b in names if a != b):
        return []
    return [f"{declared.owner} does not declare this tie, so its loader will not make it: save with tiebeam.save"]
