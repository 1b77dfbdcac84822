"""One parameter out of several, and two out of one."""

import copy
from collections.abc import Sequence

import torch
from torch import nn

from tiebeam.backends.torch.names import module_tree
from tiebeam.backends.torch.operations.remembered import Remembered
from tiebeam.backends.torch.operations.slots import (
    Slot,
    beside_in_memory,
    check_in_memory,
    check_plain,
    distinct,
    find,
    slots_of,
)
from tiebeam.backends.torch.parts import lie_alike, unrecorded
from tiebeam.core.operations.conflicts import OnConflict, conflict
from tiebeam.core.operations.transaction import Transaction
from tiebeam.errors import ShapeError, TieError


def join(
    model: nn.Module, names: Sequence[str], on_conflict: OnConflict, remembered: Remembered, undo: Transaction
) -> tuple[str, ...]:
    """Let every place of `names` hold the parameter of the first one, which is the lookup's.

    Returns:
        Notes.

    Raises:
        InputError: There is no such parameter.
        TieError, ShapeError: They cannot be one, or differ and nothing says whose values count.
    """
    places = [find(model, n) for n in names]
    check_in_memory(places)
    for place, name in zip(places, names, strict=True):
        _check_parameter(place, name)
    owner, *others = distinct(p.tensor for p in places)
    if owner.is_meta and (real := next((o for o in others if not o.is_meta), None)) is not None:
        others = [owner, *(o for o in others if o is not real)]
        owner = real
    name_of = {id(p.tensor): n for p, n in zip(reversed(places), reversed(names), strict=True)}
    for other in others:
        _check_fit(owner, other, name_of[id(owner)], name_of[id(other)])
    with_values = [o for o in others if not o.is_meta]
    if not owner.is_meta and not all(_equal(owner, o) for o in with_values):
        _settle(owner, with_values, on_conflict, [name_of[id(t)] for t in (owner, *with_values)], undo)
    notes = []
    for other in others:
        _join_gradients(owner, other, undo)
        remembered.join(other, owner, name_of[id(other)], name_of[id(owner)], undo)
        if _hooked(other):
            notes.append(f"hooks on {name_of[id(other)]!r} went with it")
        for place in slots_of(model, other):
            place.put(owner, undo)
    return tuple(notes)


def _check_parameter(place: Slot, name: str) -> None:
    if place.buffer:
        raise TieError(
            f"{name!r} is a buffer", expected="a parameter", hint="a buffer is not trained: register it as a parameter"
        )
    check_plain(place.tensor, name)


def _check_fit(owner: torch.Tensor, other: torch.Tensor, name: str, named: str) -> None:
    if owner.shape != other.shape:
        turned = tuple(owner.shape) == tuple(other.shape)[::-1]
        raise ShapeError(
            f"{named!r} cannot share {name!r}",
            got=f"{tuple(other.shape)}",
            expected=f"{tuple(owner.shape)}",
            hint="its module multiplies by the transpose: read the table there, as F.linear(x, table) does"
            if turned
            else "resize one, or put a projection between them",
        )
    if owner.dtype != other.dtype or not (owner.is_meta or other.is_meta or owner.device == other.device):
        raise TieError(
            f"{named!r} cannot share {name!r}",
            got=f"{other.dtype} on {other.device}",
            expected=f"{owner.dtype} on {owner.device}",
            hint="move or cast the whole model first: model.to(...)",
        )
    if owner.requires_grad != other.requires_grad:
        frozen, trained = (named, name) if owner.requires_grad else (name, named)
        raise TieError(
            f"{frozen!r} is frozen and {trained!r} is trained: one parameter is either",
            hint="requires_grad_(...) one of them first, as both are to be",
        )


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    return lie_alike(a, b, 0, 0) and bool(torch.equal(a, b))


