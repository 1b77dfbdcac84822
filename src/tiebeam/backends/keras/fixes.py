"""Python that mends a Keras model, as findings print it."""

import keras

from tiebeam.backends.keras.layers import Layers, attribute_of
from tiebeam.backends.keras.variables import Named, Variables


class KerasFixes:
    """`core.findings.Fixes` for one model: only what would run on it is offered."""

    def __init__(self, layers: Layers, variables: Variables) -> None:
        self.layers, self.variables = layers, variables

    def tie(self, owner: str, other: str) -> str:
        """Give the layer at `other` the variable at `owner`, where both are plain attributes."""
        a, b = self.variables.by_name.get(owner), self.variables.by_name.get(other)
        if a is None or b is None or (a.variable.shape, a.variable.dtype) != (b.variable.shape, b.variable.dtype):
            return ""
        source, target = self._home(a), self._home(b)
        if not source or not target:
            return ""
        (giver, given), (taker, taken) = source, target
        return (
            f"old, layer = {taker}.{taken}, {taker}\n"
            "layer._untrack_variable(old)\n"
            "layer._tracker.unlock()\n"
            f"layer.{taken} = {giver}.{given}\n"
            "layer._tracker.lock()"
        )

    def initialize(self) -> str:
        return "tiebeam.initialize(model, inputs)"

    def scale_lookup(self, where: str, factor: float) -> str:
        return ""  # the factor belongs into the model's own call: Keras has no hooks that a saved model keeps

    def train(self, name: str, on: bool) -> str:
        """Switch the layer that holds the variable: a frozen layer trains none of its own."""
        found = self.variables.by_name.get(name)
        owners = [] if found is None else self.layers.owners(found.variable)
        code = self.layers.expression(owners[0]) if owners else ""
        return f"{code}.trainable = {on}" if code else ""

    def _home(self, found: Named) -> tuple[str, str] | None:
        """Python of the layer that holds a variable, and the attribute that it is."""
        owners: list[keras.Layer] = self.layers.owners(found.variable)
        if len(owners) != 1:
            return None
        code, attribute = self.layers.expression(owners[0]), attribute_of(owners[0], found.variable)
        return (code, attribute) if code and attribute.isidentifier() else None
