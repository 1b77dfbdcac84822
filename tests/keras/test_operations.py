"""Operations have no meaning where a variable has one shape for life: they say so, and the printed code ties."""

import keras
import pytest
from tests.keras.models.kit import ids, load

import tiebeam

load()


def test_a_keras_model_is_refused_with_what_to_do() -> None:
    inputs = keras.Input((None,), dtype="int32")
    table = keras.layers.ReversibleEmbedding(60, 16, name="tokens")
    model = keras.Model(inputs, table(table(inputs), reverse=True))
    for operation in (tiebeam.tie, tiebeam.untie, tiebeam.retie, tiebeam.ties, tiebeam.guard, tiebeam.resize):
        with pytest.raises(tiebeam.BackendError, match="one shape for life"):
            operation(model)
    assert tiebeam.inspect(model, ids()).tables[0].state == "tied"
