"""From an operand back to the table: through views, casts, factors; and what is not the table itself."""

import pytest
from tests.core.build import Build, D, T, V

from tiebeam.core.reading.provenance import provenance
from tiebeam.core.reading.source import DEPTH, source_of, sources_of
from tiebeam.ir import Op


def source(g, weight, axis=1):
    """What stands behind the weight of a product."""
    g.returned(g.dot(g.input((T, g.shape(weight)[axis])), weight, axis))
    graph = g.graph()
    return source_of(graph, provenance(graph), graph.nodes[-1], 1)


PATHS = {
    "itself": (lambda g, w: w, (0, 1)),
    "transposed": (lambda g, w: g.transpose(w), (1, 0)),
    "transposed twice": (lambda g, w: g.transpose(g.transpose(w)), (0, 1)),
    "cast": (lambda g, w: g.cast(w), (0, 1)),
    "dropout": (lambda g, w: g.dropout(w), (0, 1)),
    "dropout written as a product": (lambda g, w: g.mul(w, g.random((V, 1))), (0, 1)),
    "cast and copied transposed": (lambda g, w: g.cast(g.transpose(g.cast(w))), (1, 0)),
    "sliced": (lambda g, w: g.slice(w, 0, V - 4), (0, 1)),
    "read at every place": (lambda g, w: g.gather(w, g.arange(V)), (0, 1)),
    "read in an order kept in a buffer": (lambda g, w: g.gather(w, g.buffer("order", (V,), dtype="int64")), (0, 1)),
    "gathered from shards": (lambda g, w: g.concat(g.slice(w, 0, V // 2), g.slice(w, 0, V // 2), axis=0), (0, 1)),
}


@pytest.mark.parametrize(("step", "axes"), PATHS.values(), ids=PATHS)
def test_a_table_is_found_behind(step, axes):
    g = Build()
    found = source(g, step(g, g.leaf("embed.weight", (V, D))), axes.index(1))
    assert (found.leaf.name, found.shape, found.axes) == ("embed.weight", (V, D), axes)
    assert (found.altered, found.attached, found.factor.value) == ("", True, 1.0)


ALTERED = {
    "a mask": lambda g, w: g.mask(w),
    "a low-rank product added": lambda g, w: g.add(w, g.leaf("delta", (V, D))),
    "a vector": lambda g, w: g.mul(w, g.leaf("gain", (D,))),
    "a function": lambda g, w: g.tanh(w),
    "a normalisation": lambda g, w: g.norm(w),
    "new rows": lambda g, w: g.update(w, g.leaf("rows", (V, D))),
}


@pytest.mark.parametrize("step", ALTERED.values(), ids=ALTERED)
def test_a_table_behind_this_is_found_and_said_not_to_be_read_as_it_is(step):
    g = Build()
    found = source(g, step(g, g.leaf("embed.weight", (V, D))))
    assert found.leaf.name == "embed.weight"
    assert found.altered


BENT = {
    "tanh": lambda g, w: g.mul(g.tanh(w), 2.0),
    "a sign": lambda g, w: g.pointwise(w, 0.0),
    "a clamp": lambda g, w: g.pointwise(w),
    "a normalisation": lambda g, w: g.norm(w),
    "a softmax": lambda g, w: g.softmax(w),
}


@pytest.mark.parametrize("step", BENT.values(), ids=BENT)
def test_a_table_that_is_not_multiplied_but_changed_otherwise_has_no_factor(step):
    g = Build()
    found = source(g, step(g, g.leaf("embed.weight", (V, D))))
    assert found.factor.value is None
    assert "no multiplication" in found.factor.reason


@pytest.mark.parametrize("axes", [(V,), ()])
def test_a_leaf_that_is_no_matrix_is_no_table(axes):
    g = Build()
    assert source(g, g.expand(g.leaf("x", axes), (V, V))) is None


def test_a_stack_of_matrices_is_no_table():
    g = Build()
    assert source(g, g.select(g.leaf("experts", (4, V, D)), 0)) is None


def test_a_matrix_with_an_axis_of_one_in_front_is_a_table():
    g = Build()
    found = source(g, g.select(g.leaf("embed", (1, V, D)), 0))
    assert (found.shape, found.axes) == ((1, V, D), (1, 2))


def test_what_an_input_reached_is_no_table():
    g = Build()
    assert source(g, g.mul(g.leaf("w", (V, D)), g.input(()))) is None


def test_what_was_computed_by_something_unknown_is_no_table():
    g = Build()
    assert source(g, g.opaque(g.leaf("w", (V, D)))) is None


def test_a_product_of_two_matrices_is_neither():
    g = Build()
    assert source(g, g.dot(g.leaf("a", (V, 4)), g.leaf("b", (D, 4)))) is None


def test_a_parameter_counts_rather_than_the_buffer_it_is_mixed_with():
    g = Build()
    assert source(g, g.add(g.buffer("base", (V, D)), g.leaf("embed.weight", (V, D)))).leaf.name == "embed.weight"


def test_a_detached_table_is_read_without_its_gradient():
    g = Build()
    assert not source(g, g.detach(g.leaf("embed.weight", (V, D)))).attached


def test_a_detached_table_stays_cut_off_under_what_is_trained_on_top_of_it():
    g = Build()
    found = source(g, g.add(g.detach(g.leaf("embed.weight", (V, D))), g.leaf("delta", (D,))))
    assert (found.leaf.name, found.attached) == ("embed.weight", False)


@pytest.mark.parametrize(
    "places", [lambda g: g.arange(V - 1), lambda g: g.input_ids((V,)), lambda g: g.cast(g.random((V,)), "int64")],
    ids=["fewer rows", "rows that are asked for", "rows drawn at random"],
)  # fmt: skip
def test_some_rows_of_a_table_are_not_the_table(places):
    g = Build()
    assert source(g, g.gather(g.leaf("embed.weight", (V, D)), places(g))) is None


@pytest.mark.parametrize("axis", [0, 1])
def test_parts_of_a_table_are_several(axis):
    g = Build()
    w = g.concat(g.leaf("a", (V, D)), g.leaf("b", (V, D)), axis=axis)
    g.returned(g.dot(g.input((T, g.shape(w)[1])), w))
    graph = g.graph()
    found = sources_of(graph, provenance(graph), graph.nodes[-1], 1)
    assert [(f.leaf.name, f.axes) for f in found] == [("a", (0, 1)), ("b", (0, 1))]


def test_one_of_several_matrices_that_were_stacked_is_one():
    g = Build()
    parts = [(-1, 0, 1)] * 2
    stacked = g.node(Op.CONCAT, [g.leaf("a", (V, D)), g.leaf("b", (V, D))], parts, (2, V, D), axis=0)
    g.returned(g.dot(g.input((T, D)), g.select(stacked, 0)))
    graph = g.graph()
    assert len(sources_of(graph, provenance(graph), graph.nodes[-1], 1)) == 1


def test_a_table_is_not_looked_for_without_end():
    g = Build()
    w = g.leaf("embed.weight", (V, D))
    for _ in range(DEPTH + 1):
        w = g.cast(w)
    assert source(g, w) is None


def test_a_table_as_the_divisor_is_not_the_table():
    g = Build()
    assert source(g, g.div(1.0, g.leaf("embed.weight", (V, D)))) is None


@pytest.mark.parametrize(
    ("step", "factor"),
    [
        pytest.param(lambda g, w: g.add(w, w), 2.0, id="a sum"),
        pytest.param(lambda g, w: g.add(w, g.mul(w, 3.0)), 4.0, id="a multiple added"),
        pytest.param(lambda g, w: g.sub(g.leaf("bias", (D,)), w), -1.0, id="taken from a bias"),
    ],
)
def test_a_sum_of_equal_terms_on_the_table_is_a_factor_or_unknown(step, factor):
    g = Build()
    found = source(g, step(g, g.leaf("embed.weight", (V, D))))
    assert found.factor.value in (factor, None)
