"""The variables of a model, named: what is a parameter, who trains it, and what that says of the whole model."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import keras

from tiebeam.backends.keras.layers import Layers, attribute_of


@dataclass(frozen=True, slots=True)
class Named:
    """One variable of a model.

    Attributes:
        variable: Keras' own object.
        names: Its path; then every other place where a layer holds it.
        trainable: Whether the model's optimizer steps it.
        parameter: False for the state of random generators and metrics.
    """

    variable: Any
    names: tuple[str, ...]
    trainable: bool
    parameter: bool

    @property
    def name(self) -> str:
        return self.names[0]

    @property
    def floating(self) -> bool:
        return bool(keras.backend.is_float_dtype(self.variable.dtype))

    @property
    def size(self) -> int:
        return math.prod(self.variable.shape)


class Variables:
    """Every variable of a model once, in Keras' order.

    Args:
        layers: The model's layers.
    """

    def __init__(self, layers: Layers) -> None:
        model = layers.model
        trainable = {id(v) for v in model.trainable_variables}
        weights = {id(v) for v in model.weights}
        everything = list({id(v): v for v in model.variables}.values())
        paths = [v.path for v in everything]
        self.all = tuple(
            Named(v, _names(layers, v, paths.count(v.path) > 1), id(v) in trainable, id(v) in weights)
            for v in everything
        )

    @cached_property
    def parameters(self) -> tuple[Named, ...]:
        return tuple(v for v in self.all if v.parameter)

    @cached_property
    def by_name(self) -> dict[str, Named]:
        return {name: v for v in self.all for name in v.names}

    def elements(self) -> int:
        """Elements of all parameters, each once."""
        return sum(v.size for v in self.parameters)

    def shared(self) -> tuple[tuple[str, ...], ...]:
        """Groups of paths that are one variable."""
        return tuple(v.names for v in self.parameters if len(v.names) > 1)

    def trainable_elsewhere(self, names: Collection[str]) -> float:
        """Share of the elements of all parameters but `names` that is trainable; 0 where there are none."""
        others = self._others(names)
        total = sum(v.size for v in others)
        return sum(v.size for v in others if v.trainable) / total if total else 0.0

    def body_dtype(self, names: Collection[str]) -> str | None:
        """Dtype of most elements of all floating parameters but `names`."""
        counts: dict[str, int] = {}
        for v in self._others(names):
            if v.floating:
                counts[v.variable.dtype] = counts.get(v.variable.dtype, 0) + v.size
        return max(counts, key=lambda d: counts[d]) if counts else None

    def _others(self, names: Collection[str]) -> list[Named]:
        return [v for v in self.parameters if not set(v.names) & set(names)]

    def to_zero(self, names: Sequence[str]) -> list[Named]:
        """Those of `names` that can be set to zero: trainable and of floats."""
        found = [self.by_name[n] for n in names if n in self.by_name]
        return [v for v in found if v.trainable and v.floating]


def vocab_bound(layers: Layers, variables: Variables) -> int | None:
    """An upper bound for token ids: the tallest embedding, or the largest matrix's longer side."""
    tables = [layer.input_dim for layer in layers.all if isinstance(layer, keras.layers.Embedding)]
    matrices = [max(v.variable.shape) for v in variables.parameters if len(v.variable.shape) == 2]
    return max(tables or matrices, default=None)


def _names(layers: Layers, variable: Any, clash: bool) -> tuple[str, ...]:
    """Its path, told apart where another variable has the same; then where else it is held."""
    owners = layers.owners(variable)
    name = str(variable.path)
    if clash and owners:
        name = f"{layers.paths[id(owners[0])]}/{variable.name}"
    others = [f"{layers.paths[id(layer)]}/{attribute_of(layer, variable) or variable.name}" for layer in owners[1:]]
    return (name, *others)
