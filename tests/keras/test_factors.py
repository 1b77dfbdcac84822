"""Factors that a product without a sum or a loop puts in; what is not known is None."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers, ops

import tiebeam

IDS = np.arange(10).reshape(2, 5).astype("int32")
Stage = Callable[[Any], Any]


class Between(keras.Model):
    """A tied model with something between the rows and the body, and something behind the logits."""

    def __init__(self, look: Stage | None = None, read: Stage | None = None) -> None:
        super().__init__(name="lm")
        self.embed = layers.Embedding(37, 8, name="embed")
        self.mid, self.norm = layers.Dense(8, activation="tanh"), layers.LayerNormalization()
        self.look, self.read = look, read

    def call(self, ids: Any) -> Any:
        rows = self.embed(ids)
        h = self.look(rows) if self.look else rows
        logits = ops.matmul(self.norm(h + self.mid(h)), ops.transpose(self.embed.embeddings))
        return self.read(logits) if self.read else logits


def seen(look: Stage | None = None, read: Stage | None = None) -> tiebeam.Table:
    model = Between(look, read)
    model(IDS)
    [table] = tiebeam.inspect(model, IDS).tables
    assert table.state == "tied"
    return table


def number(value: Any) -> Any:
    return ops.convert_to_tensor(np.float32(value))


TIMES: dict[str, Stage] = {
    "dot": lambda h: ops.dot(number(3.0), h),
    "einsum of a scalar": lambda h: ops.einsum("btd,->btd", h, number(3.0)),
    "einsum of one element": lambda h: ops.einsum("btd,x->btd", h, number([3.0])),
    "outer product with a scalar": lambda h: ops.tensordot(h, number(3.0), 0),
}


@pytest.mark.parametrize("times", [pytest.param(times, id=name) for name, times in TIMES.items()])
def test_a_product_with_one_element_multiplies(times: Stage) -> None:
    assert seen(times).lookup_factor == 3.0
    assert seen(read=times).readout_factor == 3.0


def looped(h: Any) -> Any:
    return ops.while_loop(lambda i, h: i < 3, lambda i, h: (i + 1, h * 2), (0, h))[1]


@pytest.mark.parametrize("loop", [looped, lambda h: ops.fori_loop(0, 3, lambda _, h: h * 2, h)])
def test_a_loop_that_multiplies_what_it_carries_gives_all_its_rounds_or_says_that_it_is_not_known(loop: Stage) -> None:
    known = None if keras.backend.backend() == "tensorflow" else 8.0
    rows, logits = seen(loop), seen(read=loop)
    assert (rows.lookup_factor, logits.readout_factor) == (known, known)
    assert known or "it comes from a loop that multiplies what it carries" in rows.notes[0]


def added_up(h: Any) -> Any:
    return ops.fori_loop(0, 3, lambda _, total: total + h, ops.zeros_like(h))


def handed_on(h: Any) -> Any:
    return ops.while_loop(lambda i, *_: i < 3, lambda i, a, _: (i + 1, h * 3, a), (0, h * 5, h * 7))[2]


def carried_by_a_scan(h: Any) -> Any:
    return ops.scan(lambda carry, by: (carry * by, carry), h, xs=ops.convert_to_tensor([1.0, 1.5, 2.0]))[0]


@pytest.mark.parametrize("loop", [added_up, handed_on, carried_by_a_scan])
def test_what_a_loop_adds_up_or_hands_on_has_the_factor_of_all_rounds_or_none(loop: Stage) -> None:
    known = None if keras.backend.backend() == "tensorflow" else 3.0
    assert seen(loop).lookup_factor == known
    assert seen(read=loop).readout_factor == known


def scanned(h: Any) -> Any:
    _, rows = ops.scan(lambda carry, x: (carry, x * 2), ops.zeros_like(h[:, 0]), ops.transpose(h, (1, 0, 2)))
    return ops.transpose(rows, (1, 0, 2))


@pytest.mark.parametrize("loop", [lambda h: ops.map(lambda x: x * 2, h), scanned])
def test_what_is_done_to_every_row_by_itself_is_done_once(loop: Stage) -> None:
    assert seen(loop).lookup_factor == 2.0
    assert seen(read=loop).readout_factor == 2.0
