"""What could be a readout of a table that is only looked up, and what surely is none."""

import pytest
from tests.core.build import B, Build, D, T, V
from tests.core.look import lookups_of, reads_of

from tiebeam.ir import Op


def unseen(step, table=None):
    """The reason why the table could be read out unseen, where the model ends in `step(g, hidden, table)`."""
    g = Build()
    w = g.leaf("embed.weight", (V, D))
    x = g.gather(w, g.input_ids())
    g.returned(step(g, g.norm(g.residual(x)), w))
    return " ".join(reads_of(g.graph()).unseen.values())


def labels(g, shape=(B, T)):
    return g.input_ids(shape)


DOUBTFUL = {
    "an operation of unknown body": lambda g, h, w: g.opaque(h, w, shape=(B, T)),
    "an operation of unknown body on the table made over": lambda g, h, w: g.opaque(
        h, g.norm(g.transpose(w)), shape=()
    ),
    "a product with a product of the table": lambda g, h, w: g.dot(h, g.dot(w, g.leaf("turn", (D, D)))),
    "a product with some of its rows": lambda g, h, w: g.dot(h, g.gather(w, g.arange(7))),
    "a product with the rows of the labels": lambda g, h, w: g.reduce(g.mul(h, g.gather(w, labels(g)))),
    "a product with the scaled rows of the labels": lambda g, h, w: g.node(
        Op.DOT, [g.mul(g.gather(w, labels(g)), 2.0), h], [(0, 1), (0, 1)], (B, T)
    ),
    "a foreign operation that gives logits": lambda g, h, w: g.node(Op.OPAQUE, [h], [None], (B, T, V), foreign=True),
}


@pytest.mark.parametrize("step", DOUBTFUL.values(), ids=DOUBTFUL)
def test_this_could_be_a_readout(step):
    assert unseen(step)


PLAIN = {
    "the hidden state": lambda g, h, w: h,
    "a readout that is seen": lambda g, h, w: g.dot(h, w),
    "the same with a size of the table added": lambda g, h, w: g.add(h, g.select(g.select(w, 0), 0)),
    "a foreign operation that gives a hidden state": lambda g, h, w: g.node(
        Op.OPAQUE, [h], [None], (B, T, D), foreign=True
    ),
    "a mixture of its rows": lambda g, h, w: g.dot(g.softmax(g.dot(h, g.leaf("to", (V, D)))), w, 0),
    "rows that gate the hidden state": lambda g, h, w: g.mul(h, g.gather(w, labels(g))),
    "another head": lambda g, h, w: g.dot(h, g.leaf("head.weight", (V, D))),
    "a dead product": lambda g, h, w: (g.opaque(h, w), h)[1],
}


@pytest.mark.parametrize("step", PLAIN.values(), ids=PLAIN)
def test_this_is_no_sign_of_a_readout(step):
    assert unseen(step) == ""


def scored(rows, read=True):
    """Lookups of a model that reads the rows of its labels, with the hidden state and with all logits beside."""
    g = Build()
    w = g.leaf("embed.weight", (V, D))
    h = g.norm(g.residual(g.mul(g.gather(w, g.input_ids()), 3.0)))
    logits = [g.dot(h, w)] if read else []
    g.returned(*logits, rows(g, h, g.gather(w, labels(g))))
    return {found.factor for found in lookups_of(g)}


def score(g, h, rows):
    return g.reduce(g.mul(h, rows))


def test_rows_that_only_score_a_hidden_state_beside_the_logits_are_no_lookup():
    assert scored(score) == {3.0}


@pytest.mark.parametrize(
    "rows",
    [
        lambda g, h, rows: g.mul(h, rows),
        lambda g, h, rows: g.add(score(g, h, rows), rows),
        lambda g, h, rows: score(g, g.residual(rows), rows),
        lambda g, h, rows: score(g, g.input((B, T, D)), rows),
    ],
    ids=["not summed", "used elsewhere too", "with what was made of them", "with something of the inputs"],
)
def test_rows_that_do_anything_else_are_a_lookup(rows):
    assert len(scored(rows)) == 2


def test_without_logits_beside_rows_that_score_are_a_lookup():
    assert None in scored(score, read=False)
