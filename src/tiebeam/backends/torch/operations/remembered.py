"""What optimizers hold of a parameter: its place in a group and its state, by the object itself."""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from tiebeam.backends.torch.optimizers.holding import inner
from tiebeam.core.operations.state import JOINS, rows_axis
from tiebeam.core.operations.transaction import Transaction
from tiebeam.errors import InputError, TieError

State = dict[str, Any]
Rows = Callable[[str, torch.Tensor, int], torch.Tensor]
"""Entry, its tensor, the axis of the rows -> the tensor with other rows."""


class Remembered:
    """The optimizers of a model.

    Args:
        optimizer: None, a `torch.optim.Optimizer`, or a list of them; wrappers are opened.

    Raises:
        InputError: It is none.
    """

    def __init__(self, optimizer: Any) -> None:
        several = optimizer if isinstance(optimizer, list | tuple) else [] if optimizer is None else [optimizer]
        self.optimizers = list({id(o): o for o in map(inner, several)}.values())
        self.said: list[str] = []

    def check_of(self, parameters: list[torch.Tensor]) -> None:
        """Raise where an optimizer steps nothing of the model."""
        own = {id(p) for p in parameters}
        for one in self.optimizers:
            if not any(id(p) in own for group in one.param_groups for p in group["params"]):
                raise InputError(
                    f"the {type(one).__name__} steps no parameter of this model",
                    expected="the optimizer that trains it",
                    hint="build it from model.parameters(), after the model was moved, loaded and wrapped",
                )

    def holds(self, p: torch.Tensor) -> bool:
        return any(_place(one, p) is not None for one in self.optimizers)

    def states(self, p: torch.Tensor) -> list[State]:
        """What each optimizer that steps it remembers; empty before the first step."""
        return [one.state[p] for one in self.optimizers if one.state.get(p)]

    def add_beside(
        self, p: torch.Tensor, like: torch.Tensor, name: str, model: Sequence[torch.Tensor], undo: Transaction
    ) -> None:
        """Step `p` as `like` is stepped, and let it start from a copy of its state.

        It stands where an optimizer that is built anew would hold it: a state dict knows parameters by their number.

        Args:
            model: The model's parameters, in order, `p` among them.
        """
        for one in self.optimizers:
            place = _place(one, like)
            if place is None:
                continue
            _check_apart(one, name)
            group, k = place
            found = _in_order(group["params"], p, model)
            at = k + 1 if found is None else found
            _insert(group["params"], at, p, undo)
            if "param_names" in group:
                _insert(group["param_names"], at, name, undo)
            if one.state.get(like):
                _set(one.state, p, {n: _copy(v) for n, v in one.state[like].items()}, undo)
                self.said.append(f"{name}: a copy of {', '.join(map(str, one.state[like]))}")

    def join(self, p: torch.Tensor, into: torch.Tensor, name: str, owner: str, undo: Transaction) -> None:
        """Step `into` alone, with what was remembered of both."""
        for one in self.optimizers:
            place = _place(one, p)
            if place is None:
                continue
            _check_apart(one, name)
            group, k = place
            if not self.holds(into):
                _swap(group["params"], k, into, undo)
                if "param_names" in group:
                    _swap(group["param_names"], k, owner, undo)
                if one.state.get(p):
                    _set(one.state, into, one.state[p], undo)
                    self.said.append(f"{owner}: what {name} had")
            else:
                _remove(group["params"], k, undo)
                if "param_names" in group:
                    _remove(group["param_names"], k, undo)
                self._joined(one, p, into, name, owner, undo)
            if p in one.state:
                _unset(one.state, p, undo)

    def _joined(self, one: Any, p: torch.Tensor, into: torch.Tensor, name: str, owner: str, undo: Transaction) -> None:
        theirs, ours = one.state.get(p), one.state.get(into)
        if _place(one, into) is None:
            self.said.append(
                f"{owner}: what {name} had in the {type(one).__name__} is gone, another optimizer steps it"
            )
        elif theirs and not ours:
            _set(one.state, into, theirs, undo)
            self.said.append(f"{owner}: what {name} had")
        elif theirs and ours:
            joined = {n: joined_entry(n, v, theirs.get(n)) for n, v in ours.items()}
            _set(one.state, into, joined, undo)
            kept = [n for n in ours if n not in JOINS]
            self.said.append(f"{owner}: joined with {name}" + (f", but for {', '.join(kept)}" if kept else ""))

    def resize(self, p: torch.Tensor, vocab_axis: int, rows: Rows, name: str, undo: Transaction) -> None:
        """Give every entry of the state that has rows other rows."""
        table = tuple(p.shape)
        for one in self.optimizers:
            if _place(one, p) is not None:
                _check_apart(one, name)
            state = one.state.get(p)
            if not state:
                continue
            _check_plain(state, name)
            axes = {n: rows_axis(n, tuple(v.shape), table, vocab_axis) for n, v in state.items() if _is_tensor(v)}
            changed = [n for n, axis in axes.items() if axis is not None]
            fresh = {n: v if axes.get(n) is None else rows(n, v, axes[n]) for n, v in state.items()}  # type: ignore[arg-type]
            _set(one.state, p, fresh, undo)
            self.said.append(f"{name}: {', '.join(changed) or 'nothing'} with its rows")


