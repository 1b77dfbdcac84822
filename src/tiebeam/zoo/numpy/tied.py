"""A tied model small enough to differentiate by hand: the table's gradient is a sum of two paths.

    x = table[ids] * lookup_factor
    h = x                                                     (no hidden layer), or
    h = res * x + tanh(x @ w_in + b_in) @ w_out + b_out
    logits = h @ readout.T * readout_factor                   (readout is the table itself when tied)
    loss = mean cross entropy

The readout path is dense (every row is scored for every token); the lookup path is sparse (only rows that
were read). Each can be dropped or doubled, which is how hand-written backward passes go wrong.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from tiebeam.errors import InputError, RangeError, ShapeError

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.integer]
Path = Literal["kept", "dropped", "doubled"]

_TIMES: dict[str, float] = {"kept": 1.0, "dropped": 0.0, "doubled": 2.0}
_HIDDEN = ("w_in", "b_in", "w_out", "b_out")


class Gradients(NamedTuple):
    """What one backward pass gives.

    Attributes:
        loss: Mean cross entropy. Unit: nats.
        parameters: Gradient of every parameter by name, shaped like it.
        lookup_path: What the lookup sends to its table, (vocab, width), whatever was dropped or doubled.
        readout_path: What the readout sends to its table, likewise.
    """

    loss: float
    parameters: dict[str, Floats]
    lookup_path: Floats
    readout_path: Floats


class _Pass(NamedTuple):
    """One forward pass, with what the backward pass needs."""

    ids: Ints  # (tokens,)
    x: Floats  # (tokens, width)
    active: Floats | None  # (tokens, hidden)
    h: Floats  # (tokens, width)
    logits: Floats  # (tokens, vocab)


@dataclass(frozen=True, eq=False)
class TiedModel:
    """A table read at both ends, with at most one hidden layer between.

    Attributes:
        table: (vocab, width), float64.
        readout: The readout's own table, (vocab, width), or None: tied.
        w_in, b_in, w_out, b_out: The hidden layer, (width, hidden), (hidden,), (hidden, width), (width,);
            all of them or none.
        res: How much of the looked-up row goes past the hidden layer.
        lookup_factor: Multiplies the rows.
        readout_factor: Multiplies the logits.

    Raises:
        ShapeError: Two arrays do not fit.
        RangeError: Only a part of the hidden layer was given.

    Example:
        >>> model = TiedModel(np.array([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0]]))
        >>> model.logits(np.array([0, 2, 0]))
        array([[1., 2., 0.],
               [0., 0., 1.],
               [1., 2., 0.]])
    """

    table: Floats
    readout: Floats | None = None
    w_in: Floats | None = None
    b_in: Floats | None = None
    w_out: Floats | None = None
    b_out: Floats | None = None
    res: float = 1.0
    lookup_factor: float = 1.0
    readout_factor: float = 1.0

    def __post_init__(self) -> None:
        given = [name for name in _HIDDEN if getattr(self, name) is not None]
        if given and len(given) < len(_HIDDEN):
            raise RangeError("a part of the hidden layer is missing", got=", ".join(given), expected=", ".join(_HIDDEN))
        if self.table.ndim != 2:
            raise ShapeError("table of TiedModel", got=str(self.table.shape), expected="(vocab, width)")
        vocab, width = self.table.shape
        hidden = self.w_in.shape[-1] if self.w_in is not None else 0
        shapes = {
            "readout": (vocab, width),
            "w_in": (width, hidden),
            "b_in": (hidden,),
            "w_out": (hidden, width),
        }
        for name, shape in {**shapes, "b_out": (width,)}.items():
            array = getattr(self, name)
            if array is not None and array.shape != shape:
                raise ShapeError(f"{name} of TiedModel does not fit", got=str(array.shape), expected=str(shape))

    @classmethod
    def random(
        cls,
        vocab: int,
        width: int,
        *,
        hidden: int | None = None,
        tie: bool = True,
        table_std: float | None = None,
        res: float = 1.0,
        lookup_factor: float = 1.0,
        readout_factor: float = 1.0,
        seed: int = 0,
    ) -> "TiedModel":
        """Return a model of normal draws.

        Args:
            vocab: Rows of the table.
            width: Columns of the table.
            hidden: Width of the hidden layer; None is no such layer.
            tie: Whether the readout is the table itself.
            table_std: Of both tables; None is `1 / sqrt(width)`, logits of std 1 for a hidden RMS of 1.
            res: How much of the row goes past the hidden layer.
            lookup_factor: Multiplies the rows.
            readout_factor: Multiplies the logits.
            seed: Of NumPy's default generator. The hidden layer's weights have std `1 / sqrt(fan in)`.

        Example:
            >>> TiedModel.random(64, 16, tie=False).tied
            False
        """
        rng = np.random.default_rng(seed)
        std = width**-0.5 if table_std is None else table_std
        model = cls(
            table=rng.normal(0.0, std, (vocab, width)),
            readout=None if tie else rng.normal(0.0, std, (vocab, width)),
            res=res,
            lookup_factor=lookup_factor,
            readout_factor=readout_factor,
        )
        if hidden is None:
            return model
        return replace(
            model,
            w_in=rng.normal(0.0, width**-0.5, (width, hidden)),
            b_in=np.zeros(hidden),
            w_out=rng.normal(0.0, hidden**-0.5, (hidden, width)),
            b_out=np.zeros(width),
        )

    @property
    def tied(self) -> bool:
        """Whether the readout is the table itself."""
        return self.readout is None

    @property
    def parameters(self) -> dict[str, Floats]:
        """Every parameter once, by the name of its field."""
        names = ("table", "readout", *_HIDDEN)
        return {name: array for name in names if (array := getattr(self, name)) is not None}

    def with_parameters(self, **arrays: Floats) -> "TiedModel":
        """Return the model with some parameters replaced, by the names of `parameters`.

        Raises:
            ShapeError: One does not fit.
        """
        changes: dict[str, Any] = {**arrays}
        return replace(self, **changes)

    def logits(self, ids: Ints) -> Floats:
        """Return the scores of every token after each of `ids`: shape of ids + (vocab,). Unit: nats.

        Raises:
            InputError: `ids` are no integers, or lie outside the table.
        """
        return self._forward(ids).logits.reshape(*np.shape(ids), -1)

    def loss(self, ids: Ints, targets: Ints) -> float:
        """Return the mean cross entropy of `targets`, shaped like `ids`. Unit: nats."""
        logits = self._forward(ids).logits
        right = _checked("targets", targets, len(self.table), like=ids)
        return float(np.mean(_log_sum_exp(logits) - logits[np.arange(right.size), right]))

    def backward(self, ids: Ints, targets: Ints, *, lookup: Path = "kept", readout: Path = "kept") -> Gradients:
        """Return the gradient of the mean cross entropy, written out by hand.

        Args:
            ids: Token ids of any shape.
            targets: The right next tokens, shaped like `ids`.
            lookup: What becomes of the path through the lookup on its way to the table.
            readout: What becomes of the path through the readout.

        Raises:
            InputError: Ids or targets are no integers, lie outside the table, or differ in shape.
            RangeError: A path is neither kept, dropped nor doubled.

        Example:
            >>> model = TiedModel.random(64, 16, seed=1)
            >>> ids = np.arange(8)
            >>> right = model.backward(ids, ids[::-1]).parameters["table"]
            >>> wrong_rows(model.backward(ids, ids[::-1], lookup="dropped").parameters["table"], right)
            8
        """
        times = _times(lookup), _times(readout)
        run = self._forward(ids)
        right = _checked("targets", targets, len(self.table), like=ids)
        at_target = np.arange(right.size), right
        norm = _log_sum_exp(run.logits)
        loss = float(np.mean(norm - run.logits[at_target]))

        d_logits = np.exp(run.logits - norm[:, None])
        d_logits[at_target] -= 1.0
        d_logits *= self.readout_factor / right.size
        readout_path = d_logits.T @ run.h
        d_x, parameters = self._backward_hidden(run, d_logits @ self._readout_table)
        lookup_path = np.zeros_like(self.table)
        np.add.at(lookup_path, run.ids, d_x * self.lookup_factor)  # a token read twice adds twice

        parameters["table"] = times[0] * lookup_path
        if self.tied:
            parameters["table"] += times[1] * readout_path
        else:
            parameters["readout"] = times[1] * readout_path
        return Gradients(loss, parameters, lookup_path, readout_path)

    @property
    def _hidden(self) -> tuple[Floats, Floats, Floats, Floats] | None:
        if self.w_in is None or self.b_in is None or self.w_out is None or self.b_out is None:
            return None
        return self.w_in, self.b_in, self.w_out, self.b_out

    @property
    def _readout_table(self) -> Floats:
        return self.table if self.readout is None else self.readout

    def _forward(self, ids: Ints) -> _Pass:
        flat = _checked("ids", ids, len(self.table))
        x = self.table[flat] * self.lookup_factor
        active, h = None, x
        if self._hidden is not None:
            w_in, b_in, w_out, b_out = self._hidden
            active = np.tanh(x @ w_in + b_in)
            h = self.res * x + active @ w_out + b_out
        return _Pass(flat, x, active, h, (h @ self._readout_table.T) * self.readout_factor)

    def _backward_hidden(self, run: _Pass, d_h: Floats) -> tuple[Floats, dict[str, Floats]]:
        """Return the gradient of x and of the hidden layer's parameters, from that of h."""
        if self._hidden is None or run.active is None:
            return d_h, {}
        w_in, _, w_out, _ = self._hidden
        d_inner = (d_h @ w_out.T) * (1.0 - run.active**2)
        grads = {
            "w_in": run.x.T @ d_inner,
            "b_in": d_inner.sum(axis=0),
            "w_out": run.active.T @ d_h,
            "b_out": d_h.sum(axis=0),
        }
        return self.res * d_h + d_inner @ w_in.T, grads


