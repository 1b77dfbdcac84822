"""One folder a framework; `resolve` asks which one a model belongs to without importing any."""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from tiebeam.backends.strangers import unknown_model
from tiebeam.errors import InputError

if TYPE_CHECKING:
    from tiebeam.backends.protocol import Model


class Entry(NamedTuple):
    """One kind of model.

    Attributes:
        bases: Classes that its models descend from, over the framework's releases; none: any callable beside params.
        known_as: What people call the class.
        home: Backend module; `adapter`: what it makes the backend's view of a model with.
        functional: Its arrays do not change: writing makes a new tree, and params may stand beside the model.
        holds: Where the arrays of a model in training are: in the model itself, in a new one after each step, or
            beside it.
    """

    bases: tuple[str, ...]
    known_as: str
    home: str
    adapter: str
    functional: bool = False
    holds: Literal["itself", "new", "beside"] = "itself"


#: framework module -> kinds of models
REGISTRY = {
    # First: on PyTorch a Keras layer is a torch module too.
    "keras": (Entry(("keras.src.layers.layer.Layer",), "keras.Layer", "tiebeam.backends.keras.model", "of_keras"),),
    "torch": (
        Entry(("torch.nn.modules.module.Module",), "torch.nn.Module", "tiebeam.backends.torch.model", "TorchModel"),
    ),
    "jax": (
        Entry(
            ("flax.linen.module.Module",), "flax.linen.Module", "tiebeam.backends.jax.model", "of_linen", True, "beside"
        ),
        Entry(("flax.nnx.module.Module",), "flax.nnx.Module", "tiebeam.backends.jax.model", "of_nnx", True),
        Entry(
            ("equinox._module._module.Module", "equinox._module.Module"),
            "equinox.Module",
            "tiebeam.backends.jax.model",
            "of_equinox",
            True,
            "new",
        ),
        Entry((), "a function of its params", "tiebeam.backends.jax.model", "of_function", True, "beside"),
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
    found = _by_class(model)
    if found is not None:
        return found
    of_any = next((entry for entry in _loaded() if not entry.bases), None)
    if of_any is not None and callable(model) and params is not None and not isinstance(model, type):
        return of_any
    known = [e for several in REGISTRY.values() for e in several]
    a_model = isinstance(model, type) and not _names(model).isdisjoint(base for e in known for base in e.bases)
    raise unknown_model(model, params, a_model=a_model, known=[e.known_as for e in known])


def is_model(thing: object) -> bool:
    """Whether it is a model that needs no params beside it to be known as one."""
    return _by_class(thing) is not None


def _by_class(model: object) -> Entry | None:
    """The first entry that has one of the model's classes as a base."""
    ancestry = _names(type(model))
    return next((entry for entry in _loaded() if not ancestry.isdisjoint(entry.bases)), None)


def _loaded() -> list[Entry]:
    """Those of the frameworks that are loaded, in the registry's order."""
    return [entry for framework, entries in REGISTRY.items() if sys.modules.get(framework) for entry in entries]


def _names(kind: type) -> set[str]:
    return {f"{c.__module__}.{c.__qualname__}" for c in kind.__mro__}
