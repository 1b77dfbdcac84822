"""One folder a framework; `resolve` asks which one a model belongs to without importing any."""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from tiebeam.errors import BackendError, InputError

if TYPE_CHECKING:
    from tiebeam.backends.protocol import Model


class Entry(NamedTuple):
    """One kind of model.

    Attributes:
        bases: Classes that its models descend from, over the framework's releases; none: any callable beside params.
        home: Backend module; `adapter`: what it makes the backend's view of a model with.
        functional: Its arrays do not change: writing makes a new tree, and params may stand beside the model.
        holds: Where the arrays of a model in training are: in the model itself, in a new one after each step, or
            beside it.
    """

    bases: tuple[str, ...]
    home: str
    adapter: str
    functional: bool = False
    holds: Literal["itself", "new", "beside"] = "itself"


#: framework module -> kinds of models
REGISTRY = {
    # First: on PyTorch a Keras layer is a torch module too.
    "keras": (Entry(("keras.src.layers.layer.Layer",), "tiebeam.backends.keras.model", "of_keras"),),
    "torch": (Entry(("torch.nn.modules.module.Module",), "tiebeam.backends.torch.model", "TorchModel"),),
    "jax": (
        Entry(("flax.linen.module.Module",), "tiebeam.backends.jax.model", "of_linen", True, "beside"),
        Entry(("flax.nnx.module.Module",), "tiebeam.backends.jax.model", "of_nnx", True),
        Entry(
            ("equinox._module._module.Module", "equinox._module.Module"),
            "tiebeam.backends.jax.model",
            "of_equinox",
            True,
            "new",
        ),
        Entry((), "tiebeam.backends.jax.model", "of_function", True, "beside"),
    ),
}


def resolve(model: object, params: Any = None) -> "Model":
    """The backend's view of a model.

    Args:
        model: A model of a framework in `REGISTRY`; or a function of `params` and inputs.
        params: What a model that holds no arrays is applied to.

    Raises:
        BackendError: It is none.
        InputError: Params where the model holds its own, or none where it does not.
    """
    entry = entry_of(model, params)
    if entry.functional:
        made: Model = getattr(import_module(entry.home), entry.adapter)(model, params)
        return made
    if params is not None:
        raise InputError(
            f"{type(model).__name__} holds its own parameters",
            got="params as well",
            expected="the model alone",
            hint="leave params out; load them into the model first",
        )
    held: Model = getattr(import_module(entry.home), entry.adapter)(model)
    return held


def entry_of(model: object, params: Any = None) -> Entry:
    """Which kind of model it is.

    Raises:
        BackendError: None that tiebeam knows.
    """
    ancestry = _ancestry(model)
    for framework, entries in REGISTRY.items():
        if framework not in sys.modules:
            continue
        for entry in entries:
            if any(base in ancestry for base in entry.bases):
                return entry
            if not entry.bases and callable(model) and params is not None and not isinstance(model, type):
                return entry
    raise BackendError(
        f"tiebeam cannot look at a {type(model).__name__}",
        got=f"{ancestry[0]}, a class" if isinstance(model, type) else ancestry[0],
        expected="a model: " + ", ".join(e.bases[0] for several in REGISTRY.values() for e in several if e.bases),
        hint="pass params=, the tree that the function takes as its first argument"
        if callable(model) and not isinstance(model, type)
        else "pass an instance of the model itself, not a checkpoint path, a config or a class",
    )


def _ancestry(model: object) -> list[str]:
    return [f"{c.__module__}.{c.__qualname__}" for c in type(model).__mro__]
