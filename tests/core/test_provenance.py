"""Where values come from: token ids stay ids through integer operations, and stop being ids at anything else."""

import pytest
from tests.core.build import B, Build, T, V

from tiebeam.core.reading.numbers import ONE, Factor, is_mask, scalar, uniform
from tiebeam.core.reading.provenance import IDS, INPUT, INTS, LEAF, RANDOM, provenance
from tiebeam.ir import Op


def flag(g, value):
    return provenance(g.returned(value).graph())[value]


STAYS_IDS = {
    "as they came": lambda g, x: x,
    "reshaped": lambda g, x: g.layout(x, (B * T,), (0,)),
    "shifted by one": lambda g, x: g.slice(x, 1, T - 1),
    "cast to another integer": lambda g, x: g.cast(x, "int32"),
    "put in as floats, and made integers": lambda g, x: g.cast(g.layout(g.input((B, T)), (B, T), (0, 1)), "int32"),
    "an offset added": lambda g, x: g.add(x, g.constant((), 5.0, "int64")),
    "clamped": lambda g, x: g.pointwise(x),
    "padding replaced": lambda g, x: g.mask(x),
    "a prefix in front": lambda g, x: g.concat(g.constant((B, 2), dtype="int64"), x, axis=1),
    "mapped through a table of integers": lambda g, x: g.gather_integers(x),
}


class Ids(Build):
    def gather_integers(self, ids):
        table = self.buffer("remap", (V,), dtype="int64")
        return self.node(Op.GATHER, [table, ids], [(-1, -1), (0, 1)], self.shape(ids), axis=0)


@pytest.mark.parametrize("step", STAYS_IDS.values(), ids=STAYS_IDS)
def test_token_ids_stay_ids(step):
    g = Ids()
    assert flag(g, step(g, g.input_ids())) & (INPUT | INTS | IDS) == INPUT | INTS | IDS


NO_IDS = {
    "a comparison": lambda g, x: g.compare(x, g.constant((), 0.0, "int64")),
    "a count of a comparison": lambda g, x: g.reduce(
        g.cast(g.compare(x, g.constant((), 0.0, "int64")), "int64"), keep=False
    ),
    "a cumulative count": lambda g, x: g.node(
        Op.OPAQUE, [g.compare(x, g.constant((), 0.0, "int64"))], [None], (B, T), dtype="int64"
    ),
}


@pytest.mark.parametrize("step", NO_IDS.values(), ids=NO_IDS)
def test_what_is_computed_from_ids_through_integers_alone_is_no_id_but_still_integers(step):
    g = Build()
    assert flag(g, step(g, g.input_ids())) & (INPUT | INTS | IDS) == INPUT | INTS


NO_INTEGERS = {
    "a float input": lambda g: g.input((B, T)),
    "an argmax of activations": lambda g: g.reduce(g.input((B, T, 4)), keep=False, dtype="int64"),
    "ids plus rounded activations": lambda g: g.add(g.input_ids(), g.cast(g.pointwise(g.input((B, T))), "int64")),
    "ids in floating-point functions": lambda g: g.pointwise(g.cast(g.input_ids(), "float32")),
    "a mask times a weight": lambda g: g.mul(g.cast(g.input_ids(), "float32"), g.leaf("w", (T,))),
}


@pytest.mark.parametrize("step", NO_INTEGERS.values(), ids=NO_INTEGERS)
def test_what_activations_went_into_is_not_of_integers(step):
    g = Build()
    assert flag(g, step(g)) & (INPUT | INTS | IDS) == INPUT


def test_a_mask_times_a_number_is_still_a_mask():
    g = Build()
    assert flag(g, g.sub(1.0, g.cast(g.input_ids(), "float32"))) & INTS


@pytest.mark.parametrize("compared", [True, False])
def test_rows_of_an_identity_matrix_are_one_hot_and_rows_of_another_constant_are_no_integers(compared):
    g = Ids()
    matrix = g.cast(g.compare(g.constant((V, V)), g.constant((V, V))), "float32") if compared else g.constant((V, V))
    rows = g.node(Op.GATHER, [matrix, g.input_ids()], [(-1, -1, 1), (0, 1, -1)], (B, T, V), axis=0)
    g = g.returned(rows).graph()
    assert bool(provenance(g)[rows] & INTS) is compared
    assert is_mask(g, provenance(g), rows) is compared


def test_parameters_and_buffers_leave_their_mark_and_inputs_do_not():
    g = Build()
    w = g.leaf("w", (T,))
    made = g.mul(g.add(w, 1.0), g.input((B, T)))
    flags = provenance(g.returned(made).graph())
    assert (flags[w], flags[made]) == (LEAF, LEAF | INPUT)


def test_a_random_draw_leaves_its_mark():
    g = Build()
    assert flag(g, g.mul(g.random((T,)), 2.0)) == RANDOM


def test_positions_made_from_nothing_have_no_mark():
    g = Build()
    assert flag(g, g.add(g.arange(T), 1.0)) == 0


def test_a_product_of_a_random_draw_is_a_mask_and_a_weights_is_none():
    g = Build()
    drawn, weight, one = g.random((T,)), g.leaf("w", (T,)), g.random(())
    mixed = g.mul(drawn, weight)
    graph = g.returned(mixed, one).graph()
    flags = provenance(graph)
    assert [is_mask(graph, flags, v) for v in (drawn, weight, mixed, one)] == [True, False, False, False]


# Factors.


def test_factors_multiply_with_their_sign():
    assert Factor(-0.5).times(Factor(4.0)).value == -2.0


def test_an_unknown_factor_stays_unknown_and_keeps_the_first_reason():
    unknown, other = Factor(None, "lost"), Factor(None, "random")
    for made in (unknown.times(Factor(2.0)), Factor(2.0).times(unknown), unknown.plus(ONE), unknown.inverse()):
        assert (made.value, made.reason) == (None, "lost")
    assert unknown.times(other).reason == "lost"


def test_that_a_number_of_the_program_went_in_is_remembered():
    literal = Factor(2.0, literals=frozenset((7,)))
    for made in (literal.times(ONE), ONE.times(literal), literal.plus(ONE), literal.inverse()):
        assert made.literal
    assert not ONE.times(ONE).literal


def test_a_division_by_zero_is_unknown():
    assert Factor(0.0).inverse().value is None


def test_a_number_of_the_program_is_literal_and_a_buffers_is_not():
    g = Build()
    number, buffer = g.literal(3.0), g.buffer("scale", (), number=3.0)
    both = g.mul(number, buffer)
    graph = g.returned(both).graph()
    flags = provenance(graph)
    assert scalar(graph, flags, number) == Factor(3.0, literals=frozenset((number,)))
    assert scalar(graph, flags, buffer) == Factor(3.0)


def test_a_vector_is_no_scalar_and_counts_as_its_number_where_all_elements_are_equal():
    g = Build()
    equal, mixed = g.leaf("a", (T,), number=2.0), g.leaf("b", (T,))
    graph = g.returned(g.add(equal, mixed)).graph()
    flags = provenance(graph)
    assert scalar(graph, flags, equal) is scalar(graph, flags, mixed) is None
    assert uniform(graph, flags, equal) == Factor(2.0)
    assert uniform(graph, flags, mixed) is None
