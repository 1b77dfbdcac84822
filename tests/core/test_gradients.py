"""Whether a gradient of the outputs reaches the table through a role."""

import pytest
from tests.core.build import Build, D, V, model
from tests.core.look import lookup_of, readout_of

from tiebeam.core.reading.gradients import reached_by_gradients


def test_both_roles_of_a_plain_model_are_reached():
    g = model()
    assert (lookup_of(g).gradient, readout_of(g).gradient) == (True, True)


def test_a_detached_table_is_cut_off_in_the_role_that_reads_it():
    g = model(table=Build.detach)
    assert (lookup_of(g).gradient, readout_of(g).gradient) == (True, False)


def test_detached_rows_are_cut_off():
    g = model(rows=Build.detach)
    assert (lookup_of(g).gradient, readout_of(g).gradient) == (False, True)


def test_a_lookup_under_no_grad_is_cut_off():
    g = Build()
    w = g.leaf("embed.weight", (V, D))
    with g.no_grad():
        rows = g.gather(w, g.input_ids())
    g.returned(g.dot(g.norm(g.residual(rows)), w))
    assert (lookup_of(g).gradient, readout_of(g).gradient) == (False, True)


def test_a_readout_under_no_grad_beside_a_loss_that_trains_is_cut_off():
    g = Build()
    w = g.leaf("embed.weight", (V, D))
    x = g.norm(g.residual(g.gather(w, g.input_ids())))
    with g.no_grad():
        z = g.dot(x, w)
    g.returned(z, g.dot(x, g.leaf("classifier.weight", (3, D))))
    assert (lookup_of(g).gradient, readout_of(g).gradient) == (True, False)


def test_a_custom_function_runs_unrecorded_and_is_reached_where_its_output_carries_a_gradient():
    g = Build()
    w = g.leaf("embed.weight", (V, D))
    x = g.norm(g.residual(g.gather(w, g.input_ids())))
    with g.no_grad():
        product = g.dot(x, w)
        z = g.node(g.nodes[-1].op.CAST, [product], [(0, 1, 2)], g.shape(product), grad=True)
    g.returned(z)
    assert readout_of(g).gradient
    assert lookup_of(g).gradient


def test_a_frozen_table_is_not_cut():
    g = Build()
    w = g.leaf("embed.weight", (V, D), trainable=False)
    g.returned(g.dot(g.norm(g.residual(g.gather(w, g.input_ids()))), w))
    assert (lookup_of(g).gradient, readout_of(g).gradient) == (True, True)


def test_a_pass_whose_outputs_carry_no_gradient_at_all_says_nothing():
    g = Build()
    with g.no_grad():
        w = g.leaf("embed.weight", (V, D))
        g.returned(g.dot(g.norm(g.gather(w, g.input_ids())), w))
    assert (lookup_of(g).gradient, readout_of(g).gradient) == (True, True)


@pytest.mark.parametrize("returned", [0, 1])
def test_only_the_branch_that_leads_to_an_output_is_reached(returned):
    g = Build()
    leaves = [g.leaf(n, (D,)) for n in "ab"]
    made = [g.mul(v, 2.0) for v in leaves]
    graph = g.returned(made[returned]).graph()
    assert [reached_by_gradients(graph)[v] for v in leaves] == [returned == 0, returned == 1]


def test_an_operand_whose_gradient_is_not_known_counts_as_reached():
    g = Build()
    x = g.mul(g.leaf("a", (D,)), 2.0)
    graph = g.returned(x).graph()
    assert reached_by_gradients(graph)[graph.nodes[0].inputs[1]]


def test_a_choice_that_is_returned_beside_a_loss_does_not_cut_its_readout():
    g = Build()
    w = g.leaf("embed.weight", (V, D))
    x = g.norm(g.residual(g.gather(w, g.input_ids())))
    token = g.reduce(g.dot(x, w), keep=False, sums=False, degree=0.0, dtype="int64")
    g.returned(g.dot(x, g.leaf("classifier.weight", (3, D))), token)
    assert readout_of(g).gradient


def test_a_choice_from_a_detached_table_is_cut_off():
    g = Build()
    w = g.leaf("embed.weight", (V, D))
    x = g.norm(g.residual(g.gather(w, g.input_ids())))
    token = g.reduce(g.dot(x, g.detach(w)), keep=False, sums=False, degree=0.0, dtype="int64")
    g.returned(g.dot(x, g.leaf("classifier.weight", (3, D))), token)
    assert not readout_of(g).gradient
