"""Two tables where one is meant, and what is no longer one table: untied, copy, drifted, cut."""

from typing import Any

import keras
import numpy as np
from keras import ops
from tests.keras.models.kit import VOCAB, Case, Written, case, functional, numbers, reversible, written


@case("untied_reverse_embeddings", staged=False)
def _untied() -> Case:
    e = reversible(tie_weights=False)
    made = functional(e, e, lambda h: e(h, reverse=True), state="untied", readout_factor=None, counts=(1, 0, 0),
                      partner="reversible_embedding/reverse_embeddings")  # fmt: skip
    e.reverse_embeddings.assign(numbers(e.reverse_embeddings)[::-1] * 1.0)
    return made


@case("copied_reverse_embeddings", staged=False)
def _copy() -> Case:
    e = reversible(tie_weights=False)
    made = functional(e, e, lambda h: e(h, reverse=True), state="copy", readout_factor=None, counts=(1, 0, 0),
                      partner="reversible_embedding/reverse_embeddings")  # fmt: skip
    e.reverse_embeddings.assign(numbers(e._embeddings).T)
    return made


@case("drifted_dense_head", staged=False)
def _drifted() -> Case:
    e, head = reversible(), keras.layers.Dense(VOCAB, use_bias=False, name="head")
    made = functional(e, e, head, state="drifted", readout_factor=None, counts=(1, 0, 0), partner="head/kernel")
    noise = np.random.default_rng(0).standard_normal(head.kernel.shape) * 0.03
    head.kernel.assign(numbers(e._embeddings).T + noise)
    return made


@case("cut_by_stop_gradient")
def _cut() -> Case:
    class Cut(Written):
        def read(self, h: Any) -> Any:
            return ops.matmul(h, ops.transpose(ops.stop_gradient(self.embed.embeddings)))

    return written(Cut, state="cut")


@case("two_layers_hold_one_variable")
def _two_holders() -> Case:
    class Head(keras.layers.Layer):
        def __init__(self, table: Any) -> None:
            super().__init__(name="head")
            self.table = table

        def call(self, h: Any) -> Any:
            return ops.matmul(h, ops.transpose(self.table))

    e = reversible(name="tok")
    e.build()
    return functional(e, e, Head(e._embeddings), names=("tok/embeddings", "head/table"))


@case("frozen", staged=False)
def _frozen() -> Case:
    e = reversible()
    made = functional(e, e, lambda h: e(h, reverse=True))
    e.trainable = False
    return made
