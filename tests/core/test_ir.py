"""What every graph must keep to, and that a graph that does not is refused."""

from dataclasses import FrozenInstanceError, replace

import pytest
from tests.core.build import Build, D, V, model

from tiebeam.errors import TraceError
from tiebeam.ir import Graph, Node, Op, Origin


@pytest.fixture
def graph():
    return model().graph()


def with_node(graph, at, **changes):
    nodes = list(graph.nodes)
    nodes[at] = nodes[at]._replace(**changes)
    return replace(graph, nodes=tuple(nodes))


def test_a_well_formed_graph_is_accepted(graph):
    graph.validate()


def test_a_value_out_of_place_is_refused(graph):
    values = (graph.values[0]._replace(id=7), *graph.values[1:])
    with pytest.raises(TraceError, match=r"value 0 .* out of place"):
        replace(graph, values=values).validate()


def test_a_node_out_of_place_is_refused(graph):
    with pytest.raises(TraceError, match=r"node 1 .* malformed"):
        with_node(graph, 1, index=5).validate()


def test_an_operand_without_axes_is_refused(graph):
    with pytest.raises(TraceError, match=r"node 0 .* malformed"):
        with_node(graph, 0, axes=graph.nodes[0].axes[:1]).validate()


def test_axes_of_another_rank_than_the_output_are_refused(graph):
    with pytest.raises(TraceError, match="maps the axes of value") as caught:
        with_node(graph, 0, axes=((-1, 1), None)).validate()
    assert (caught.value.got, caught.value.expected) == ("2 axes", "3, one for each axis of the output")


def test_reading_a_value_that_is_made_later_is_refused(graph):
    with pytest.raises(TraceError, match="made later"):
        with_node(graph, 0, inputs=(graph.nodes[-1].output, graph.nodes[0].inputs[1])).validate()


def test_reading_its_own_output_is_refused(graph):
    with pytest.raises(TraceError, match="made later"):
        with_node(graph, 0, inputs=(graph.nodes[0].output, graph.nodes[0].inputs[1])).validate()


def test_a_graph_is_frozen(graph):
    with pytest.raises(FrozenInstanceError):
        graph.outputs = ()


def test_consumers_are_listed_once_each_in_order():
    g = Build()
    x = g.leaf("x", (D,))
    y = g.add(x, x)
    g.returned(g.mul(x, y))
    graph = g.graph()
    assert graph.consumers[x] == (0, 1)
    assert graph.consumers[y] == (1,)
    assert graph.consumers[graph.outputs[0]] == ()


def test_what_no_node_made_has_no_producer(graph):
    assert graph.producer(graph.inputs[0]) is None
    assert graph.producer(graph.outputs[0]) is graph.nodes[-1]


def test_a_node_without_outputs_is_accepted():
    g = Build()
    x = g.leaf("x", (D,))
    node = Node(0, Op.OPAQUE, (x,), (), (None,), "print")
    Graph(tuple(g.values), (node,), (), ()).validate()


@pytest.mark.parametrize(("dtype", "integral"), [("int64", True), ("uint8", True), ("bool", True), ("bfloat16", False)])
def test_integers_and_booleans_are_integral(dtype, integral):
    g = Build()
    assert g.values[g.input((2,), dtype)].integral is integral


def test_a_size_is_the_number_of_elements():
    g = Build()
    assert [g.values[g.leaf("x", shape)].size for shape in [(), (1, 1), (V, D), (0, D)]] == [1, 1, V * D, 0]


def test_a_leaf_is_called_by_its_owner():
    g = Build()
    leaf = g.values[g.leaf("embed.weight", (V, D), aliases=("head.weight",))].leaf
    assert leaf.name == "embed.weight"
    assert leaf._replace(names=()).name == "<unnamed tensor>"


def test_the_builder_itself_refuses_shapes_that_do_not_broadcast():
    g = Build()
    with pytest.raises(ValueError, match="do not broadcast"):
        g.add(g.leaf("a", (3,)), g.leaf("b", (4,)))


def test_the_builder_names_where_values_come_from():
    g = Build()
    made = [g.input_ids(), g.leaf("x", ()), g.literal(2.0), g.constant(), g.random(())]
    origins = [g.values[v].origin for v in made]
    assert origins == [Origin.INPUT, Origin.LEAF, Origin.LITERAL, Origin.CONSTANT, Origin.RANDOM]
