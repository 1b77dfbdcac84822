"""A tensor with other rows in place of the old one: the object stays, so ties, groups and hooks stay with it."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from tiebeam.backends.torch.operations.remembered import Remembered
from tiebeam.backends.torch.operations.slots import Slot, beside_in_memory, check_plain, find, slots_of
from tiebeam.backends.torch.parts import unrecorded
from tiebeam.core.operations.rows import Moments, RowPlan, new_rows
from tiebeam.core.operations.state import of_new_rows
from tiebeam.core.operations.transaction import Transaction
from tiebeam.errors import TieError

PIECE = 1 << 20
"""Elements of the old table that are looked at at a time."""

SIZES = (("num_embeddings", "out_features"), ("in_features", "nf", "num_embeddings", "out_features"))
"""What modules that hold a table call its count of rows, where rows are on the first axis, and on the second.

No other number that happens to be equal is one: a model that holds its table itself may have a context of that length.
"""


@dataclass(frozen=True)
class Resized:
    """One tensor to be given other rows.

    Attributes:
        axis: Of its rows.
        ordinal: Which table it is, for the draws; None for a bias.
    """

    name: str
    tensor: torch.Tensor
    axis: int
    places: tuple[Slot, ...]
    ordinal: int | None


def wanted(model: nn.Module, name: str, vocab: int, axis: int | None, ordinal: int | None) -> Resized:
    """What there is to resize under a name.

    Args:
        axis: Of the rows; None: the one axis that is as long as the vocabulary.

    Raises:
        TieError: It cannot be given other rows.
    """
    tensor = find(model, name).tensor
    check_plain(tensor, name)
    fitting = [i for i, n in enumerate(tensor.shape) if n == vocab]
    axis = fitting[0] if axis is None and len(fitting) == 1 else axis
    if axis is None or tensor.shape[axis] != vocab:
        raise TieError(
            f"{name!r} has no axis of the vocabulary", got=f"{tuple(tensor.shape)}", expected=f"{vocab} on one"
        )
    if tensor.grad is not None and tensor.grad.layout != torch.strided:
        raise TieError(f"{name!r} holds a sparse gradient", expected="none", hint="resize behind optimizer.zero_grad()")
    _check_alone(model, tensor, name)
    return Resized(name, tensor, axis, tuple(slots_of(model, tensor)), ordinal)


def _check_alone(model: nn.Module, tensor: torch.Tensor, name: str) -> None:
    """Raise where another parameter lies in the same memory: it would be left behind."""
    beside = beside_in_memory(model, tensor)
    if not beside:
        return
    other, _, shared = next((b for b in beside if b[2]), beside[0])
    raise TieError(
        f"{name!r} and {other!r} are two parameters in one storage",
        got="the same elements" if shared else "parts of one buffer",
        expected="one parameter, or two in memory of their own",
        hint=f"tiebeam.retie(model, ties=[({name!r}, {other!r})]) makes them one"
        if shared
        else "resize before the parameters are laid into one buffer",
    )


def resize(one: Resized, plan: RowPlan, remembered: Remembered, undo: Transaction) -> None:
    """Give a tensor, its gradient, its optimizer's state and its modules' sizes other rows."""
    with torch.inference_mode(one.tensor.is_inference()):  # the new memory has to be of the old one's kind
        _resize(one, plan, remembered, undo)


def _resize(one: Resized, plan: RowPlan, remembered: Remembered, undo: Transaction) -> None:
    tensor = one.tensor
    fresh = rows_of(tensor.detach(), one.axis, plan, one.ordinal)
    grad = tensor.grad
    new_grad = None if grad is None else _taken(grad, one.axis, plan, 0.0)
    remembered.resize(
        tensor, one.axis, lambda entry, v, axis: _state_rows(entry, v, axis, plan), one.name, undo
    )  # fmt: skip
    before = tensor.data

    def put_back() -> None:
        with torch.inference_mode(tensor.is_inference()):
            _set_data(tensor, before)
        tensor.grad = grad

    undo.did(put_back)
    tensor.grad = None
    _set_data(tensor, fresh)
    tensor.grad = new_grad
    for place in one.places:
        _set_sizes(place, one, plan, undo)


def _set_data(tensor: torch.Tensor, data: torch.Tensor) -> None:
    # A graph that is still held (the last loss) keeps the node that takes the gradient in, and with it the old shape.
    # PyTorch makes a new one where the dtype changes, and only there.
    other = torch.float64 if data.dtype != torch.float64 else torch.float32
    tensor.data = torch.empty(0, dtype=other, device=data.device)
    tensor.data = data
    if not tensor.is_inference():
        with torch.no_grad():
            tensor[:0].zero_()  # counts as a write: a backward pass that needs the old rows says so


def _state_rows(entry: str, value: torch.Tensor, axis: int, plan: RowPlan) -> torch.Tensor:
    if of_new_rows(entry) == "zero" or not value.is_floating_point() or not len(plan.new):
        return _taken(value, axis, plan, 0.0)
    taken = _taken(value, axis, plan, 0.0)
    mean = value.float().mean(dim=axis, keepdim=True).to(value.dtype)
    new = torch.from_numpy(plan.new).to(value.device)
    shape = list(value.shape)
    shape[axis] = len(new)
    return taken.index_copy(axis, new, mean.expand(shape).contiguous())


def _taken(value: torch.Tensor, axis: int, plan: RowPlan, fill: float) -> torch.Tensor:
    """The rows that are kept, each in its new place, and `fill` in the others."""
    shape = list(value.shape)
    shape[axis] = plan.after
    made = torch.full(shape, fill, dtype=value.dtype, device=value.device)
    kept = np.flatnonzero(plan.source >= 0)
    if len(kept) and not value.is_meta:
        to, of = (torch.from_numpy(i).to(value.device) for i in (kept, plan.source[kept]))
        with torch.no_grad():
            made.index_copy_(axis, to, value.detach().index_select(axis, of))
    return made


def rows_of(old: torch.Tensor, axis: int, plan: RowPlan, ordinal: int | None) -> torch.Tensor:
    """The new tensor: kept rows bit by bit, others by the plan.

    Args:
        old: Any floats; a bias has one axis longer than one.
        axis: Of the rows.
        ordinal: Which table, for its draws; None: a bias, whose new entries are the mean of the others.

    Example:
        >>> from tiebeam.core.operations.rows import plan_rows
        >>> rows_of(torch.ones(2, 3), 0, plan_rows(2, 3, rows="mean"), 0).tolist()[2]
        [1.0, 1.0, 1.0]
    """
    made = _taken(old, axis, plan, 0.0)
    if old.is_meta or not len(plan.new):
        return made
    into = made.movedim(axis, 0).reshape(plan.after, -1) if axis else made.view(plan.after, -1)
    rows = old.movedim(axis, 0).reshape(plan.before, -1)
    with unrecorded(made):
        for new, pieces in plan.parts.items():
            into[new] = rows[list(pieces)].double().mean(0).to(into.dtype)
        if ordinal is None:
            _fill_bias(into, rows, plan)
        elif len(plan.drawn):
            seen = Moments(rows.shape[1], covariance=plan.how == "covariance")
            for piece in _pieces(rows):
                seen.take(piece.float().cpu().numpy() if piece.dtype != torch.float64 else piece.cpu().numpy())
            for where, entries in new_rows(plan, seen, ordinal):
                into[torch.from_numpy(where).to(into.device)] = torch.from_numpy(np.array(entries)).to(into)
    return into.view(plan.after, *made.movedim(axis, 0).shape[1:]).movedim(0, axis).contiguous() if axis else made


def _fill_bias(into: torch.Tensor, rows: torch.Tensor, plan: RowPlan) -> None:
    """The mean of the others; an entry of minus infinity (a token that is never to come) is not one of them."""
    where = torch.from_numpy(plan.drawn).to(into.device)
    finite = rows.double()[torch.isfinite(rows).all(1)]
    zero = plan.how in ("zeros",) or not len(finite)
    into[where] = 0.0 if zero else finite.mean(0).to(into.dtype)


def _pieces(rows: torch.Tensor) -> Iterator[torch.Tensor]:
    yield from rows.split(max(1, PIECE // max(1, rows.shape[1])))


def _set_sizes(place: Slot, one: Resized, plan: RowPlan, undo: Transaction) -> None:
    """Let the module that holds it know: its counts of rows, and which row is padding."""
    module = place.module
    square = set(one.tensor.shape) == {plan.after, plan.before}
    for name in SIZES[one.axis][: 2 if square else None]:
        if type(value := vars(module).get(name)) is int and value == plan.before:
            _attribute(module, name, plan.after, undo)
    row = getattr(module, "padding_idx", None)
    if isinstance(module, nn.Embedding | nn.EmbeddingBag) and row is not None:
        moved = plan.moved(row)
        if moved is None:
            raise TieError(
                f"the padding row of {one.name!r} would be dropped",
                got=f"padding_idx={row}, which no new row comes from",
                expected="a padding row that is kept",
                hint="map some new id to it, or set padding_idx=None first",
            )
        _attribute(module, "padding_idx", moved, undo)


def _attribute(holder: nn.Module, name: str, value: int, undo: Transaction) -> None:
    before = getattr(holder, name)
    undo.did(lambda: setattr(holder, name, before))
    setattr(holder, name, value)
