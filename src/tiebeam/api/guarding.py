"""`tiebeam.guard`."""

from collections.abc import Sequence
from typing import Any

from tiebeam.api.look import look
from tiebeam.api.operating import site_of
from tiebeam.backends.protocol import Guard
from tiebeam.errors import InputError


def guard(
    model: Any,
    inputs: Any = None,
    *,
    ties: Sequence[Sequence[str]] | None = None,
    apart: Sequence[Sequence[str]] = (),
) -> Guard:
    """Watch the ties of a live model: fail the moment one breaks, and name the call that broke it.

    As a context manager it raises when the line that parted a tie is done, before a step of any optimizer, and at the
    end of the block. A call that parts a tie and joins it again (`functional_call`; Hugging Face's
    `resize_token_embeddings`) is no harm. Nothing is patched: the modules that hold the tie report what is put into
    them, and hold plain dictionaries again afterwards.

    `guard(model).check(copy)` holds a copy against it (of `deepcopy`, `AveragedModel`, a pickle, an exported program).
    `guard(model).hook` is a function for hooks: `optimizer.register_step_pre_hook(guard(model).hook)`.

    Args:
        model: A PyTorch model.
        inputs: As for `inspect`; only where no parameter has two names, to see whether one is read in both roles.
        ties: Groups of names to watch; None: all that are one parameter now.
        apart: Groups of names that are parameters of their own and must stay so: a loader that goes by a wrong flag
            ties them, and one of two trained matrices is gone.

    Raises:
        InputError: There is no tie to watch.
        BackendError: The model is of a framework whose parameters cannot come apart: in JAX and Keras a tie is in the
            program.

    The guard itself raises TieBroken.

    Example:
        >>> import tiebeam
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 9, bias=False))
        >>> model[1].weight = model[0].weight
        >>> with tiebeam.guard(model):
        ...     _ = model.to("meta").to_empty(device="cpu")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        tiebeam.errors.TieBroken: '1.weight' and '0.weight' of Sequential are no longer one parameter, since ...
    """
    site = site_of(model, None, "guard")
    found = tuple(tuple(group) for group in ties) if ties is not None else site.operator.groups()
    if not found and not apart:
        found = _in_one_name(model, inputs)
    return site.operator.guard(found, tuple(tuple(group) for group in apart))


def _in_one_name(model: Any, inputs: Any) -> tuple[tuple[str, ...], ...]:
    """The table that the model's code reads in both roles under one name: it can be taken out, not come apart."""
    tables = look(model, inputs).tables
    found = tuple((t.name,) for t in tables if t.state == "tied")
    if not found:
        raise InputError(
            f"there is no tie to watch in {type(model).__name__}",
            got="; ".join(f"{t.name}: {t.state}" for t in tables) or "no vocabulary table",
            expected="a parameter with two names, or one that is read in both roles",
            hint="tiebeam.tie(model) first; or say which names belong together: ties=[(..., ...)]",
        )
    return found
