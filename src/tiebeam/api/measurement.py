"""`tiebeam.measure` and `tiebeam.check_gradients`."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

import numpy as np
import numpy.typing as npt

from tiebeam.api.refusals import check_filled, refused_inputs
from tiebeam.backends import resolve
from tiebeam.backends.protocol import Differentiable, Model, Movable, Quantisable, RefusedError
from tiebeam.core.measuring.gradient_check import GradientCheck, check
from tiebeam.core.measuring.measurement import Measurement, assemble
from tiebeam.core.measuring.passes import OwnLoss, Request
from tiebeam.core.reading.records import barriers
from tiebeam.core.seeds import checked_seed
from tiebeam.core.tables import build_tables
from tiebeam.errors import BackendError, InputError

Loss = Callable[[Any, Any], Any]


def measure(
    model: Any,
    batch: Any,
    *,
    params: Any = None,
    loss: Loss | None = None,
    grad: bool = False,
    spectrum: bool = False,
    since: Mapping[str, Any] | None = None,
    optimizer: Any = None,
) -> Measurement:
    """See what one batch does to a model's vocabulary table, each role by itself.

    One forward and one backward pass. Parameters, buffers, `.grad`, modes, hooks and random generators are as
    before: call it between the steps of a training loop, in the middle of accumulation, beside a gradient scaler. The
    gradients are those of the loss itself, of this batch alone.

    Args:
        model: A PyTorch `nn.Module` with values; in JAX a linen, nnx or Equinox module, or a function of params.
        batch: What the model takes, as `inspect` takes it. `labels` in a dict, or one argument more than forward has,
            are the right tokens where the model does not take them; a position of -100 does not count. Labels that
            repeat the ids are moved by one.
        params: For models that hold none.
        loss: `loss(output, batch)` gives a scalar. By default the model's own loss where it returns one, else the
            cross entropy of the labels, else of next tokens; positions where `attention_mask` is 0 do not count.
        grad: Keep the gradients, as `roles["lookup"].grad`.
        spectrum: Decompose the tables' (width, width) Gram matrices, for `tables[0].spectrum`.
        since: Copies of tables at an earlier time, by name, as they lie in memory; `tables[0].drift` says where they
            went: along the readout's descent, or the lookup's.
        optimizer: The one that trains the model, in JAX its state: rows whose state is zero throughout got no gradient
            so far, and `tables[0].silent_rows` counts them.

    Returns:
        The figures. What cannot be told is None, with the reason in `notes`.

    Raises:
        BackendError: The framework has no measuring yet.
        InputError: The model refuses the batch; it is empty or holds no targets; `loss` does not run, or is not finite;
            `since` names no table.

    Example:
        >>> import torch, tiebeam
        >>> from tiebeam.zoo.minigpt import MiniGPTConfig
        >>> from tiebeam.zoo.torch.minigpt import MiniGPT
        >>> model = MiniGPT(MiniGPTConfig.from_scheme("C", vocab=500, width=64))
        >>> found = tiebeam.measure(model, torch.arange(32).view(2, 16))
        >>> found.targets, found.roles["lookup"].rows, found.roles["readout"].rows
        ('next tokens', 30, 500)
        >>> found.tables[0].unaccounted
        0.0
    """
    _check_optimizer(optimizer)
    asked = {"keep": grad, "gram": spectrum, "since": since, "optimizer": optimizer}
    backend, args, kwargs, request = prepared(Differentiable, model, batch, params, loss, **asked)
    try:
        traced, found, passed = backend.differentiate(args, kwargs, request)
    except RefusedError as refused:
        raise refused_inputs(backend, args, kwargs, refused, argument="a batch") from (refused.__cause__ or refused)
    graph = traced.graph
    tables = build_tables(
        found.uses, backend.weights(traced), lambda a, b: False, meta=graph.meta, repeats=graph.repeats
    )
    _check_since(since, [n for t in tables for n in t.names])
    notes = (*graph.notes, *barriers(graph), *(() if tables else ("no vocabulary table was seen",)))
    return assemble(backend.name, backend.framework, tables, found, passed, notes, graph.repeats)


def check_gradients(
    model: Any,
    batch: Any,
    *,
    params: Any = None,
    loss: Loss | None = None,
    rows: int = 4,
    seed: int = 0,
    tolerance: float = 1e-3,
) -> GradientCheck:
    """Hold a backward pass against central differences: is either role's gradient dropped, doubled or wrong?

    A copy of the model, in float64 where it runs so, is run with one row of its table moved, once for each role; rows
    that the batch looks up and rows that it does not are looked at, in a random direction each. It finds a path that a
    hand-written backward pass, a custom autograd function or a fused head has lost, and says which rows would have
    looked right. It takes some `16 * rows` forward passes, and the memory of the copy. The model itself is left alone.

    Args:
        model, batch, params, loss: As for `measure`.
        rows: How many rows of each kind are looked at.
        seed: Of the choice of rows and directions.
        tolerance: Relative error of a slope that is still right.

    Returns:
        The verdict on each role, how many rows are wrong, and every probe.

    Raises:
        BackendError: The framework has no check yet.
        InputError: As `measure`; or no table is read in both roles; or it cannot be moved in one alone; or the model
            cannot be copied.
        RangeError: `rows` is below 1, or `seed` no natural number.

    Source: central differences; the copy draws the same random numbers in every pass.

    Example:
        >>> import torch, tiebeam
        >>> from tiebeam.zoo.minigpt import MiniGPTConfig
        >>> from tiebeam.zoo.torch.minigpt import MiniGPT
        >>> model = MiniGPT(MiniGPTConfig.from_scheme("C", vocab=64, width=16))
        >>> found = tiebeam.check_gradients(model, torch.arange(8)[None])
        >>> found.ok, found.lookup, found.readout, found.wrong_rows
        (True, 'kept', 'kept', 0)
    """
    seed = checked_seed(seed)
    backend, args, kwargs, request = prepared(Movable, model, batch, params, loss)
    try:
        table, notes = backend.movable(args, kwargs, request)
    except RefusedError as refused:
        raise refused_inputs(backend, args, kwargs, refused, argument="a batch") from (refused.__cause__ or refused)
    return check(table, rows=rows, seed=seed, tolerance=tolerance, notes=notes)


_ASKED: dict[type, tuple[str, str]] = {
    Differentiable: ("measure", "a model of PyTorch, JAX or Keras"),
    Movable: ("check_gradients", "a model of PyTorch, JAX or Keras"),
    Quantisable: ("sensitivity", "a model of PyTorch or JAX, or of Keras on one of them"),
}
"""What a model must be able to do, what asks it, and whose can."""


def prepared(
    able: type, model: Any, batch: Any, params: Any, loss: Loss | None, **asked: Any
) -> tuple[Any, tuple[Any, ...], dict[str, Any], Request]:
    """The backend, the model's arguments, and what is asked of the pass."""
    backend = resolve(model, params)
    called, expected = _ASKED[able]
    if not isinstance(backend, able):
        raise BackendError(
            f"{called} does not know this kind of model of {backend.framework} yet",
            got=backend.name,
            expected=expected,
        )
    given, labels, mask = _targets_apart(backend, batch)
    args, kwargs = backend.arguments(given)
    check_filled("the batch is", args, kwargs)
    check_callable("loss", loss, "a function of what the model returns and the batch")
    own = None if loss is None else OwnLoss(loss, batch)
    return backend, args, kwargs, Request(own, labels, mask, **asked)


