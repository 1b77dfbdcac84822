"""What to raise where the model's own forward pass raised."""

import inspect
from collections.abc import Mapping
from typing import Any

from tiebeam.backends.protocol import Model, RefusedError, Tabled
from tiebeam.core.finding import Finding
from tiebeam.errors import InputError, ShapeError

MOST = 8
"""Tables that are named."""

ARRAYS = {"torch": "torch.tensor", "jax": "jax.numpy.array", "keras": "numpy.array"}
"""What makes an array of a list."""

INTEGERS = {"torch": "ids.long()", "jax": "ids.astype(int)", "keras": "ids.astype(int)"}
"""What makes ids of floats."""


class UnloadedError(InputError):
    """The model cannot run because some of its parameters have no values."""

    def __init__(self, finding: Finding) -> None:
        self.finding = finding
        super().__init__(f"{finding.where!r}: {finding.message}", hint=finding.hint)


def check_filled(what: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Refuse arguments without a token: nothing that a pass over them shows is of the model.

    Args:
        what: What is refused, with its verb: "the batch is".

    Raises:
        InputError: All that have a shape are empty.
    """
    sizes = [tuple(v.shape) for v in (*args, *kwargs.values()) if hasattr(v, "shape")]
    if sizes and all(0 in s for s in sizes):
        raise InputError(f"{what} empty", got=", ".join(map(str, sizes)), expected="at least one token")


def refused_inputs(
    backend: Model,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    refused: RefusedError,
    *,
    argument: str = "inputs=",
) -> InputError | ShapeError:
    """What to raise.

    Args:
        argument: What the caller gave them as.
    """
    error = refused.__cause__ or refused
    why = backend.diagnose()
    if isinstance(why, ShapeError) and isinstance(error, RuntimeError):  # what PyTorch raises where shapes do not fit
        return why
    if isinstance(why, Finding):
        return UnloadedError(why)
    given = [("", a) for a in args] + [(f"{k}=", v) for k, v in kwargs.items()]
    ids = [v for _, v in given if _holds_ids(v)]
    # Other indices, a shape's for one, say "tuple index out of range" or name a dimension.
    if ids and isinstance(error, IndexError) and ("out of range in self" in str(error) or "of bounds" in str(error)):
        return _outside(backend, ids, error, argument)
    plain = any(isinstance(v, list | int) and not isinstance(v, bool) for _, v in given)
    plain = plain or any(len(v.shape) == 1 for v in ids)
    as_array = f"token ids are an array of shape (rows, tokens): {ARRAYS[backend.framework]}([[1, 2, 3]])"
    return InputError(
        f"{backend.name} does not run on these inputs: {type(error).__name__}: {error}",
        got=", ".join(f"{name}{_kind(v)}" for name, v in given) or "no inputs",
        expected=f"what its forward takes: {_signature(backend)}",
        hint=as_array
        if plain
        else f"token ids are integers: {INTEGERS[backend.framework]}"
        if not ids and _wants_integers(error) and any(_holds_floats(v) for _, v in given)
        else f"pass {argument}, a tuple for positional or a dict for keyword arguments, with which model(...) runs",
    )


def _wants_integers(error: BaseException) -> bool:
    """Whether the framework says so of what it was given; PyTorch calls them by their type."""
    return any(word in str(error) for word in ("integer", "Long, Int"))


def _holds_floats(value: Any) -> bool:
    return "float" in str(getattr(value, "dtype", ""))


def _outside(backend: Model, ids: list[Any], error: BaseException, argument: str) -> InputError:
    """An id, or a position, that a table has no row for."""
    rows = backend.table_rows() if isinstance(backend, Tabled) else {}
    named = ", ".join(f"{name} {n}" for name, n in list(rows.items())[:MOST]) + (", ..." if len(rows) > MOST else "")
    longest, largest = max(int(v.shape[-1]) for v in ids), max(int(v.max()) for v in ids)
    fits = max((n for n in rows.values() if n < longest), default=None)
    advice = [f"pass {argument} with ids"]
    advice += [f"below {max(rows.values())}"] if rows and largest >= max(rows.values()) else ["that their table has"]
    if fits is not None:
        advice.append(
            f"and rows of at most {fits} (--tokens {fits} of commands that have it), where positions have a table"
        )
    return InputError(
        f"{backend.name} does not run on these inputs: {type(error).__name__}: {error}",
        got=f"{', '.join(_kind(v) for v in ids)}: {longest} ids in a row, the largest {largest}",
        expected="an id, or a position, below the rows of its table" + (f": {named}" if named else ""),
        hint=" ".join(advice),
    )


def _holds_ids(value: Any) -> bool:
    return "int" in str(getattr(value, "dtype", "")) and len(value.shape) > 0 and 0 not in value.shape


def _kind(value: Any) -> str:
    shape, kind = getattr(value, "shape", None), type(value).__name__.removesuffix("Impl")
    if shape is None:
        return kind
    dtype = getattr(value, "dtype", None)  # float ids are a common mistake
    return f"{kind}{tuple(shape)} of {getattr(dtype, 'name', None) or str(dtype).removeprefix('torch.')}"


def _signature(backend: Model) -> str:
    try:
        return str(inspect.signature(backend.forward))
    except (TypeError, ValueError):
        return "unknown"
