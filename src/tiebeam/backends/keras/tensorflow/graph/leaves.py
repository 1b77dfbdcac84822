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
        variable: TensorFlow's own object; of a variable with copies on several devices, one of these.
        copies: All of them.
    """

    names: tuple[str, ...]
    trainable: bool
    parameter: bool
    variable: Any
    copies: tuple[Any, ...]


def copies_of(variable: Any) -> tuple[Any, ...]:
    """What a strategy made of a variable: one on each device; by itself it is one."""
    mirrored = isinstance(variable, tf.distribute.DistributedValues)
    return tuple(variable.values) if mirrored else (variable,)


def held_variables(view: KerasModel) -> dict[int, HeldVariable]:
    """Every variable, by the id of the handle that a graph captures."""
    found: dict[int, HeldVariable] = {}
    for named in view.variables.all:
        copies = copies_of(named.variable._value)
        for raw in copies:
            found[id(raw.handle)] = HeldVariable(named.names, named.trainable, named.parameter, raw, copies)
    own = set(found)
    for name, variable in _plain(view):
        copies = copies_of(variable)
        for raw in copies:
            if id(raw.handle) not in own:
                before = found.get(id(raw.handle))
                names = (*before.names, name) if before else (name,)
                # Keras' optimizers know Keras' variables alone.
                found[id(raw.handle)] = HeldVariable(names, False, True, raw, copies)
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
