"""`backends.protocol.Operator` for PyTorch: writes to one model and to the optimizers that train it."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tiebeam.backends.torch.names import all_parameters
from tiebeam.backends.torch.operations import files, loading, resizing, slots, tying
from tiebeam.backends.torch.operations.guard import TorchGuard
from tiebeam.backends.torch.operations.remembered import Remembered
from tiebeam.core.facts import Table
from tiebeam.core.operations.conflicts import OnConflict
from tiebeam.core.operations.loading import Loaded
from tiebeam.core.operations.rows import RowPlan
from tiebeam.core.operations.transaction import Transaction
from tiebeam.errors import TieError


class TorchOperator:
    """Writes to one module.

    Args:
        model: The module.
        optimizer: What trains it: an optimizer, several, or None.

    Raises:
        InputError: An optimizer is none, or of another model.
    """

    def __init__(self, model: nn.Module, optimizer: Any = None) -> None:
        self.model = model
        self.remembered = Remembered(optimizer)
        self.remembered.check_of(list(model.parameters()))

    @property
    def said(self) -> tuple[str, ...]:
        return tuple(self.remembered.said)

    def names(self) -> tuple[str, ...]:
        return tuple(all_parameters(self.model))

    def groups(self) -> tuple[tuple[str, ...], ...]:
        return slots.groups(self.model)

    def one(self, names: Sequence[str]) -> bool:
        return len({id(slots.find(self.model, n).tensor) for n in names}) == 1

    def check_here(self, names: Sequence[str]) -> None:
        held = all_parameters(self.model)
        away = next((n for n in names if n in held and held[n].is_meta), None)
        if away is not None:
            raise slots.elsewhere(away)

    def names_of(self, name: str) -> tuple[str, ...]:
        tensor = slots.find(self.model, name).tensor
        return tuple(n for place in slots.slots_of(self.model, tensor) for n in place.paths)

    def like(self, name: str) -> tuple[str, ...]:
        tensor = slots.find(self.model, name).tensor
        return tuple(n for n, p in self.model.named_parameters() if p is not tensor and p.shape == tensor.shape)

    def join(self, names: Sequence[str], on_conflict: OnConflict, undo: Transaction) -> tuple[str, ...]:
        _check_unwrapped(self.model)
        with torch.inference_mode(False):  # what is made there cannot be trained
            return tying.join(self.model, names, on_conflict, self.remembered, undo)

    def part(
        self, table: Sequence[str], readouts: Sequence[str], lookups: Sequence[str], named: str | None,
        undo: Transaction,
    ) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:  # fmt: skip
        _check_unwrapped(self.model)
        with torch.inference_mode(False):
            return tying.part(self.model, table, readouts, lookups, named, self.remembered, undo)

    def guard(self, ties: Sequence[Sequence[str]], apart: Sequence[Sequence[str]]) -> TorchGuard:
        return TorchGuard(self.model, ties, apart)

    def resize(self, tables: Sequence[Table], plan: RowPlan, undo: Transaction) -> tuple[str, ...]:
        """Both ends and their biases."""
        _check_unwrapped(self.model)
        todo = [resizing.wanted(self.model, t.name, plan.before, t.vocab_axis, i) for i, t in enumerate(tables)]
        biases = dict.fromkeys(b for t in tables for r in t.readouts for b in r.bias)
        todo += [resizing.wanted(self.model, b, plan.before, None, None) for b in biases]
        todo = list({id(one.tensor): one for one in todo}.values())
        kept = [one.tensor.data for one in todo]
        for one in todo:
            resizing.resize(one, plan, self.remembered, undo)
        for one, before in zip(todo, kept, strict=True):
            _check_kept(one, before, plan)
        return tuple(biases)

    def write(self, file: Path, apart: Collection[str] = ()) -> tuple[tuple[str, ...], ...]:
        return files.write(self.model, file, apart)

    def load(
        self, path: Path, declared: Sequence[Sequence[str]], policy: Mapping[str, Any], undo: Transaction
    ) -> Loaded:
        with torch.inference_mode(False):
            return loading.load(self.model, path, declared, policy, self.remembered, undo)

    def within(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], vocab: int
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Inputs whose token ids a smaller vocabulary has too."""

        def bounded(value: Any) -> Any:
            integers = isinstance(value, torch.Tensor) and not value.is_floating_point() and value.dtype != torch.bool
            if not integers or value.is_meta or not value.numel() or int(value.max()) < vocab:
                return value
            return torch.where(value < vocab, value, value % vocab)

        return tuple(map(bounded, args)), {k: bounded(v) for k, v in kwargs.items()}


def _check_unwrapped(model: nn.Module) -> None:
    """Raise where a wrapper has taken down which parameters there are: it would reduce the gradients of those alone."""
    for path, module in model.named_modules():
        if isinstance(module, nn.parallel.DistributedDataParallel):
            raise TieError(
                f"{path or 'the model'} is wrapped for data-parallel training",
                got=f"a {type(module).__name__}, whose buckets hold the parameters that it was built with",
                expected="the model itself",
                hint="operate on wrapped.module on every process alike, and wrap it anew",
            )


def _check_kept(one: resizing.Resized, before: torch.Tensor, plan: RowPlan) -> None:
    """Look again: every row that was to be kept is there, bit by bit."""
    after = one.tensor.detach()
    if after.shape[one.axis] != plan.after:
        raise TieError(f"{one.name!r} did not take its new rows", got=str(tuple(after.shape)), expected=f"{plan.after}")
    if after.is_meta:
        return
    new = torch.from_numpy((plan.source >= 0).nonzero()[0]).to(after.device)
    old = torch.from_numpy(plan.source[plan.source >= 0]).to(after.device)
    step = max(1, resizing.PIECE // max(1, after.numel() // max(1, plan.after)))
    for i in range(0, len(new), step):
        a = after.index_select(one.axis, new[i : i + step])
        b = before.index_select(one.axis, old[i : i + step])
        same = torch.equal(a, b) or (torch.equal(a.isnan(), b.isnan()) and torch.equal(a.nan_to_num(), b.nan_to_num()))
        if not same:
            raise TieError(f"rows of {one.name!r} that were to be kept changed", expected="the same values")