def central_differences(function: Callable[[Floats], float], at: Floats, *, step: float = 1e-5) -> Floats:
    """Return the gradient of `function` at `at`, two evaluations for each entry.

    Args:
        function: A scalar of an array shaped like `at`, smooth there.
        at: Any shape, float64.
        step: Half the distance between the two; the error is of order `step**2` and `1e-16 / step`.

    Example:
        >>> central_differences(lambda a: float((a**3).sum()), np.array([1.0, 2.0])).round(6)
        array([ 3., 12.])
    """
    gradient = np.empty_like(at)
    for index in np.ndindex(at.shape):
        above, below = at.copy(), at.copy()
        above[index] += step
        below[index] -= step
        gradient[index] = (function(above) - function(below)) / (2.0 * step)
    return gradient


def numeric_gradients(model: TiedModel, ids: Ints, targets: Ints, *, step: float = 1e-5) -> dict[str, Floats]:
    """Return what `model.backward(ids, targets).parameters` must be, by central differences alone."""

    def gradient(name: str, array: Floats) -> Floats:
        return central_differences(lambda a: model.with_parameters(**{name: a}).loss(ids, targets), array, step=step)

    return {name: gradient(name, array) for name, array in model.parameters.items()}


def wrong_rows(got: Floats, right: Floats, *, tolerance: float = 1e-7) -> int:
    """Count the rows of `got` that differ from `right` by more than `tolerance` of its largest entry.

    Example:
        >>> wrong_rows(np.array([[1.0], [2.0]]), np.array([[1.0], [3.0]]))
        1
    """
    if got.shape != right.shape:
        raise ShapeError("two gradients do not fit", got=str(got.shape), expected=str(right.shape))
    return int(np.count_nonzero(np.abs(got - right).max(axis=-1) > tolerance * np.abs(right).max()))


