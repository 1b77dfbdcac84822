"""Masks that carry a factor, dropout written as products, one-hot matrices of other numbers than 1."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.build import B, Build, D, T, V, model
from tests.core.look import lookup_of, readout_of, readouts_of

from tiebeam.core.reading.provenance import provenance
from tiebeam.core.reading.switches import Levels, levels_of
from tiebeam.ir import Op


def tied(look=None, read=None):
    """A tied model with its own way of looking up, or of reading out."""
    g = Build()
    table, ids = g.leaf("embed.weight", (V, D)), g.input_ids()
    h = g.norm(g.residual(look(g, table, ids) if look else g.gather(table, ids)))
    return g.returned(read(g, h, table) if read else g.dot(h, table))


def counted(g):
    """Which tokens count: (B, T, 1) of bool."""
    return g.layout(g.compare(g.inputs[0], g.constant((), 0.0, "int64")), (B, T, 1), (0, 1, -1))


def switch(g):
    return g.cast(counted(g), "float32")


def drawn(g, share, *, above=False):
    """Random draws compared with the share that a dropout keeps, or with the one that it drops."""
    draws, number = g.random((B, T, 1)), 1.0 - share if above else share
    return g.cast(g.elementwise(Op.POINTWISE, draws, number, dtype="bool", label="lt"), "float32")


MASKS = {
    "a switch": (lambda g: switch(g), 1.0),
    "a switch that was passed in": (lambda g: g.cast(g.layout(g.input_ids(), (B, T, 1), (0, 1, -1)), "float32"), 1.0),
    "its opposite": (lambda g: g.sub(1.0, switch(g)), 1.0),
    "two switches": (lambda g: g.mul(switch(g), switch(g)), 1.0),
    "a switch times a number": (lambda g: g.mul(switch(g), 8.0), 8.0),
    "a bool times a number": (lambda g: g.elementwise(Op.MUL, counted(g), 8.0, dtype="float32"), 8.0),
    "a switch over a number": (lambda g: g.div(switch(g), -4.0), -0.25),
    "a choice of a number or nothing": (lambda g: g.elementwise(Op.UPDATE, 0.0, 3.0, switch(g)), 3.0),
    "a choice of two numbers": (lambda g: g.elementwise(Op.UPDATE, 2.0, 3.0, switch(g)), None),
    "a switch with a number added": (lambda g: g.add(switch(g), 2.0), None),
}


@pytest.mark.parametrize(("mask", "factor"), MASKS.values(), ids=MASKS)
def test_a_mask_multiplies_by_the_number_that_it_holds_where_it_is_on(mask, factor):
    rows = lookup_of(model(rows=lambda g, x: g.mul(x, mask(g))))
    logits = readout_of(model(hidden=lambda g, x: g.mul(x, mask(g))))
    assert (rows.factor, logits.factor) == (factor, factor)
    if factor is None:
        assert "a mask that holds the numbers 2, 3" in rows.notes[0]


DROPOUTS = {
    "divided behind": (lambda g, x: g.div(g.mul(drawn(g, 0.8), x), 0.8), 1.0),
    "multiplied behind": (lambda g, x: g.mul(g.mul(x, drawn(g, 0.8)), 1.25), 1.0),
    "divided before": (lambda g, x: g.mul(g.div(x, 0.8), drawn(g, 0.8)), 1.0),
    "the mask divided": (lambda g, x: g.mul(x, g.div(drawn(g, 0.8), 0.8)), 1.0),
    "draws above the rate": (lambda g, x: g.div(g.mul(x, drawn(g, 0.8, above=True)), 0.8), 1.0),
    "never divided": (lambda g, x: g.mul(x, drawn(g, 0.8)), 1.0),
    "with a factor": (lambda g, x: g.mul(g.div(g.mul(x, drawn(g, 0.8)), 0.8), 3.0), 3.0),
    "with a factor on the mask": (lambda g, x: g.mul(x, g.mul(g.div(drawn(g, 0.8), 0.8), 3.0)), 3.0),
    "divided twice": (lambda g, x: g.div(g.div(g.mul(x, drawn(g, 0.8)), 0.8), 0.8), 1.25),
    "divided by something else": (lambda g, x: g.div(g.mul(x, drawn(g, 0.8)), 0.4), 2.5),
    "no random mask": (lambda g, x: g.div(g.mul(x, switch(g)), 0.8), 1.25),
}


@pytest.mark.parametrize(("step", "factor"), DROPOUTS.values(), ids=DROPOUTS)
def test_a_random_mask_and_the_share_that_it_keeps_are_dropout(step, factor):
    assert lookup_of(model(rows=step)).factor == pytest.approx(factor)
    assert readout_of(model(hidden=step)).factor == pytest.approx(factor)
    assert readout_of(model(logits=step)).factor == pytest.approx(factor)


ONE_HOTS = {
    "as it is": (lambda g, x: x, 1.0),
    "multiplied": (lambda g, x: g.mul(x, 4.0), 4.0),
    "divided": (lambda g, x: g.div(x, 4.0), 0.25),
    "chosen": (lambda g, x: g.elementwise(Op.UPDATE, 0.0, 2.0, x), 2.0),
    "smoothed": (lambda g, x: g.add(g.mul(x, 0.9), 0.1 / V), None),
}


@pytest.mark.parametrize(("step", "factor"), ONE_HOTS.values(), ids=ONE_HOTS)
def test_a_one_hot_matrix_multiplies_the_rows_by_its_number(step, factor):
    g = tied(look=lambda g, table, ids: g.dot(step(g, g.one_hot(ids)), table, axis=0))
    lookup = lookup_of(g)
    assert (lookup.kind, lookup.factor) == ("product", factor)


numbers = st.floats(0.01, 100).flatmap(lambda x: st.sampled_from([x, -x]))


@given(st.lists(st.tuples(st.sampled_from("md"), numbers), max_size=5))
def test_the_levels_of_a_mask_are_scaled_by_any_chain_of_numbers(chain):
    g = model()
    value, expected = switch(g), 1.0
    for how, n in chain:
        value = g.mul(value, n) if how == "m" else g.div(value, n)
        expected = expected * n if how == "m" else expected / n
    graph = g.returned(*g.outputs, value).graph()
    found = levels_of(graph, provenance(graph), value)
    assert isinstance(found, Levels)
    assert sorted(found.numbers, key=abs) == pytest.approx([0.0, expected])


SUMS = {
    "halves": (lambda g, a, b: g.add(g.mul(a, 0.5), g.mul(b, 0.5)), {1.0}),
    "a multiple taken away": (lambda g, a, b: g.sub(a, g.mul(b, 0.25)), {0.75}),
    "one behind a function": (lambda g, a, b: g.add(g.mul(a, 0.5), g.pointwise(b)), {0.5, 1.0}),
    "one with a number of its own added": (lambda g, a, b: g.add(g.mul(a, 0.5), g.add(b, 1.0)), {None}),
}


@pytest.mark.parametrize(("step", "factors"), SUMS.values(), ids=SUMS)
def test_a_product_that_is_computed_twice_and_summed_has_the_factor_of_the_sum(step, factors):
    def read(g, h, table):
        return step(g, g.dot(h, table), g.dot(h, table))

    assert {r.factor for r in readouts_of(tied(read=read))} == factors


def test_two_different_products_with_one_table_that_are_summed_have_no_factor():
    def read(g, h, table):
        return g.add(g.mul(g.dot(h, table), 0.5), g.mul(g.dot(g.tanh(h), table), 0.5))

    readout = readout_of(tied(read=read))
    assert (readout.factor, readout.count) == (None, 2)
    assert "another product with the same table" in readout.notes[0]


def test_two_halves_of_the_width_that_are_summed_are_one_product():
    def read(g, h, table):
        halves = [g.dot(g.slice(h, 2, D // 2), g.slice(table, 1, D // 2)) for _ in range(2)]
        return g.mul(g.add(*halves), 0.25)

    assert {r.factor for r in readouts_of(tied(read=read))} == {0.25}
