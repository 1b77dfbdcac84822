"""Few bits in one role of a Keras model, on PyTorch and on JAX."""

from typing import Any

import keras
import numpy as np

import tiebeam
from tiebeam.core.measuring.quantise import quantised


def host(value: Any) -> Any:
    """A copy on the host; what NumPy makes of a tensor that a gradient is asked for warns."""
    return np.array(value.detach().cpu().numpy() if hasattr(value, "detach") else value)


def held(layer: Any) -> list[Any]:
    return [host(w.value) for w in layer.weights]


def test_each_role_is_rounded_by_itself_and_the_model_left_alone() -> None:
    keras.utils.set_random_seed(0)
    table = keras.layers.ReversibleEmbedding(300, 16)
    ids = keras.Input((None,), dtype="int32")
    stream = keras.layers.LayerNormalization()(table(ids))
    model = keras.Model(ids, table(stream, reverse=True))
    batch = np.arange(24, dtype="int32").reshape(2, 12)
    before = held(model)
    found = tiebeam.sensitivity(model, batch, bits=(4,), group=None)
    for old, new in zip(before, held(model), strict=True):
        np.testing.assert_array_equal(old, new)
    rows = held(table)[0]
    logits = host(model(batch)).reshape(24, 300)
    hidden = np.linalg.lstsq(rows, logits.T, rcond=None)[0].T
    read = hidden @ quantised(rows, 4).T
    off = read - logits
    expected = np.sqrt(((off - off.mean(1, keepdims=True)) ** 2).mean())
    np.testing.assert_allclose(found.effect("readout", 4).logit_error, expected, rtol=1e-3)
    assert found.effect("lookup", 4).kl > 0


def test_a_live_keras_model_is_counted() -> None:
    table = keras.layers.ReversibleEmbedding(300, 16)
    ids = keras.Input((None,), dtype="int32")
    found = tiebeam.advise(keras.Model(ids, table(table(ids), reverse=True)), inputs=np.arange(6, dtype="int32")[None])
    assert (found.tied, found.untied, found.counted.now) == (4800, 9600, "tied")
