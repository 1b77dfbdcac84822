"""What findings print for Keras models: it runs, and what it was printed for is gone."""

from typing import Any

import keras
import numpy as np
import pytest
from keras import ops
from tests.keras.models.kit import CASES, Written, embedding, ids, load, numbers, residual, reversible

import tiebeam

load()


def mended(model: Any, code: str, inputs: Any) -> None:
    """Run the fix of a finding, and look again."""
    finding = next(f for f in tiebeam.inspect(model, inputs).findings if f.code == code)
    assert finding.fix
    exec(compile(finding.fix, code, "exec"), {"model": model, "inputs": inputs, "tiebeam": tiebeam})
    assert code not in {f.code for f in tiebeam.inspect(model, inputs).findings}


class Two(Written):
    """A second embedding as the head."""

    def make_body(self) -> None:
        super().make_body()
        self.head = embedding(name="head")
        self.head.build()

    def read(self, h: Any) -> Any:
        return ops.matmul(h, ops.transpose(self.head.embeddings))


def test_two_equal_tables_become_one_variable() -> None:
    keras.backend.clear_session(free_memory=False)
    model = Two()
    model(ids())
    model.head._embeddings.assign(numbers(model.embed._embeddings))
    many = len(model.variables)
    mended(model, "copy-not-tie", ids())
    assert model.head._embeddings is model.embed._embeddings
    assert len(model.variables) == many - 1
    assert tiebeam.inspect(model, ids()).tables[0].state == "tied"
    model.embed._embeddings.assign(numbers(model.embed._embeddings) * 2)
    assert np.array_equal(numbers(model.head.embeddings), numbers(model.embed.embeddings))


def test_a_head_of_another_layout_has_no_line_that_ties_it() -> None:
    case = CASES["copied_reverse_embeddings"]()
    finding = next(f for f in tiebeam.inspect(case.model, case.inputs).findings if f.code == "copy-not-tie")
    assert not finding.fix
    assert finding.hint


def test_a_table_of_unit_std_is_drawn_anew() -> None:
    keras.backend.clear_session(free_memory=False)
    e = keras.layers.ReversibleEmbedding(300, 48, embeddings_initializer=keras.initializers.RandomNormal(stddev=1.0))
    norm = keras.layers.RMSNormalization()
    tokens = keras.Input((None,), dtype="int32")
    mended(keras.Model(tokens, e(norm(e(tokens)), reverse=True)), "init-scale", ids(vocab=300))


@pytest.mark.parametrize("nested", [False, True])
def test_a_table_frozen_alone_is_trained_again(nested: bool) -> None:
    keras.backend.clear_session(free_memory=False)
    e, body = reversible(name="tok"), residual()
    tokens = keras.Input((None,), dtype="int32")
    logits = e(body(e(tokens)), reverse=True)
    model = keras.Model(tokens, logits, name="inner")
    if nested:
        outer = keras.Input((None,), dtype="int32")
        model = keras.Model(outer, model(outer))
    e.trainable = False
    mended(model, "frozen-both-roles", ids())
    assert e.trainable
    assert tiebeam.inspect(model, ids()).tables[0].trainable
