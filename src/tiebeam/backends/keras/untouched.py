"""Calling a model so that it is afterwards as it was: no variable is written or made, and nothing is built."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras

from tiebeam.core.closures import Plain, plain_in
from tiebeam.errors import InputError

_FLAGS = ("built", "_called", "_parent_path")  # what the first call of a layer sets
_PASSING = frozenset((*_FLAGS, "_path", "training", "stop_training", "_initial_epoch", "compiled", "_jit_compile"))
"""What changes as a model is called, compiled and trained, and says nothing of what it computes."""


@contextmanager
def untouched(model: keras.Layer, values: Sequence[tuple[Any, Any]] = ()) -> Iterator[None]:
    """Conditions of a pass.

    Writes (seeds of dropout, running statistics) go to Keras' stateless scope and are dropped. A layer that was never
    built would make its variables at its first call: it refuses instead.

    Args:
        model: A Keras model or layer.
        values: Variables, each with the tensor that stands for it during the pass.

    Raises:
        InputError: A layer that is not built was called.
    """
    layers = model._flatten_layers()
    flags = [(layer, {k: getattr(layer, k) for k in _FLAGS}) for layer in layers]
    builds = [(layer, layer.build) for layer, kept in flags if not kept["built"] and _builds(layer)]
    refused: list[InputError] = []
    for layer, _ in builds:
        vars(layer)["build"] = _refusal(model, layer, refused)
    try:
        with keras.StatelessScope(state_mapping=list(values), initialize_variables=False):
            yield
    except Exception:
        if refused:  # Keras writes what it calls into every error on its way
            raise refused[0] from None
        raise
    finally:
        for layer, build in builds:
            vars(layer)["build"] = build
        for layer, kept in flags:
            vars(layer).update(kept)


def attributes_of(model: keras.Layer) -> tuple[tuple[Plain, ...], ...]:
    """Numbers, strings and flags that each layer holds, those that say how it runs: a factor, a rate, a dtype."""

    def one(layer: keras.Layer) -> tuple[Plain, ...]:
        held = {name: value for name, value in vars(layer).items() if name not in _PASSING}
        return plain_in({**held, "dtype_policy": layer.dtype_policy.name})

    return tuple(map(one, model._flatten_layers()))


def _builds(layer: keras.Layer) -> bool:
    """Whether the layer's class makes variables when built."""
    return type(layer).build is not keras.Layer.build


def _refusal(model: keras.Layer, layer: keras.Layer, refused: list[InputError]) -> Callable[..., None]:
    def refuse(*_: Any, **__: Any) -> None:
        refused.append(not_built(model, layer))
        raise refused[-1]

    return refuse


def not_built(model: keras.Layer, layer: keras.Layer) -> InputError:
    """Why a model that was not built, or whose `layer` was not, cannot be looked at."""
    inside = "" if layer is model else f": its layer {layer.name!r} ({type(layer).__name__}) is not"
    return InputError(
        f"{type(model).__name__} is not built{inside}",
        got="a layer without its variables",
        expected="a model whose variables exist: looking at it must not make them",
        hint="call the model once on data, or model.build(input_shape)",
    )
