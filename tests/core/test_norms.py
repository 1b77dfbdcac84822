"""Normalisations, told by what they do; and rows that nothing but a normalisation reads."""

import pytest
from tests.core.build import B, Build, D, T, V, model
from tests.core.look import lookup_of, readout_of

from tiebeam.core.reading.norms import every_use_normalizes, normalized_upstream, stream_before
from tiebeam.core.reading.provenance import provenance


def gain(g):
    return g.leaf("gain", (D,))


def multiplied_out(g, x):
    """x*r + (bias - mean*r), with r the gain over the size."""
    mean = g.mean(x)
    centred = g.sub(x, mean)
    r = g.mul(g.pointwise(g.add(g.mean(g.pointwise(centred, 2.0)), 1e-6), -0.5), gain(g))
    return g.add(g.mul(x, r), g.add(g.mul(g.mul(mean, -1.0), r), g.leaf("bias", (D,))))


NORMS = {
    "fused": lambda g, x: g.norm(x),
    "fused with gain and bias": lambda g, x: g.norm(x, gain(g), g.leaf("bias", (D,))),
    "RMSNorm": lambda g, x: g.decomposed_rms_norm(x),
    "RMSNorm with a gain": lambda g, x: g.decomposed_rms_norm(x, gain(g)),
    "RMSNorm with one plus its gain": lambda g, x: g.mul(g.decomposed_rms_norm(x), g.add(gain(g), 1.0)),
    "RMSNorm in another dtype": lambda g, x: g.cast(g.decomposed_rms_norm(g.cast(x, "float64"))),
    "RMSNorm divided by the root": lambda g, x: g.div(x, g.pointwise(g.add(g.mean(g.pointwise(x, 2.0)), 1e-6), 0.5)),
    "RMSNorm by a product with itself": lambda g, x: g.mul(
        x, g.pointwise(g.mean(g.mul(x, g.cast(x, "float32"))), -0.5)
    ),
    "LayerNorm": lambda g, x: g.decomposed_layer_norm(x),
    "LayerNorm with gain and bias": lambda g, x: g.decomposed_layer_norm(x, gain(g), g.leaf("bias", (D,))),
    "LayerNorm multiplied out": multiplied_out,
    "L2": lambda g, x: g.decomposed_l2_norm(x),
    "L2 times a number": lambda g, x: g.mul(g.decomposed_l2_norm(x), 4.0),
    "by the largest": lambda g, x: g.div(x, g.reduce(g.pointwise(x, 1.0), sums=False)),
    "dropout behind": lambda g, x: g.dropout(g.norm(x)),
    "a position picked": lambda g, x: g.select(g.norm(x), 1),
}


@pytest.mark.parametrize("write", NORMS.values(), ids=NORMS)
def test_a_normalisation_is_told_from_what_it_does(write):
    g = Build()
    stream = g.opaque(g.input((B, T, D)))
    y = write(g, stream)
    graph = g.returned(y).graph()
    found = stream_before(graph, provenance(graph), y)
    assert found is not None
    behind = graph.producer(found)
    assert found == stream or (behind.op.name == "CAST" and behind.inputs[0] == stream)


NO_NORMS = {
    "a product with a weight": lambda g, x: g.dot(x, g.leaf("w", (D, D))),
    "an activation": lambda g, x: g.pointwise(x),
    "a gate": lambda g, x: g.mul(x, g.sigmoid(x)),
    "a square": lambda g, x: g.mul(x, g.cast(x, "float32")),
    "a division by its square": lambda g, x: g.div(x, g.mean(g.pointwise(x, 2.0))),
    "a product with its own size": lambda g, x: g.mul(x, g.pointwise(g.mean(g.pointwise(x, 2.0)), 0.5)),
    "a large number under the root": lambda g, x: g.div(x, g.pointwise(g.add(g.mean(g.pointwise(x, 2.0)), 1.0), 0.5)),
    "the size of another": lambda g, x: g.div(x, g.reduce(g.input((B, T, D)), sums=False)),
    "a number": lambda g, x: g.mul(x, 3.0),
    "something unknown": lambda g, x: g.opaque(x),
    "a residual scaled on the way": lambda g, x: g.add(x, g.mul(g.norm(x), 0.5)),
    "two products that are added": lambda g, x: g.add(g.mul(x, gain(g)), g.mul(g.mean(x), gain(g))),
    "a sum of two normalisations": lambda g, x: g.add(g.norm(x), g.norm(g.pointwise(x))),
}


@pytest.mark.parametrize("write", NO_NORMS.values(), ids=NO_NORMS)
def test_what_keeps_the_size_of_its_input_is_no_normalisation(write):
    g = Build()
    stream = g.opaque(g.input((B, T, D)))
    y = write(g, stream)
    graph = g.returned(y).graph()
    assert stream_before(graph, provenance(graph), y) is None


UPSTREAM = {
    "a product with a weight": lambda g, x: g.dot(x, g.leaf("w", (D, D))),
    "a product with a bias": lambda g, x: g.add(g.dot(x, g.leaf("w", (D, D))), g.leaf("b", (D,))),
    "an activation": lambda g, x: g.pointwise(g.dot(x, g.leaf("w", (D, D)))),
    "an activation of two parts": lambda g, x: g.mul(x, g.sigmoid(g.mul(x, 1.7))),
    "a tanh": lambda g, x: g.tanh(x),
}