def _check_apart(one: Any, name: str) -> None:
    """Raise where an optimizer remembers all its parameters in one row of numbers."""
    if isinstance(one, torch.optim.LBFGS) and any(one.state.values()):
        raise TieError(
            f"what the LBFGS remembers cannot be carried over a change of {name!r}",
            got="directions through all parameters at once",
            expected="a state for each parameter, or none yet",
            hint="operate without the optimizer and build it anew: its state starts over",
        )


def _check_plain(state: State, name: str) -> None:
    """Raise where an entry holds tensors inside: nobody says which of their rows are whose."""
    nested = next((n for n, v in state.items() if not _is_tensor(v) and _tensors_in(v)), None)
    if nested is not None:
        raise TieError(
            f"the optimizer's state {nested!r} of {name!r} does not say which of its entries belong to which row",
            got=f"a {type(state[nested]).__name__} of tensors",
            expected="one number for each entry, row or column of the table",
            hint="operate without the optimizer and build it anew: its state starts over",
        )


def _tensors_in(value: Any) -> bool:
    inside = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return any(_is_tensor(v) or _tensors_in(v) for v in inside)


def _in_order(held: Sequence[torch.Tensor], p: torch.Tensor, model: Sequence[torch.Tensor]) -> int | None:
    """Where `p` belongs among parameters that stand in the model's order; None where they do not."""
    order = {id(q): i for i, q in enumerate(model)}
    places = [order.get(id(q), -1) for q in held]
    if -1 in places or places != sorted(places):
        return None
    return sum(i < order[id(p)] for i in places)


def joined_entry(name: str, ours: Any, theirs: Any) -> Any:
    """One entry out of two. Equal ones stay: they were one until now, as behind `untie`."""
    how = JOINS.get(name)
    if theirs is None or how is None:
        return ours
    if not (_is_tensor(ours) and _is_tensor(theirs)):
        return max(ours, theirs) if how == "max" and isinstance(ours, int | float) else ours
    if ours.shape != theirs.shape or torch.equal(ours, theirs.to(ours.device)):
        return ours
    if how == "sum" and ours.numel() == 1:  # a coefficient of the rule, under a name that means a mean elsewhere
        return ours
    with torch.no_grad():
        other = theirs.to(ours.device, ours.dtype)
        return torch.maximum(ours, other) if how == "max" else ours + other


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _copy(value: Any) -> Any:
    return value.detach().clone() if _is_tensor(value) else copy.deepcopy(value)


def _place(one: Any, p: torch.Tensor) -> tuple[dict[str, Any], int] | None:
    for group in one.param_groups:
        for k, held in enumerate(group["params"]):
            if held is p:
                return group, k
    return None


def _insert(held: list[Any], k: int, value: Any, undo: Transaction) -> None:
    held.insert(k, value)
    undo.did(lambda: held.pop(k))


def _swap(held: list[Any], k: int, value: Any, undo: Transaction) -> None:
    before = held[k]
    undo.did(lambda: held.__setitem__(k, before))
    held[k] = value


def _remove(held: list[Any], k: int, undo: Transaction) -> None:
    before = held.pop(k)
    undo.did(lambda: held.insert(k, before))


def _set(state: Any, p: torch.Tensor, value: Mapping[str, Any], undo: Transaction) -> None:
    if p in state:
        before = state[p]
        undo.did(lambda: state.__setitem__(p, before))
    else:
        undo.did(lambda: state.pop(p, None))
    state[p] = dict(value)


def _unset(state: Any, p: torch.Tensor, undo: Transaction) -> None:
    before = state.pop(p)
    undo.did(lambda: state.__setitem__(p, before))