def own_rank(logits: Floats, ids: Ints) -> float:
    """Return the mean rank, 1 being first, of the token just read among the logits that follow it.

    Args:
        logits: Shape of ids + (vocab,).
        ids: The tokens that were read.

    Returns:
        Between 1 and vocab; (vocab + 1) / 2 by chance. Equal logits share their mean rank.

    Example:
        >>> own_rank(np.array([[0.0, 2.0, 1.0]]), np.array([2]))
        2.0
    """
    own = np.take_along_axis(logits, np.asarray(ids)[..., None], axis=-1)
    above = (logits > own).sum(axis=-1)
    equal = (logits == own).sum(axis=-1)
    return float(np.mean(above + (equal + 1) / 2))


def _log_sum_exp(logits: Floats) -> Floats:
    top: Floats = logits.max(axis=-1)
    total: Floats = top + np.log(np.exp(logits - top[:, None]).sum(axis=-1))
    return total


def _times(path: str) -> float:
    if path not in _TIMES:
        raise RangeError("a path of the gradient", got=repr(path), expected=f"one of {', '.join(_TIMES)}")
    return _TIMES[path]


def _checked(name: str, ids: Ints, vocab: int, like: Ints | None = None) -> Ints:
    """Return `ids` as one row, checked: negative ones would silently read from the table's end."""
    array = np.asarray(ids)
    if like is not None and array.shape != np.shape(like):
        raise InputError(f"{name} and ids differ in shape", got=str(array.shape), expected=str(np.shape(like)))
    if not np.issubdtype(array.dtype, np.integer) or array.size == 0:
        raise InputError(f"{name} of TiedModel", got=f"{array.dtype} {array.shape}", expected="at least one integer")
    if array.min() < 0 or array.max() >= vocab:
        raise InputError(
            f"{name} lie outside the table",
            got=f"values from {array.min()} to {array.max()}",
            expected=f"0 to {vocab - 1}",
        )
    return array.ravel()
