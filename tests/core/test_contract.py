"""Products written as a multiplication and a sum."""

from tests.core.build import B, Build, D, T, V
from tests.core.look import readout_of

from tiebeam.core.reading.contract import contracted
from tiebeam.ir import Op


def written_out(g, x, w, finish=lambda g, y: y):
    return g.reduce(finish(g, g.mul(g.layout(x, (B, T, 1, D), (0, 1, -1, 2)), w)), keep=False)


def test_a_sum_of_a_broadcast_product_is_one_product():
    g = Build()
    x, w = g.input((B, T, D)), g.leaf("w", (V, D))
    graph = contracted(g.returned(written_out(g, x, w)).graph())
    graph.validate()
    node = graph.nodes[-1]
    assert node.op is Op.DOT
    assert graph.values[node.inputs[1]].leaf.name == "w"
    assert node.axes[1] == (-1, -1, 0)
    assert node.axes[0][:2] == (0, 1)


def test_its_factors_are_read_like_any_products():
    g = Build()
    w = g.leaf("embed.weight", (V, D))
    x = g.mul(g.norm(g.residual(g.gather(w, g.input_ids()))), 0.5)
    g.returned(g.mul(written_out(g, x, w), -4.0))
    assert readout_of(g).factor == -2.0


def unchanged(g):
    graph = g.graph()
    return contracted(graph) is graph


def test_the_sum_of_squares_of_a_norm_is_left_as_it_is():
    g = Build()
    x = g.input((B, T, D))
    assert unchanged(g.returned(g.reduce(g.mul(x, g.cast(x)))))


def test_a_sum_with_a_weight_per_feature_is_left_as_it_is():
    g = Build()
    assert unchanged(g.returned(g.reduce(g.mul(g.input((B, T, D)), g.leaf("w", (D,))))))


def test_a_sum_over_an_axis_that_only_one_factor_has_is_left_as_it_is():
    g = Build()
    x = g.layout(g.input((B, T)), (B, T, 1), (0, 1, -1))
    assert unchanged(g.returned(g.reduce(g.mul(x, g.leaf("w", (V,))))))


def test_a_largest_element_of_a_product_is_left_as_it_is():
    g = Build()
    y = g.mul(g.layout(g.input((B, T, D)), (B, T, 1, D), (0, 1, -1, 2)), g.leaf("w", (V, D)))
    assert unchanged(g.returned(g.reduce(y, keep=False, sums=False)))


def test_a_sum_of_something_done_to_the_product_is_left_as_it_is():
    g = Build()
    y = written_out(g, g.input((B, T, D)), g.leaf("w", (V, D)), lambda g, y: g.pointwise(y))
    assert unchanged(g.returned(y))


def test_a_product_of_expanded_factors_that_were_divided_by_their_sizes_is_one_product():
    """A cosine: both sides are expanded to (B, T, V, D), each is divided by its norm, then multiplied and summed."""
    g = Build()
    x, w = g.input((B, T, D)), g.leaf("w", (V, D))
    a = g.layout(x, (B, T, V, D), (0, 1, -1, 2))
    b = g.layout(w, (B, T, V, D), (-1, -1, 0, 1))
    graph = contracted(
        g.returned(g.reduce(g.mul(g.decomposed_l2_norm(a), g.decomposed_l2_norm(b)), keep=False)).graph()
    )
    node = graph.nodes[-1]
    assert node.op is Op.DOT
    assert node.axes == ((0, 1, -1), (-1, -1, 2))


def test_a_product_of_signals_that_differ_everywhere_is_left_as_it_is():
    g = Build()
    x = g.input((B, T, V, D))
    assert unchanged(g.returned(g.reduce(g.mul(g.pointwise(x), g.pointwise(x)), keep=False)))
