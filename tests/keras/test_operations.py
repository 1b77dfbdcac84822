"""Operations have no meaning where a variable has one shape for life: they say so, and the printed code ties."""

from collections.abc import Callable
from typing import Any

import keras
import pytest
from tests.keras.models.kit import ids, load

import tiebeam

load()


def test_a_keras_model_is_refused_with_what_to_do() -> None:
    inputs = keras.Input((None,), dtype="int32")
    table = keras.layers.ReversibleEmbedding(60, 16, name="tokens")
    model = keras.Model(inputs, table(table(inputs), reverse=True))
    reasons: dict[str, tuple[Callable[..., Any], ...]] = {
        "settled when it is built": (tiebeam.tie, tiebeam.untie, tiebeam.retie),
        "never replace one": (tiebeam.ties, tiebeam.guard),
        "one shape for life": (tiebeam.resize,),
        "its own files": (lambda m: tiebeam.save(m, "m.safetensors"), lambda m: tiebeam.load(m, "m.safetensors")),
    }
    for reason, operations in reasons.items():
        for operation in operations:
            with pytest.raises(tiebeam.BackendError, match=reason):
                operation(model)
    assert tiebeam.inspect(model, ids()).tables[0].state == "tied"
