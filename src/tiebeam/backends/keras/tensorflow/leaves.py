"""Which variables a model holds: Keras' own, and those of TensorFlow that a layer keeps in an attribute."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tiebeam.backends.keras.common import KerasModel


class HeldVariable(NamedTuple):
    """A variable as a leaf of the graph.

    Attributes:
        names: Its paths, owner first.
        trainable: Whether the model's optimizer steps it.
        parameter: False for state.
        variable: TensorFlow's own object.
    """

    names: tuple[str, ...]
    trainable: bool
    parameter: bool
    variable: Any


def held_variables(view: KerasModel) -> dict[int, HeldVariable]:
    """Every variable, by the id of the handle that a graph captures."""
    found: dict[int, HeldVariable] = {}
    for named in view.variables.all:
        raw = named.variable._value
        found[id(raw.handle)] = HeldVariable(named.names, named.trainable, named.parameter, raw)
    own = dict(found)
    for name, raw in _plain(view):
        if id(raw.handle) in own:
            continue
        before = found.get(id(raw.handle))
        names = (*before.names, name) if before else (name,)
        found[id(raw.handle)] = HeldVariable(names, False, True, raw)  # Keras' optimizers know Keras' variables alone
    return found


def _plain(view: KerasModel) -> Iterator[tuple[str, Any]]:
    """Variables of TensorFlow in attributes of layers, with their paths."""
    for layer in view.layers.all:
        path = view.layers.paths[id(layer)]
        for name, value in vars(layer).items():
            if not name.startswith("_"):
                yield from ((f"{path}/{key}", v) for key, v in _inside(name, value))


def _inside(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, tf.Variable) and not isinstance(value, keras.Variable):
        yield name, value
    elif isinstance(value, list | tuple):
        for i, v in enumerate(value):
            yield from _inside(f"{name}/{i}", v)
    elif isinstance(value, dict):
        for key, v in value.items():
            yield from _inside(f"{name}/{key}", v)
    elif isinstance(value, tf.Module) and not isinstance(value, keras.Layer):
        yield from ((f"{name}/{v.name.partition(':')[0]}", v) for v in value.variables)
