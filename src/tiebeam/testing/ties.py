"""Assertions about ties, for the tests of whoever builds or changes models."""

from collections.abc import Callable
from typing import Any

import tiebeam
from tiebeam.backends import entry_of
from tiebeam.errors import BackendError, TieBroken


def assert_tied(model: Any, inputs: Any = None, *, params: Any = None) -> None:
    """Raise unless one parameter of the model is read in both roles.

    Args:
        model, inputs, params: As for `tiebeam.inspect`, in any framework.

    Raises:
        TieBroken: No table is in the state "tied"; an AssertionError.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Embedding(99, 8), nn.Linear(8, 99, bias=False))
        >>> assert_tied(model, torch.arange(8)[None])
        Traceback (most recent call last):
        tiebeam.errors.TieBroken: Sequential is not tied
          got: 0.weight: untied; 1.weight: untied
          expected: one parameter that is looked up and read out
        Hint: tiebeam.tie(model, inputs)
    """
    __tracebackhide__ = True  # pytest shows the line of the test
    report = tiebeam.inspect(model, inputs, params=params)
    if all(t.state != "tied" for t in report.tables):
        raise TieBroken(
            f"{report.model} is not tied",
            got="; ".join(f"{t.name}: {t.state}" for t in report.tables) or "no vocabulary table",
            expected="one parameter that is looked up and read out",
            hint="tiebeam.tie(model, inputs)" if report.framework == "torch" else "let both roles read one parameter",
        )


def assert_survives(model: Any, operation: Callable[[Any], Any], inputs: Any = None) -> Any:
    """Run an operation on a model and raise unless its ties are as they were.

    Args:
        model: A PyTorch model.
        operation: Takes the model and changes it in place, or returns another one (a copy, a wrapper).
        inputs: As for `tiebeam.guard`.

    Returns:
        What the operation returned.

    Raises:
        TieBroken: A tie is gone, in the model or in the one that was returned; the call that did it is named.
        InputError: There is no tie to begin with.

    Example:
        >>> import copy
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Embedding(99, 8), nn.Linear(8, 99, bias=False))
        >>> model[1].weight = model[0].weight
        >>> copied = assert_survives(model, copy.deepcopy)
        >>> assert_survives(model, lambda m: m.to("meta").to_empty(device="cpu"))  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        tiebeam.errors.TieBroken: '1.weight' and '0.weight' of Sequential are no longer one parameter, since ...
    """
    __tracebackhide__ = True  # pytest shows the line of the test
    guard = tiebeam.guard(model, inputs)
    with guard:
        result = operation(model)
    if result is not None and result is not model and _is_model(result):
        guard.check(result)
    return result


def _is_model(thing: Any) -> bool:
    try:
        entry_of(thing)
    except BackendError:
        return False
    return True