def _check_optimizer(optimizer: Any) -> None:
    """Refuse what is no optimizer and no state of one: a name, a number, a class, a function or a pair of them."""
    parts = optimizer if isinstance(optimizer, tuple) and optimizer else (optimizer,)
    if isinstance(optimizer, str | bytes | int | float | type) or all(map(inspect.isroutine, parts)):
        raise InputError(
            "optimizer= is no optimizer, and no state of one",
            got=repr(optimizer)[:80],
            expected="the optimizer that trains the model; in JAX its state",
            hint="leave it out, or pass the object that steps (in JAX: what tx.init or tx.update returned)",
        )


def _check_since(since: Mapping[str, Any] | None, names: Sequence[str]) -> None:
    """Refuse earlier values of which none is a table's: no drift would be said, and no reason. Others may be there."""
    if since and names and not set(since) & set(names):
        [near] = get_close_matches(str(next(iter(since))), names, 1, cutoff=0.0)
        raise InputError(
            "since= holds no earlier values of a table",
            got=", ".join(list(since)[:4]),
            expected=f"one of {', '.join(names)}",
            hint=f"since={{{near!r}: ...}}",
        )


def _targets_apart(backend: Model, batch: Any) -> tuple[Any, npt.NDArray[Any] | None, npt.NDArray[Any] | None]:
    """The batch as the model takes it, the labels where it does not take them, and the mask."""
    if isinstance(batch, Mapping):
        given = dict(batch)
        mask = _array(given.get("attention_mask"))
        if "labels" in given and not _takes(backend.forward, (), given):
            labels = _array(given.pop("labels"))
            return given, labels, mask
        return given, None, mask
    if isinstance(batch, tuple) and len(batch) > 1 and not _takes(backend.forward, batch, {}):
        *given_first, last = batch
        return tuple(given_first), _array(last), None
    return batch, None, None


def _takes(forward: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call would bind."""
    try:
        signature = inspect.signature(forward)
    except (TypeError, ValueError):
        return True
    try:
        signature.bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def _array(value: Any) -> npt.NDArray[Any] | None:
    """A small array of integers on the host."""
    if value is None:
        return None
    held = value.detach().cpu() if hasattr(value, "detach") else value
    return np.asarray(held)


def check_callable(name: str, given: Any, expected: str) -> None:
    """Refuse what cannot be called, before anything runs.

    Raises:
        InputError: It is neither None nor a function.
    """
    if given is not None and not callable(given):
        raise InputError(f"{name}= cannot be called", got=repr(given), expected=expected)