def _settle(
    owner: torch.Tensor, others: list[torch.Tensor], on_conflict: OnConflict, names: list[str], undo: Transaction
) -> None:
    """Give the owner the values that count."""
    apart = max(float((owner.detach() - o.detach()).abs().max()) for o in others)
    how = conflict(on_conflict, names, apart)
    if how == "embedding":
        return
    before = owner.detach().clone()

    def put_back() -> None:
        with unrecorded(owner):
            owner.copy_(before)

    undo.did(put_back)
    with unrecorded(owner):
        if how == "readout":
            owner.copy_(others[-1])
            return
        for other in others:
            owner.add_(other)
        owner.div_(1 + len(others))


def _join_gradients(owner: torch.Tensor, other: torch.Tensor, undo: Transaction) -> None:
    """The gradient of one table in two roles is the sum."""
    if other.grad is None:
        return
    before, theirs = owner.grad, other.grad.detach()
    undo.did(lambda: setattr(owner, "grad", before))
    if before is None:
        owner.grad = theirs.clone()
        return
    theirs = theirs.to(before.device)
    # A lookup's gradient may be sparse; only the dense one of both can be added to.
    owner.grad = before + theirs if before.layout == torch.strided else theirs + before


def _hooked(p: torch.Tensor) -> bool:
    return bool(p._backward_hooks or getattr(p, "_post_accumulate_grad_hooks", None))


def part(
    model: nn.Module, table: Sequence[str], readouts: Sequence[str], lookups: Sequence[str], named: str | None,
    remembered: Remembered, undo: Transaction,
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:  # fmt: skip
    """Give the readout a parameter of its own: equal values, and a copy of what is remembered.

    Args:
        table: Names of the one parameter.
        readouts, lookups: Paths of the modules that read it so.
        named: A name of the readout, where the caller says it.

    Returns:
        The names of the readout, those of the lookup, and notes.

    Raises:
        TieError: The model has no place of its own for the readout.
    """
    p = find(model, table[0]).tensor
    check_plain(p, table[0])
    aliases = [other for _, other, shared in beside_in_memory(model, p) if shared and other.shape == p.shape]
    places = [place for tensor in (p, *aliases) for place in slots_of(model, tensor)]
    check_in_memory(places)
    if any(place.buffer for place in places):
        raise TieError(f"{table[0]!r} is a buffer", expected="a parameter")
    chosen = _of_readout(model, places, readouts, lookups, named)
    kept = [place for place in places if place not in chosen]
    if not chosen or not kept:
        raise TieError(
            f"the readout has no place of its own for a parameter beside {table[0]!r}",
            got=f"{', '.join(n for place in places for n in place.paths)}, read out in "
            f"{', '.join(w or 'the forward of the model' for w in readouts)}",
            expected="a module that reads it out and does not look it up",
            hint="give the model a layer for its readout (nn.Linear(width, vocab, bias=False)) that its forward calls, "
            "tie that, and untie; or name its parameter: readout=...",
        )
    outs, ins = (tuple(n for place in those for n in place.paths) for those in (chosen, kept))
    if aliases and not {id(s.tensor) for s in chosen} & {id(s.tensor) for s in kept}:
        for tensor in distinct(s.tensor for s in chosen):  # parameters of their own, but for the memory
            _move_out(tensor, undo)
        return outs, ins, ()
    fresh = copy.deepcopy(p)  # as its own class copies it
    fresh.__dict__.update(p.__dict__)  # marks that trainers leave on parameters
    fresh.grad = None if p.grad is None else p.grad.detach().clone()
    for place in chosen:
        place.put(fresh, undo)
    remembered.add_beside(fresh, p, outs[0], list(model.parameters()), undo)
    return outs, ins, (f"hooks on {table[0]!r} stay with the lookup",) if _hooked(p) else ()


def _move_out(tensor: torch.Tensor, undo: Transaction) -> None:
    before = tensor.data
    undo.did(lambda: setattr(tensor, "data", before))
    tensor.data = before.clone()


def _of_readout(
    model: nn.Module, places: list[Slot], readouts: Sequence[str], lookups: Sequence[str], named: str | None
) -> list[Slot]:
    if named is not None:
        return [place for place in places if named in place.paths]
    modules = dict(module_tree(model))
    out, looked = ({id(modules[w]) for w in where if w in modules} for where in (readouts, lookups))
    return [place for place in places if id(place.module) in out - looked]
