"""Blueprints in Keras, on whichever framework it runs: a written model around one `ReversibleEmbedding`."""

import warnings
from collections.abc import Mapping
from typing import Any

import keras
from keras import ops
from keras.src.backend.common.global_state import get_global_attribute

from tiebeam.zoo.blueprint import CLASSES, EPSILON, Blueprint, Built, Floats, stepped

PATHS = {
    "table": "lm/embed/embeddings", "head": "lm/embed/reverse_embeddings", "positions": "lm/positions",
    "mid": "lm/mid/kernel", "bias": "lm/bias", "out": "lm/out/kernel",
}  # fmt: skip
GAINS = {"layer": "lm/norm/gamma", "rms": "lm/norm/scale", "none": ""}
TURNED = ("head",)  # a matrix of its own is kept (width, vocab)


def array(by: float) -> Any:
    """A float32 tensor of no axes."""
    return ops.convert_to_tensor(by, "float32")


class KerasLanguageModel(keras.Model):
    """The language model of a blueprint."""

    def __init__(self, blueprint: Blueprint, dtype: str) -> None:
        super().__init__(name="lm", dtype=dtype)
        b = self.blueprint = blueprint
        self.input_spec = keras.layers.InputSpec(ndim=2)
        self.embed = keras.layers.ReversibleEmbedding(b.vocab, b.width, b.tied, name="embed", dtype=dtype)
        self.rows = keras.layers.LayerNormalization(epsilon=EPSILON, center=False, scale=False, dtype=dtype)
        self.mid = keras.layers.Dense(b.width, "tanh", use_bias=False, name="mid", dtype=dtype)
        if b.norm == "layer":
            self.norm = keras.layers.LayerNormalization(epsilon=EPSILON, center=False, name="norm", dtype=dtype)
        elif b.norm == "rms":
            self.norm = keras.layers.RMSNormalization(epsilon=EPSILON, name="norm", dtype=dtype)

    def build(self, ids_shape: Any) -> None:
        """Make every variable."""
        b = self.blueprint
        stream = (*ids_shape, b.width)
        self.embed.build(ids_shape)
        for layer in (self.rows, self.mid, *([] if b.norm == "none" else [self.norm])):
            layer.build(stream)
        if b.positions:
            self.positions = self.add_weight(shape=(b.positions, b.width), name="positions")
        if b.bias:
            self.bias = self.add_weight(shape=(b.vocab,), name="bias")

    def call(self, ids: Any) -> Any:
        """Logits `(batch, tokens, vocab)` of ids `(batch, tokens)`."""
        b = self.blueprint
        x = stepped(self.embed(ids), b.lookup, array)
        x = x + self.positions[: ids.shape[1]] if b.positions else x
        x = self.rows(x) if b.norm_rows else x
        h = x + self.mid(x)
        h = stepped(h if b.norm == "none" else self.norm(h), b.before, array)
        z = self.embed(h, reverse=True)
        z = stepped(z + self.bias if b.bias else z, b.after, array)
        return z if b.soft_cap is None else b.soft_cap * ops.tanh(z / b.soft_cap)


class KerasClassifier(keras.Model):
    """The control: no table."""

    def __init__(self, blueprint: Blueprint, dtype: str) -> None:
        super().__init__(name="lm", dtype=dtype)
        self.mid = keras.layers.Dense(blueprint.width, "tanh", use_bias=False, name="mid", dtype=dtype)
        self.out = keras.layers.Dense(CLASSES, use_bias=False, name="out", dtype=dtype)

    def build(self, features_shape: Any) -> None:
        """Make every variable."""
        for layer in (self.mid, self.out):
            layer.build(features_shape)  # `mid` is square

    def call(self, features: Any) -> Any:
        """Scores `(batch, classes)` of features `(batch, width)`."""
        return self.out(self.mid(features))


class KerasBuilder:
    """Builds blueprints as Keras models.

    Example:
        >>> blueprint = Blueprint(tied=False)
        >>> KerasBuilder().build(blueprint, blueprint.weights()).names["head"]
        ('lm/embed/reverse_embeddings',)
    """

    framework = "keras"

    def build(self, blueprint: Blueprint, weights: Mapping[str, Floats], dtype: str = "float32") -> Built:
        """The model with these weights."""
        built = self._made(blueprint, dtype)
        built.model.build(blueprint.inputs().shape)
        there = _by_path(built.model)
        for name, value in weights.items():
            there[built.names[name][0]].assign(value.T if name in TURNED else value)
        return built

    def abstract(self, blueprint: Blueprint) -> Built:
        """The model before it is built: of shapes without values Keras keeps nothing."""
        return self._made(blueprint, "float32")

    def random_state(self) -> bytes:
        """Keras' generator, if there is one yet; and PyTorch's."""
        kept = get_global_attribute("global_seed_generator")  # to ask for it by its function would make one
        state = b"" if kept is None else ops.convert_to_numpy(kept.state.value).tobytes()
        if keras.backend.backend() == "torch":
            import torch

            state += torch.get_rng_state().numpy().tobytes()
        return state

    def _made(self, blueprint: Blueprint, dtype: str) -> Built:
        kind = KerasLanguageModel if blueprint.kind == "language model" else KerasClassifier
        names = {name: ({**PATHS, "gain": GAINS[blueprint.norm]}[name],) for name in blueprint.weights()}

        def arrays(model: Any) -> dict[str, Floats]:
            there = _by_path(model)
            found = {name: _floats(there[path].value) for name, (path,) in names.items()}
            return {name: value.T.copy() if name in TURNED else value for name, value in found.items()}

        return Built(
            model=kind(blueprint, dtype),
            params=None,
            names=names,
            arrays=arrays,
            logits=lambda model, inputs: _floats(model(ops.convert_to_tensor(inputs))),
        )


def _by_path(model: keras.Model) -> dict[str, Any]:
    return {variable.path: variable for variable in model.variables}


def _floats(tensor: Any) -> Floats:
    """A float32 array of NumPy's own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Keras' own way into NumPy
        found: Floats = ops.convert_to_numpy(ops.cast(tensor, "float32")).copy()
    return found
