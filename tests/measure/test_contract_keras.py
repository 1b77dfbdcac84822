"""The reference model in Keras, on each of the frameworks that it runs on: plain operations, and the building block."""

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
from keras import ops
from tests.keras.models.kit import numbers
from tests.measure.contract import REFERENCE, VOCAB, WIDTH, Built, MeasureContract, settings, single

from tiebeam.keras import TiedEmbedding


class Body(keras.layers.Layer):
    """What is between the two roles."""

    def build(self, shape: Any) -> None:
        for name, array in REFERENCE.parameters.items():
            if name != "table":
                given = single(array)
                held = self.add_weight(name=name, shape=given.shape)
                held.assign(given)
                setattr(self, name, held)

    def call(self, x: Any) -> Any:
        hidden = ops.tanh(ops.matmul(x, self.w_in) + self.b_in)
        return REFERENCE.res * x + ops.matmul(hidden, self.w_out) + self.b_out


class Plain(keras.Model):
    """Plain operations on one variable."""

    def __init__(self) -> None:
        super().__init__(name="plain")
        self.body = Body(name="body")

    def build(self, shape: Any) -> None:
        self.table = self.add_weight(name="table", shape=(VOCAB, WIDTH))
        self.table.assign(single(REFERENCE.table))
        self.body.build((None, None, WIDTH))

    def call(self, ids: Any) -> Any:
        h = self.body(ops.take(self.table, ids, axis=0) * REFERENCE.lookup_factor)
        return ops.matmul(h, ops.transpose(self.table)) * REFERENCE.readout_factor


def on_block() -> keras.Model:
    """The building block in place of the variable, drawn as a graph."""
    ids = keras.Input((None,), dtype="int32")
    block = TiedEmbedding(VOCAB, WIDTH, name="block", **settings())  # type: ignore[arg-type]
    model = keras.Model(ids, block(Body(name="body")(block(ids)), reverse=True))
    block.embeddings.assign(single(REFERENCE.table))
    return model


class TestPlain(MeasureContract):
    def build(self) -> Built:
        model = Plain()
        model.build((None, None))
        return Built(model)

    def arrays(self, built: Built) -> Mapping[str, np.ndarray]:
        return {v.path: numbers(v) for v in built.model.variables}


class TestBlock(TestPlain):
    def build(self) -> Built:
        return Built(on_block())
