"""What to say to someone whose model is none that tiebeam knows."""

import os
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from tiebeam.backends.needing import missing
from tiebeam.errors import BackendError

MOST = 60
"""Characters of a text that are shown."""


def unknown_model(model: object, params: Any, *, a_model: bool, known: Sequence[str]) -> BackendError:
    """The refusal, by what was passed instead of a model.

    Args:
        model: What was passed.
        params: What was passed beside it.
        a_model: It is the class of a model of a known kind.
        known: What people call the kinds of models.
    """
    expected = "a model: " + ", ".join(known)
    if isinstance(model, type):
        name = model.__name__
        return BackendError(
            f"{name} is a class" + ("" if a_model else ", and of no kind of model that tiebeam knows"),
            got=f"the class {name} itself",
            expected="a model made of it" if a_model else expected,
            hint=f"pass {name}(...), built as it is for training" if a_model else "pass the model itself",
        )
    if isinstance(model, str | os.PathLike):
        named = str(model)
        shown = named if len(named) <= MOST else f"{named[:MOST]}..."
        return BackendError(
            f"tiebeam cannot look at a {type(model).__name__}: {shown!r} is a name, not a model",
            got=f"{shown!r}",
            expected=expected,
            hint=f"from a shell: tiebeam inspect {shown}; in Python build or load the model first and pass that",
        )
    if callable(model):
        return _function(model, params)
    return BackendError(
        f"tiebeam cannot look at a {type(model).__name__}",
        got=f"{type(model).__module__}.{type(model).__qualname__}",
        expected=expected,
        hint="pass the model itself, not its config, its weights or what holds it",
    )


def _function(model: object, params: Any) -> BackendError:
    name = str(getattr(model, "__name__", type(model).__name__))
    if params is None:
        return BackendError(
            f"tiebeam cannot look at a {type(model).__name__} alone",
            got=f"{name}, and no params",
            expected="a model; or a function of JAX beside its params",
            hint="pass params=, the tree that the function takes as its first argument; or the model itself",
        )
    if find_spec("jax") is None:
        return missing(
            "jax", what=f"{name} is a function beside params, which", extra="jax", got="JAX is not installed"
        )
    return BackendError(
        f"{name} is a function beside params, which is read with JAX",
        got="JAX has not been imported",
        expected="a function and params of JAX",
        hint="import jax first",
    )
