"""Dtype policies, LoRA, and what is quantised."""

from typing import Any

import keras
import ml_dtypes
import numpy as np
from keras import ops
from tests.keras.models.kit import WIDTH, Case, Written, case, functional, reversible, written


def rounded(x: float) -> float:
    """As bfloat16 has it."""
    return float(np.asarray(x).astype(ml_dtypes.bfloat16))


def under(policy: str, build: Any) -> Case:
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        made: Case = build()
    finally:
        keras.config.set_dtype_policy(before)
    return made


@case("policy_mixed_bfloat16")
def _mixed() -> Case:
    def build() -> Case:
        e = reversible(reverse_dtype="float32")
        return functional(e, lambda t: e(t) * 2.0, lambda h: e(h, reverse=True), lookup_factor=2.0, noise=0.05)

    return under("mixed_bfloat16", build)


@case("policy_bfloat16")
def _bfloat16() -> Case:
    def build() -> Case:
        e = reversible()
        return functional(
            e,
            lambda t: e(t) * ops.cast(10**0.5, "bfloat16"),
            lambda h: e(h, reverse=True),
            lookup_factor=rounded(10**0.5),
            noise=0.05,
        )

    return under("bfloat16", build)


@case("policy_mixed_written")
def _mixed_written() -> Case:
    class Model(Written):
        def look(self, tokens: Any) -> Any:
            return self.embed(tokens) * WIDTH**0.5

    # PyTorch multiplies by a Python number as it is; the others round it to the tensor's dtype first.
    factor = WIDTH**0.5 if keras.backend.backend() == "torch" else rounded(WIDTH**0.5)
    return under("mixed_bfloat16", lambda: written(Model, lookup_factor=factor, noise=0.05))


@case("lora_on_a_dense", staged=False)
def _lora_dense() -> Case:
    e = reversible()
    dense, norm = keras.layers.Dense(WIDTH), keras.layers.LayerNormalization()
    made = functional(e, e, lambda h: e(h, reverse=True), lambda x: norm(x + dense(x)))
    dense.enable_lora(2)
    return made