@pytest.mark.parametrize("step", UPSTREAM.values(), ids=UPSTREAM)
def test_a_normalisation_further_up_frees_the_hidden_state_from_the_table(step):
    readout = readout_of(model(hidden=step))
    assert (readout.normalized, readout.factor) == (True, 1.0)


NOT_UPSTREAM = {
    "none at all": lambda g, x: x,
    "in a residual branch": lambda g, x: g.add(x, g.dot(g.norm(x), g.leaf("w", (D, D)))),
    "behind something unknown": lambda g, x: g.opaque(g.norm(x)),
}


@pytest.mark.parametrize("norm", NOT_UPSTREAM.values(), ids=NOT_UPSTREAM)
def test_a_hidden_state_that_the_table_sizes_is_not_normalised(norm):
    assert not readout_of(model(norm=norm)).normalized


def test_the_normalisation_closest_to_the_readout_counts():
    g = Build()
    x = g.opaque(g.input((B, T, D)))
    y = g.norm(g.dot(g.norm(x), g.leaf("w", (D, D))))
    graph = g.returned(y).graph()
    assert normalized_upstream(graph, provenance(graph), y) == graph.producer(y).inputs[0]


# Rows that are normalised at once.


def norm_after(rows, body=Build.residual):
    return lookup_of(model(rows=rows, body=body)).norm_after


def embedding_norm(g, x):
    with g.at("embed_norm"):
        return g.norm(x, gain(g))


FIRST = {
    "a normalisation": embedding_norm,
    "a decomposed one": lambda g, x: g.decomposed_rms_norm(x),
    "a LayerNorm written out": lambda g, x: g.decomposed_layer_norm(x, gain(g)),
    "a scaled one": lambda g, x: embedding_norm(g, g.mul(x, 8.0)),
    "one after positions are added": lambda g, x: embedding_norm(
        g, g.add(x, g.gather(g.leaf("positions", (T, D)), g.arange(T)))
    ),
    "one after other embeddings are added": lambda g, x: embedding_norm(
        g, g.add(x, g.gather(g.leaf("types", (2, D)), g.input_ids()))
    ),
    "one after dropout": lambda g, x: embedding_norm(g, g.dropout(x)),
    "two of them": lambda g, x: g.add(g.norm(x), g.norm(x)),
}


@pytest.mark.parametrize("rows", FIRST.values(), ids=FIRST)
def test_rows_are_normalised_at_once_where_all_that_reads_them_is(rows):
    assert norm_after(rows)


NOT_FIRST = {
    "a pre-norm residual stream": lambda g, x: x,
    "a scaled residual stream": lambda g, x: g.mul(x, 8.0),
    "a product with a weight": lambda g, x: g.norm(g.dot(x, g.leaf("up", (D, D)))),
    "an activation": lambda g, x: g.norm(g.pointwise(x)),
    "a normalisation and a sum": lambda g, x: g.add(g.norm(x), x),
}


@pytest.mark.parametrize("rows", NOT_FIRST.values(), ids=NOT_FIRST)
def test_rows_that_something_else_reads_are_not_normalised_at_once(rows):
    assert not norm_after(rows)


def test_rows_that_are_returned_are_not_normalised_at_once():
    g = Build()
    rows = g.gather(g.leaf("embed.weight", (V, D)), g.input_ids())
    g.returned(g.norm(rows), rows)
    assert not lookup_of(g).norm_after


def test_rows_whose_sizes_are_returned_are_not_normalised_at_once():
    g = Build()
    rows = g.gather(g.leaf("embed.weight", (V, D)), g.input_ids())
    g.returned(g.norm(rows), g.pointwise(rows, 1.0, label="abs"))
    assert not lookup_of(g).norm_after


def post_norm(g, x):
    """norm(x + W x): the stream itself is normalised, but its weight reads the rows as they are."""
    return g.norm(g.add(x, g.dot(x, g.leaf("w", (D, D)))))


def test_a_block_that_reads_the_rows_before_its_normalisation_is_no_normalisation_of_them():
    assert not norm_after(lambda g, x: x, post_norm)


def block_norm(g, x):
    with g.at("layers.0.norm"):
        return g.dot(g.norm(x), g.leaf("w", (D, D)))


def test_the_norm_of_a_block_is_the_blocks_own():
    """Without a residual stream the first block's norm is all that reads the rows, and still not the embedding's."""
    assert not norm_after(lambda g, x: x, block_norm)


def test_the_norm_of_an_indexed_module_that_holds_the_lookup_is_the_embeddings():
    g = Build()
    with g.at("stages.0.embed"):
        rows = g.gather(g.leaf("embed.weight", (V, D)), g.input_ids())
    with g.at("stages.0.norm"):
        g.returned(g.norm(rows))
    graph = g.graph()
    assert every_use_normalizes(graph, rows, "stages.0.embed")
    assert not every_use_normalizes(graph, rows, "embed")


def test_an_unread_branch_does_not_keep_rows_from_being_normalised():
    def rows(g, x):
        g.pointwise(x)
        return g.norm(x)

    assert norm_after(rows)
