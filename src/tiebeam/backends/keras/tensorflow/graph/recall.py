"""Programs that were traced before, kept as `tf.function` keeps them: a graph costs many times what it computes.

A model that is measured again on inputs of the same kind, with the same variables in it, is not traced again. Numbers,
strings and flags that its layers hold are compared; what other Python it looks at counts as it was. Nothing is kept of
a model that is gone.
"""

import copy
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import keras
import tensorflow as tf

from tiebeam.backends.keras.common import KerasModel
from tiebeam.backends.keras.tensorflow.graph.program import Program, program_of
from tiebeam.backends.keras.untouched import attributes_of, untouched
from tiebeam.blocks.readout_loss.sight import logits_in_sight

KEPT = 4  # of one model

_LOCK = threading.Lock()
_PROGRAMS: WeakKeyDictionary[Any, OrderedDict[Any, Program]] = WeakKeyDictionary()


def recalled(view: KerasModel, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Program:
    """The program of a model on these inputs, traced now or before; raises what `program_of` raises."""
    key = _key(view, args, kwargs)
    with _LOCK:
        kept = _PROGRAMS.setdefault(view.model, OrderedDict())
        found = kept.get(key)
        if found is not None and not found.compiled.get("shapes"):  # else they depend on what the inputs hold
            kept.move_to_end(key)
            found = copy.copy(found)  # another thread may be running it on a batch of its own
            found.inputs = _inputs(args, kwargs)
            return found
    program = program_of(view, args, kwargs, lambda _: [])
    with _LOCK:
        kept[key] = program
        while len(kept) > KEPT:
            kept.popitem(last=False)
    return program


def calling(view: KerasModel, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Callable[[Sequence[Any]], list[str]]:
    """What calls a model as `program_of` does, on tensors of the graph at hand: the names of what it returned."""
    arguments = (args, dict(kwargs))

    def again(tensors: Sequence[Any]) -> list[str]:
        left = list(tensors)

        def joined(leaf: Any) -> Any:
            if not tf.is_tensor(leaf):
                return leaf
            parts = [left.pop(0) for _ in tf.nest.flatten(leaf, expand_composites=True)]
            return tf.nest.pack_sequence_as(leaf, parts, expand_composites=True)

        own_args, own_kwargs = keras.tree.map_structure(joined, arguments)
        with untouched(view.model), logits_in_sight():
            out = view.model(*own_args, **own_kwargs)
        leaves = [v for v in keras.tree.flatten(out) if tf.is_tensor(v)]
        parts = [t for v in leaves for t in tf.nest.flatten(v, expand_composites=True)]
        return [tf.identity(tf.convert_to_tensor(t)).name for t in parts]

    return again


def _key(view: KerasModel, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """What a program depends on: the kinds of its inputs, which variables are in it, and what its layers hold."""

    def kind(leaf: Any) -> str:
        return f"{type(leaf).__name__} {leaf.dtype} {leaf.shape}" if tf.is_tensor(leaf) else repr(leaf)

    structure = repr(keras.tree.map_structure(kind, (args, dict(kwargs))))
    variables = tuple((id(v.variable._value), v.trainable) for v in view.variables.all)
    return structure, variables, attributes_of(view.model)


def _inputs(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
    leaves = [v for v in keras.tree.flatten((args, dict(kwargs))) if tf.is_tensor(v)]
    return [tf.convert_to_tensor(t) for v in leaves for t in tf.nest.flatten(v, expand_composites=True)]
