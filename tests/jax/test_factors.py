"""Factors that a product without a sum, a loop or a sum over devices puts in; what is not known is None."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import tiebeam

VOCAB, WIDTH = 37, 24
IDS = np.arange(10).reshape(2, 5)
Stage = Callable[..., Any]


def params() -> dict[str, Any]:
    return {"table": jax.random.normal(jax.random.key(0), (VOCAB, WIDTH)), "mid": jnp.ones((WIDTH, WIDTH))}


def seen(look: Stage | None = None, read: Stage | None = None, inputs: Any = IDS) -> tiebeam.Table:
    """The one table of a model of which `look` works on the rows, and `read` on hidden state and table."""

    def model(p: Any, ids: Any, *others: Any) -> Any:
        rows = p["table"][ids]
        h = look(rows, *others) if look else rows
        h = h + jnp.tanh(h @ p["mid"])
        h = h / jnp.sqrt(jnp.mean(h**2, -1, keepdims=True) + 1e-6)
        return read(h, p["table"]) if read else h @ p["table"].T

    [table] = tiebeam.inspect(model, inputs, params=params()).tables
    assert table.state == "tied"
    return table


def summed(by: Stage) -> Stage:
    """Three rounds of a sum that starts empty."""
    return lambda h: lax.fori_loop(0, 3, lambda _, total: by(total, h), jnp.zeros_like(h))


LOOKS: dict[str, tuple[Stage, float]] = {
    "scan of no rounds": (lambda h: lax.scan(lambda c, _: (c * 3, None), h, None, length=0)[0], 1.0),
    "rows added to an empty sum in each round": (summed(lambda c, h: c + h), 3.0),
    "rows subtracted from an empty sum in each round": (summed(lambda c, h: c - h), -3.0),
    "moving average of one thing": (summed(lambda c, h: 0.5 * c + (0.5 * h)), 0.875),
    "rows added to themselves in each round": (lambda h: lax.fori_loop(0, 3, lambda _, c: c + h, h), 4.0),
    "two that change places": (lambda h: lax.fori_loop(0, 3, lambda _, c: c[::-1], (2 * h, 3 * h))[0], 3.0),
    "what came in a round before": (lambda h: lax.fori_loop(0, 3, lambda _, c: (h * 2, c[0]), (h * 5, h * 7))[1], 2.0),
    "what came in no round before": (lambda h: lax.fori_loop(0, 1, lambda _, c: (h * 2, c[0]), (h * 5, h))[1], 5.0),
    "dot of a scalar": (lambda h: jnp.dot(5.0, h), 5.0),
    "einsum of a scalar": (lambda h: jnp.einsum("btd,->btd", h, 5.0), 5.0),
    "outer product with a scalar": (lambda h: jnp.tensordot(h, 5.0, 0), 5.0),
    "product with one element": (lambda h: (h[..., None] @ jnp.full((1, 1), 5.0))[..., 0], 5.0),
    "vector of equal numbers": (lambda h: h * np.full(h.shape[-1:], 5.0, np.float32), 5.0),
    "while loop": (lambda h: lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * 2), (0, h))[1], 8.0),
    "while loop of no rounds": (lambda h: lax.while_loop(lambda c: c[0] < 0, lambda c: (0, c[1] * 2), (0, h))[1], 1.0),
    "fori loop": (lambda h: lax.fori_loop(0, 3, lambda _, h: h * 2, h), 8.0),
}
READS: dict[str, tuple[Stage, float]] = {
    "einsum of three": (lambda h, table: jnp.einsum("btd,vd,->btv", h, table, 0.5), 0.5),
    "einsum of one element": (lambda h, table: jnp.einsum("btv,x->btv", h @ table.T, jnp.array([0.5])), 0.5),
    "while loop": (
        lambda h, table: lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * 2), (0, h @ table.T))[1],
        8.0,
    ),
}


@pytest.mark.parametrize(("look", "factor"), [pytest.param(*case, id=name) for name, case in LOOKS.items()])
def test_the_rows_are_multiplied_by_what_the_program_multiplies_them_by(look: Stage, factor: float) -> None:
    assert float(look(jnp.ones((1, 1, 1))).reshape(())) == factor
    table = seen(look)
    assert (table.lookup_factor, table.readout_factor) == (factor, 1.0)


@pytest.mark.parametrize(("read", "factor"), [pytest.param(*case, id=name) for name, case in READS.items()])
def test_the_logits_are_multiplied_by_what_the_program_multiplies_them_by(read: Stage, factor: float) -> None:
    table = seen(read=read)
    assert (table.lookup_factor, table.readout_factor) == (1.0, factor)


def test_a_number_for_every_position_is_no_factor() -> None:
    table = seen(read=lambda h, table: jnp.einsum("btv,t->btv", h @ table.T, jnp.arange(5.0)))
    assert table.readout_factor is None


LOOP = "it comes from a loop that multiplies what it carries"


def test_bits_that_are_read_as_another_dtype_carry_no_factor_on() -> None:
    def noted(h: jax.Array) -> jax.Array:
        return lax.bitcast_convert_type(lax.bitcast_convert_type(h * 2, jnp.uint8), jnp.float32)

    assert seen(lambda h: h * 3 + 0 * noted(h)).lookup_factor is None
    with_bits = seen(read=lambda h, table: (h @ table.T) + 0 * noted(h @ table.T))
    assert (with_bits.lookup_factor, with_bits.readout_factor) == (1.0, None)


def test_a_loop_of_a_number_of_rounds_that_is_an_input_has_no_factor() -> None:
    table = seen(lambda h, n: lax.fori_loop(0, n, lambda _, h: h * 2, h), inputs=(IDS, jnp.int32(3)))
    assert table.lookup_factor is None
    assert LOOP in table.notes[0]


@pytest.mark.parametrize(("factor", "known"), [(2.0, 2.0), (0.5, 0.5), (5.0, None)])
def test_in_one_length_a_factor_may_be_the_batch_but_not_the_length(factor: float, known: float | None) -> None:
    assert seen(lambda h: (h * factor).reshape(-1, 5, WIDTH)).lookup_factor == known


def test_each_round_that_a_scan_hands_out_has_a_factor_of_its_own() -> None:
    rounds = seen(lambda h: lax.scan(lambda c, _: (c * 2, c), h, None, length=3)[1][0])  # 1, 2 and 4 times
    assert (rounds.lookup_factor, rounds.notes) == (None, ("lookup_factor is not known: uses differ: 1, 4",))


@pytest.mark.parametrize("by", [lambda c, h: (c[0] + h, c[1]), lambda c, h: (h * 2, c[0])], ids=["a sum", "a delay"])
def test_many_rounds_of_what_adds_up_or_moves_on_have_no_factor(by: Stage) -> None:
    table = seen(lambda h: sum(lax.fori_loop(0, 100, lambda _, c: by(c, h), (jnp.zeros_like(h), jnp.zeros_like(h)))))
    assert table.lookup_factor is None


def test_rows_added_to_themselves_in_place_have_no_factor() -> None:
    assert seen(lambda h: h.at[:, jnp.arange(5)].add(h)).lookup_factor is None


def test_a_loop_of_many_rounds_has_no_factor() -> None:
    table = seen(lambda h: lax.fori_loop(0, 100, lambda _, h: h * 1.01, h))
    assert table.lookup_factor is None
    assert LOOP in table.notes[0]


def test_what_rounds_that_were_followed_compute_is_measured() -> None:
    def logits(h: Any, table: Any) -> Any:
        start = (0, h, jnp.zeros((2, 5, VOCAB)))
        return lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * 2, jnp.sin(c[1]) @ table.T), start)[2]

    table = seen(read=logits)
    assert table.hidden_rms is not None
    assert 0.1 < table.hidden_rms < 1.0


@pytest.mark.parametrize(
    ("shape", "look"),
    [
        ((2, VOCAB, WIDTH), lambda table, ids: table[0][ids] + table[1][ids]),
        ((VOCAB, 4, 6), lambda table, ids: table[ids].reshape(2, 5, 24)),
        ((VOCAB * WIDTH,), lambda table, ids: table[ids[..., None] * WIDTH + jnp.arange(WIDTH)]),
    ],
)
def test_what_ids_pick_from_is_named_where_it_is_no_table(shape: tuple[int, ...], look: Stage) -> None:
    report = tiebeam.inspect(lambda p, ids: jnp.tanh(look(p["odd"], ids)), IDS, params={"odd": jnp.ones(shape)})
    assert not report.tables
    assert any(f"token ids pick from 'odd' of shape {shape}" in note for note in report.notes), report.notes
