"""Loading a file into a module, tied as it is or as a policy says."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tiebeam.backends.torch.operations import tying
from tiebeam.backends.torch.operations.files import Places, Stored, same_tensors, state
from tiebeam.backends.torch.operations.remembered import Remembered
from tiebeam.backends.torch.operations.slots import check_in_memory, check_whole, slots
from tiebeam.core.operations.loading import Loaded, LoadPlan, plan_load
from tiebeam.core.operations.transaction import Transaction
from tiebeam.errors import TieError


def load(
    model: nn.Module, path: Path, declared: Sequence[Sequence[str]], policy: Mapping[str, Any],
    remembered: Remembered, undo: Transaction,
) -> Loaded:  # fmt: skip
    """Load a file as `api.saving.load` says."""
    with Stored(path) as file:
        held = state(model)
        for name, tensor in held.items():
            check_whole(tensor, name)
        check_in_memory(slots(model))
        groups = same_tensors(held)
        plan = plan_load(
            {n: tuple(t.shape) for n, t in held.items()}, groups, file.shapes, file.metadata, declared
        )  # fmt: skip
        notes = _redundant(plan, file, strict=policy["strict"])
        if plan.missing and policy["on_missing"] == "error":
            name, partner = next(iter(plan.missing.items()))
            raise TieError(
                f"the file holds one table where the model has two: {name!r} is missing",
                got=f"{partner!r}, which stands for it",
                expected="both, or a word on what to do",
                hint="on_missing='tie' makes the model's one, 'copy' loads it twice",
            )
        chosen, parted = _values(plan, file, policy["on_conflict"])
        for name in parted:
            group = next(g for g in groups if name in g)
            tying.part(model, group, (), (), name, remembered, undo)
        places = Places(model)
        for name, values in chosen.items():
            places.put(name, values, undo)
        tied = []
        for name, partner in plan.missing.items():
            places.put(name, file[partner], undo)
            if policy["on_missing"] == "tie":
                notes += tying.join(model, [partner, name], "error", remembered, undo)
                tied.append(name)
    return Loaded(tuple(tied), tuple(parted), tuple(notes))


def _values(plan: LoadPlan, file: Stored, on_conflict: str) -> tuple[dict[str, torch.Tensor], list[str]]:
    """What each name gets, and which names get a tensor of their own."""
    chosen: dict[str, torch.Tensor] = {}
    parted: list[str] = []
    for name, stored in plan.stored.items():
        first = file[stored[0]]
        chosen[name] = first
        for other in stored[1:]:
            values = file[other]
            if torch.equal(first, values):
                continue
            if on_conflict == "error":
                raise TieError(
                    f"the file holds two tables where the model has one: {stored[0]!r} and {other!r} differ",
                    got=f"entries up to {float((first.double() - values.double()).abs().max()):.3g} apart",
                    expected="equal tensors, or a word on whose values count",
                    hint="on_conflict='untie' gives the model two; 'embedding', 'readout' or 'mean' make one of them",
                )
            if on_conflict == "untie":
                chosen[other] = values
                parted.append(other)
            elif on_conflict == "readout":
                chosen[name] = values
            elif on_conflict == "mean":
                chosen[name] = ((first.double() + values.double()) / 2).to(first.dtype)
    return chosen, parted


def _redundant(plan: LoadPlan, file: Stored, *, strict: bool) -> list[str]:
    notes = []
    for name, alike in plan.redundant.items():
        twin = next((a for a in alike if torch.equal(file[name], file[a])), None)
        if twin is not None:
            notes.append(f"{name!r} of the file equals {twin!r} and was left")
        elif strict:
            raise TieError(
                f"the file holds {name!r}, which the model has no place for",
                got=f"a tensor of {file.shapes[name]} that equals none that the model loads",
                expected="tensors of the model",
                hint="untie the model first where it is a readout of its own; strict=False leaves it",
            )
        else:
            notes.append(f"{name!r} of the file was left: the model has no place for it")
    return notes
