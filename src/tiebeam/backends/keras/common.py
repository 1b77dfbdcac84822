"""What Keras itself tells of a model, on whichever framework it runs: most of a backend's protocol."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import keras

from tiebeam.backends.keras import inputs
from tiebeam.backends.keras.fixes import KerasFixes
from tiebeam.backends.keras.layers import Layers
from tiebeam.backends.keras.variables import Variables, vocab_bound
from tiebeam.core.finding import Finding
from tiebeam.errors import ShapeError

_KERAS_PASSES = ("training", "mask")


class KerasModel:
    """One Keras model; what runs, reads and writes it is a subclass for each framework.

    Args:
        model: A built Keras model or layer.
    """

    framework = "keras"

    def __init__(self, model: keras.Layer) -> None:
        self.model = model
        self.packages: tuple[str, ...] = ("keras", keras.backend.backend())
        self.layers = Layers(model)
        self.variables = Variables(self.layers)

    @property
    def name(self) -> str:
        return type(self.model).__name__

    @property
    def forward(self) -> Callable[..., Any]:
        """What the inputs go to, for its signature: what Keras itself passes is no input."""

        def call(*args: Any, **kwargs: Any) -> Any:
            return self.model.call(*args, **kwargs)

        own = inspect.signature(self.model.call)
        given = [p for p in own.parameters.values() if p.name not in _KERAS_PASSES or p.default is p.empty]
        vars(call)["__signature__"] = own.replace(parameters=given)
        return call

    def arguments(self, given: Any) -> inputs.Arguments:
        """One positional argument, or a tuple of them; NumPy arrays turned into tensors."""
        return inputs.arguments(self.model, given)

    def example(self, make: inputs.Make) -> Any:
        """Inputs by the model's own signature, or None where it has none."""
        return inputs.example(self.model, make)

    def shorter(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[inputs.Arguments]:
        return inputs.shorter(args, kwargs)

    def noted(self, traced: Any) -> Any:
        """A trace whose graph also says where what the model declares is not what it does."""
        graph = traced.graph
        declared = [keras.backend.standardize_dtype(t.dtype) for t in getattr(self.model, "outputs", None) or ()]
        real = [graph.values[v].dtype for v in graph.outputs]
        if len(declared) != len(real):
            return traced
        apart = dict.fromkeys(pair for pair in zip(declared, real, strict=True) if pair[0] != pair[1])
        notes = [f"the model declares an output of {a} and returns {b}" for a, b in apart]
        return replace(traced, graph=replace(graph, notes=(*graph.notes, *notes))) if notes else traced

    def diagnose(self) -> Finding | ShapeError | None:
        return None

    def parameters(self) -> int:
        """Elements of all parameters, each once."""
        return self.variables.elements()

    def fixes(self) -> KerasFixes:
        return KerasFixes(self.layers, self.variables)

    def trainable_elsewhere(self, names: Sequence[str]) -> float:
        return self.variables.trainable_elsewhere(names)

    def body_dtype(self, names: Sequence[str]) -> str | None:
        return self.variables.body_dtype(names)

    def shared(self) -> tuple[tuple[str, ...], ...]:
        return self.variables.shared()

    def devices(self) -> dict[str, str]:
        """No map: a layout is not a place."""
        return {}

    def vocab_bound(self) -> int | None:
        return vocab_bound(self.layers, self.variables)
