"""A Keras model as named layers: a path for each, and the Python that gets at it."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import keras


class Layers:
    """The layers of a model, itself included, each once.

    Keras calls a layer by where it was built, and two layers may have been built in places of one name: those are
    called by where they hang in the model.

    Args:
        model: A Keras model or layer.
    """

    def __init__(self, model: keras.Layer) -> None:
        self.model = model
        self.all: tuple[keras.Layer, ...] = tuple(model._flatten_layers())

    @cached_property
    def paths(self) -> Mapping[int, str]:
        """Path of each layer, by its id."""
        chains = dict(_chains(self.model))
        told = {id(layer): layer.path or chains.get(id(layer), layer.name) for layer in self.all}
        twice = _more_than_once(told)
        told = {i: chains.get(i, path) if path in twice else path for i, path in told.items()}
        twice = _more_than_once(told)
        return {i: f"{path}:{n}" if path in twice else path for n, (i, path) in enumerate(told.items())}

    @cached_property
    def by_path(self) -> Mapping[str, keras.Layer]:
        return {self.paths[id(layer)]: layer for layer in self.all}

    @cached_property
    def by_name(self) -> Mapping[str, str]:
        """Path of each layer whose name no other has."""
        names = [layer.name for layer in self.all]
        return {layer.name: self.paths[id(layer)] for layer in self.all if names.count(layer.name) == 1}

    @cached_property
    def places(self) -> "Places":
        """Paths and names alone, which outlive the layers."""
        return Places(frozenset(self.by_path), dict(self.by_name))

    def where(self, scopes: list[str]) -> str:
        """The innermost layer that a stack of name scopes ends in, by its path."""
        return self.places.where(scopes)

    def owners(self, variable: Any) -> list[keras.Layer]:
        """The layers that hold a variable themselves, first the one that it is named after."""
        found = [layer for layer in self.all if any(v is variable for v in own_variables(layer))]
        home = variable.path.rpartition("/")[0]
        return sorted(found, key=lambda layer: layer.path != home)

    def expression(self, layer: keras.Layer) -> str:
        """Python that gets at a layer from `model`, or "" where there is none."""
        return _expressions(self.model).get(id(layer), "")


@dataclass(frozen=True)
class Places:
    """Where layers are, without the layers.

    Attributes:
        paths: Of all layers.
        by_name: Path of each layer whose name no other has.
    """

    paths: frozenset[str]
    by_name: Mapping[str, str]

    def where(self, scopes: list[str]) -> str:
        """The innermost layer that a stack of name scopes ends in, by its path.

        Scopes follow the calls: a layer that is called from elsewhere than it was built stands alone by its name.
        """
        for end in range(len(scopes), 0, -1):
            paths = ("/".join(scopes[start:end]) for start in range(end))
            found = next((p for p in paths if p in self.paths), self.by_name.get(scopes[end - 1]))
            if found is not None:
                return found
        return ""


def own_variables(layer: keras.Layer) -> list[Any]:
    """Variables that a layer holds itself."""
    return [*layer._trainable_variables, *layer._non_trainable_variables]


def attribute_of(layer: keras.Layer, thing: Any) -> str:
    """The attribute of a layer that is this variable or layer, or ""."""
    return next((name for name, value in vars(layer).items() if value is thing), "")


def _more_than_once(paths: Mapping[int, str]) -> set[str]:
    return {path for path, times in Counter(paths.values()).items() if times > 1}


def _chains(model: keras.Layer) -> Iterator[tuple[int, str]]:
    """Where each layer hangs: the names of those around it and its own, breadth first; the model's own name first."""
    waiting, seen = [(model, model.name)], {id(model)}
    yield id(model), model.name
    while waiting:
        layer, path = waiting.pop(0)
        for child in layer._layers:
            if id(child) not in seen:
                seen.add(id(child))
                below = child.name if layer is model else f"{path}/{child.name}"
                yield id(child), below
                waiting.append((child, below))


def _expressions(model: keras.Layer) -> dict[int, str]:
    found, waiting = {id(model): "model"}, [model]
    while waiting:
        layer = waiting.pop(0)
        for child in layer._layers:
            code = _step(layer, child)
            if code and id(child) not in found:
                found[id(child)] = found[id(layer)] + code
                waiting.append(child)
    return found


def _step(parent: keras.Layer, child: keras.Layer) -> str:
    """Python that gets from a layer to one that it holds."""
    if isinstance(parent, keras.Model) and sum(layer.name == child.name for layer in parent.layers) == 1:
        return f".get_layer({child.name!r})"
    name = attribute_of(parent, child)
    return f".{name}" if name.isidentifier() else ""
