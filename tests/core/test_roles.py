"""Who reads which table in which role, and what only looks like it."""

import pytest
from tests.core.build import B, Build, D, T, V, model
from tests.core.look import lookup_of, readout_of, reads_of, uses_of

from tiebeam.ir import Op


def names(reads):
    return {r.source.leaf.name for r in reads}


def body(g, x):
    return g.norm(g.residual(x))


def head(g, x, name="head.weight"):
    return g.dot(x, g.leaf(name, (V, D)))


LOOKUPS = {
    "a gather": lambda g, w: g.gather(w, g.input_ids()),
    "a gather on a table that is stored with its width first": lambda g, w: g.gather(g.transpose(w), g.input_ids(), 1),
    "a gather with shifted ids": lambda g, w: g.gather(w, g.add(g.input_ids(), g.constant((), 1.0, "int64"))),
    "a product with a one-hot matrix": lambda g, w: g.dot(g.one_hot(g.input_ids()), w, 0),
    "a product with a one-hot matrix, the table on the left": lambda g, w: g.table_on_the_left(
        g.transpose(w), g.transpose(g.one_hot(g.input_ids((T,))))
    ),
    "a product with one-hot rows written into zeros": lambda g, w: g.dot(
        g.node(Op.UPDATE, [g.constant((B, T, V)), g.input_ids()], [(0, 1, 2), None], (B, T, V)), w, 0
    ),
    "a product with counts of tokens": lambda g, w: g.dot(g.reduce(g.one_hot(g.input_ids()), 1, keep=False), w, 0),
}


@pytest.mark.parametrize("look", LOOKUPS.values(), ids=LOOKUPS)
def test_this_is_a_lookup(look):
    g = Build()
    x = look(g, g.leaf("embed.weight", (V, D)))
    if g.shape(x) == (D, T):
        x = g.transpose(x)
    g.returned(head(g, body(g, x)))
    reads = reads_of(g.graph())
    (read,) = reads.lookups
    assert (read.vocab, read.width, read.vocab_axis) == (V, D, 0)
    assert names(reads.readouts) == {"head.weight"}


@pytest.mark.parametrize(("look", "kind"), [("a gather", "gather"), ("a product with counts of tokens", "product")])
def test_a_lookup_says_how_it_reads(look, kind):
    g = Build()
    g.returned(head(g, body(g, LOOKUPS[look](g, g.leaf("embed.weight", (V, D))))))
    assert lookup_of(g).kind == kind


def counted(g, join):
    """How many came before, times or less a mask that the caller passes as integers."""
    mask = g.input_ids()
    return join(g.node(Op.OPAQUE, [mask], [None], (B, T), dtype="int64"), mask)


NO_LOOKUPS = {
    "positions that the program counts": lambda g, w: g.gather(w, g.arange(T)),
    "positions counted from a mask of the inputs": lambda g, w: g.gather(
        w,
        g.node(Op.OPAQUE, [g.compare(g.input_ids(), g.constant((), 0.0, "int64"))], [None], (B, T), dtype="int64"),
    ),
    "positions counted from a mask of integers, less it": lambda g, w: g.gather(w, counted(g, g.sub)),
    "positions counted from a mask of integers, times it": lambda g, w: g.gather(
        w, g.sub(counted(g, g.mul), g.constant((), 1.0, "int64"))
    ),
    "a codebook at the nearest entry": lambda g, w: g.gather(
        w, g.reduce(g.dot(g.input((B, T, D)), w), keep=False, degree=0.0, dtype="int64")
    ),
    "a product with a soft assignment": lambda g, w: g.dot(g.softmax(g.input((B, T, V))), w, 0),
    "a product with a matrix that the caller passes": lambda g, w: g.dot(g.input((B, T, V), "int64"), w, 0),
}


@pytest.mark.parametrize("look", NO_LOOKUPS.values(), ids=NO_LOOKUPS)
def test_this_is_no_lookup_of_tokens(look):
    g = Build()
    g.returned(look(g, g.leaf("table", (V, D))))
    reads = reads_of(g.graph())
    assert (reads.lookups, reads.readouts) == ((), ())


def test_a_position_table_beside_the_vocabulary_is_no_table():
    g = model(rows=lambda g, x: g.add(x, g.gather(g.leaf("positions", (V, D)), g.arange(T))))
    assert names(reads_of(g.graph()).lookups) == {"embed.weight"}


def test_positions_that_the_caller_passes_are_left_out_as_their_table_is_no_vocabulary():
    g = model(rows=lambda g, x: g.add(x, g.gather(g.leaf("positions", (8, D)), g.input_ids())))
    assert names(reads_of(g.graph()).lookups) == {"embed.weight"}


CHOSEN = {
    "the largest id": lambda g, ids: g.reduce(ids, sums=False, dtype="int64"),
    "ids in another order": lambda g, ids: g.layout(ids, (B, T), (0, 1)),
}


@pytest.mark.parametrize("choose", CHOSEN.values(), ids=CHOSEN)
def test_ids_that_were_chosen_among_ids_are_ids(choose):
    g = Build()
    x = g.gather(g.leaf("embed.weight", (V, D)), choose(g, g.input_ids()))
    assert names(reads_of(g.returned(head(g, body(g, x))).graph()).lookups) == {"embed.weight"}


def test_the_places_of_chosen_ids_are_no_ids():
    g = Build()
    w, ids = g.leaf("embed.weight", (V, D)), g.input_ids()
    values = g.reduce(ids, sums=False, dtype="int64")
    g.values.append(g.values[values]._replace(id=len(g.values)))
    g.grad.append(False)
    g.nodes[-1] = g.nodes[-1]._replace(outputs=(values, len(g.values) - 1))
    g.returned(head(g, body(g, g.gather(w, len(g.values) - 1))))
    assert reads_of(g.graph()).lookups == ()


def test_token_types_are_no_vocabulary():
    g = model(rows=lambda g, x: g.add(x, g.gather(g.leaf("types", (2, D)), g.input_ids())))
    assert names(reads_of(g.graph()).lookups) == {"embed.weight"}


@pytest.mark.parametrize("which", ["key", "storage"])
def test_a_number_that_is_one_tables_key_and_anothers_storage_does_not_make_them_one(which):
    g = Build()
    types = g.leaf("types", (2, D), key=7, storage=100)
    words = g.leaf("embed.weight", (V, D), key=8, storage=101)
    head = g.leaf(
        "head.weight", (V, D), **({"key": 100, "storage": 102} if which == "key" else {"key": 9, "storage": 7})
    )
    ids = g.input_ids()
    g.returned(g.dot(body(g, g.add(g.gather(words, ids), g.gather(types, ids))), head))
    assert names(reads_of(g.graph()).lookups) == {"embed.weight"}


def test_an_adapters_low_rank_lookup_is_no_vocabulary():
    def rows(g, x):
        down = g.gather(g.leaf("lora.down", (V, 2)), g.inputs[0])
        return g.add(x, g.dot(down, g.leaf("lora.up", (D, 2))))

    assert names(reads_of(model(rows=rows).graph()).lookups) == {"embed.weight"}


def test_a_second_table_of_the_vocabularys_size_is_kept():
    g = model(rows=lambda g, x: g.add(x, g.gather(g.leaf("extra", (V, D)), g.inputs[0])))
    assert names(reads_of(g.graph()).lookups) == {"embed.weight", "extra"}


READOUTS = {
    "a linear layer": lambda g, x, w: g.dot(x, w),
    "a product with the transpose": lambda g, x, w: g.dot(x, g.transpose(w), 0),
    "a copy transposed at every step": lambda g, x, w: g.dot(x, g.cast(g.transpose(w)), 0),
    "a cast table": lambda g, x, w: g.dot(x, g.cast(w)),
    "a padded table cut": lambda g, x, w: g.dot(x, g.slice(w, 0, V - 4)),
    "the table on the left": lambda g, x, w: g.table_on_the_left(w, g.transpose(g.flatten(x))),
    "a loss": lambda g, x, w: g.loss(g.dot(x, w), g.input_ids()),
    "a loss of probabilities": lambda g, x, w: g.loss(g.softmax(g.dot(x, w)), g.input_ids()),
    "a cross entropy by hand": lambda g, x, w: g.mean(
        g.node(
            Op.GATHER, [g.flatten(g.softmax(g.dot(x, w))), g.input_ids((B * T, 1))], [(0, -1), (0, 1)], (B * T, 1),
            axis=1,
        ),
        0,
    ),
    "a multiplication and a sum": lambda g, x, w: g.reduce(
        g.mul(g.layout(x, (B, T, 1, D), (0, 1, -1, 2)), w), keep=False
    ),
}  # fmt: skip


@pytest.mark.parametrize("read", READOUTS.values(), ids=READOUTS)
def test_this_is_a_readout(read):
    g = Build()
    w = g.leaf("embed.weight", (V, D))
    g.returned(read(g, body(g, g.gather(w, g.input_ids())), w))
    (found,) = reads_of(g.graph()).readouts
    assert (found.source.leaf.name, found.vocab, found.width, found.vocab_axis) == ("embed.weight", V, D, 0)


NO_READOUTS = {
    "a sum over the vocabulary": lambda g, x, w: g.reduce(g.dot(x, w)),
    "logits that go into something unknown": lambda g, x, w: g.opaque(g.dot(x, w), shape=(B, T, D)),
    "logits that a normalisation took": lambda g, x, w: g.norm(g.dot(x, w)),
    "labels that are the logits": lambda g, x, w: g.loss(x, g.dot(x, w)),
}


@pytest.mark.parametrize("read", NO_READOUTS.values(), ids=NO_READOUTS)
def test_a_product_whose_vocabulary_reaches_no_output_and_no_loss_is_no_readout(read):
    g = Build()
    w = g.leaf("embed.weight", (V, D))
    g.returned(read(g, body(g, g.gather(w, g.input_ids())), w))
    assert reads_of(g.graph()).readouts == ()


DECIDED = {
    "the largest logit alone": lambda g, z: g.reduce(z, sums=False),
    "the next token alone": lambda g, z: g.reduce(z, keep=False, sums=False, degree=0.0, dtype="int64"),
    "the normaliser of the logits": lambda g, z: g.reduce(z, sums=False, degree=None),
    "one logit of all": lambda g, z: g.select(z, 2),
    "log-probabilities picked by several indices": lambda g, z: g.node(
        Op.LAYOUT, [g.softmax(z), g.arange(B), g.input_ids((B,))], [(-1,), None, None], (B,)
    ),
    "log-probabilities under soft targets": lambda g, z: g.reduce(g.mul(g.softmax(z), g.input((B, T, V)))),
    "a mask of the labels": lambda g, z: g.reduce(g.mask(g.softmax(z), g.one_hot(g.input_ids()))),
    "a loss of each logit against its target": lambda g, z: g.node(
        Op.LOSS, [z, g.input((B, T, V))], [None, None], (), axis=-1
    ),
    "a loss by hand": lambda g, z: g.mean(g.mean(g.mean(g.pointwise(g.sub(z, g.input((B, T, V))), 2.0)))),
    "a label picked in a flat copy": lambda g, z: g.node(
        Op.GATHER, [g.layout(z, (B * T * V,), (-1,)), g.input_ids((B,))], [(-1,), (0,)], (B,), axis=0
    ),
}


@pytest.mark.parametrize("end", DECIDED.values(), ids=DECIDED)
def test_logits_of_a_looked_up_table_that_end_in_a_loss_or_a_choice_are_a_readout(end):
    assert names(reads_of(model(logits=end).graph()).readouts) == {"embed.weight"}


@pytest.mark.parametrize("end", [pytest.param(e, id=n) for n, e in DECIDED.items() if "picked in a flat" not in n])
def test_a_loss_or_a_choice_that_nobody_sees_is_none(end):
    g = model(logits=end)
    x = next(n.inputs[0] for n in reversed(g.nodes) if n.op is Op.DOT)
    assert reads_of(g.returned(x).graph()).readouts == ()


@pytest.mark.parametrize("end", ["the largest logit alone", "one logit of all", "a loss by hand"])
def test_a_layer_of_the_vocabularys_size_is_no_head_for_what_is_done_to_its_features(end):
    assert reads_of(model(head="layer.weight", logits=DECIDED[end]).graph()).readouts == ()


@pytest.mark.parametrize("end", ["log-probabilities picked by several indices", "log-probabilities under soft targets"])
def test_a_head_of_its_own_is_known_by_the_softmax_over_it(end):
    assert names(reads_of(model(head="head.weight", logits=DECIDED[end]).graph()).readouts) == {"head.weight"}


def test_probabilities_fed_back_into_the_table_are_no_readout():
    """The width reaches the output there, the vocabulary is summed over: an expected row, no logits."""
    g = Build()
    w = g.leaf("embed.weight", (V, D))
    x = body(g, g.gather(w, g.input_ids()))
    g.returned(g.dot(g.softmax(g.dot(x, w)), w, 0))
    assert reads_of(g.graph()).readouts == ()


def test_logits_that_nobody_returns_are_no_readout():
    g = model()
    x = g.nodes[-1].inputs[0]
    assert reads_of(g.returned(x).graph()).readouts == ()


def test_layers_of_the_body_are_no_readouts_though_they_are_as_large():
    """Vocabulary and width of one size: every layer has the readout's shape, the last one reads out."""
    g = Build()
    x = g.gather(g.leaf("embed.weight", (D, D)), g.input_ids())
    for i in range(2):
        x = g.residual(x, f"layers.{i}")
    g.returned(g.dot(g.norm(x), g.leaf("head.weight", (D, D))))
    assert names(reads_of(g.graph()).readouts) == {"head.weight"}


def test_layers_of_the_body_are_no_readouts_where_hidden_states_are_returned_as_well():
    g = Build()
    x = g.gather(g.leaf("embed.weight", (D, D)), g.input_ids())
    states = [x := g.residual(x, f"layers.{i}") for i in range(2)]
    g.returned(g.dot(g.norm(x), g.leaf("head.weight", (D, D))), *states)
    assert names(reads_of(g.graph()).readouts) == {"head.weight"}


def test_without_a_head_the_layers_of_a_residual_stream_are_none():
    g = Build()
    x = g.gather(g.leaf("embed.weight", (D, D)), g.input_ids())
    g.returned(g.residual(g.residual(x), "layers.1"))
    assert reads_of(g.graph()).readouts == ()


def test_layers_are_no_readouts_beside_a_tied_one_where_hidden_states_are_returned_as_well():
    g = Build()
    w = g.leaf("embed.weight", (D, D))
    y = g.pointwise(g.dot(g.gather(w, g.input_ids()), g.leaf("layer.weight", (D, D))))
    g.returned(g.dot(g.norm(y), w), y)
    assert names(reads_of(g.graph()).readouts) == {"embed.weight"}


def test_a_feed_forward_layer_as_wide_as_the_vocabulary_is_no_readout():
    def ffn(g, x):
        y = g.pointwise(g.dot(g.norm(x), g.leaf("up.weight", (V, D))))
        return g.add(x, g.dot(y, g.leaf("down.weight", (D, V))))

    assert names(reads_of(model(body=ffn).graph()).readouts) == {"embed.weight"}


def test_a_classifier_over_a_few_labels_is_no_readout():
    g = Build()
    x = body(g, g.gather(g.leaf("embed.weight", (V, D)), g.input_ids()))
    g.returned(g.dot(x, g.leaf("classifier.weight", (3, D))))
    reads = reads_of(g.graph())
    assert (len(reads.lookups), reads.readouts) == (1, ())


def test_a_readout_of_a_padded_vocabulary_belongs_to_the_lookup():
    g = Build()
    x = body(g, g.gather(g.leaf("embed.weight", (V, D)), g.input_ids()))
    g.returned(g.dot(x, g.leaf("head.weight", (V + 4, D))))
    assert names(reads_of(g.graph()).readouts) == {"head.weight"}


def test_several_heads_are_all_readouts():
    g = Build()
    x = body(g, g.gather(g.leaf("embed.weight", (V, D)), g.input_ids()))
    g.returned(head(g, x, "head.0.weight"), head(g, x, "head.1.weight"))
    assert names(reads_of(g.graph()).readouts) == {"head.0.weight", "head.1.weight"}


def test_a_table_read_by_four_modules_is_found_four_times():
    g = Build()
    w = g.leaf("shared.weight", (V, D))
    x = body(g, g.add(g.gather(w, g.input_ids()), g.gather(w, g.input_ids())))
    g.returned(g.dot(x, w), g.dot(g.norm(x), w))
    reads = reads_of(g.graph())
    assert (len(reads.lookups), len(reads.readouts)) == (2, 2)


def test_a_factorised_table_is_read_through_its_projections():
    g = Build()
    w = g.leaf("embed.weight", (V, 4))
    x = g.dot(g.gather(w, g.input_ids()), g.leaf("up.weight", (D, 4)))
    y = g.norm(g.dot(body(g, x), g.leaf("down.weight", (4, D))))
    g.returned(g.dot(y, w))
    reads = reads_of(g.graph())
    assert [(r.source.leaf.name, r.width) for r in (*reads.lookups, *reads.readouts)] == [("embed.weight", 4)] * 2


def test_tied_transposed_weights_of_an_autoencoder_are_no_table():
    g = Build()
    w = g.leaf("encoder.weight", (V, D))
    g.returned(g.dot(g.pointwise(g.dot(g.input((B, V)), w, 0)), w))
    reads = reads_of(g.graph())
    assert (reads.lookups, reads.readouts) == ((), ())


def test_a_model_without_tables_has_no_records():
    g = Build()
    g.returned(g.dot(g.input((B, D)), g.leaf("w", (3, D))))
    assert uses_of(g.graph()) == []


def test_a_table_of_one_column_is_a_table():
    g = Build()
    w = g.leaf("embed.weight", (V, 1))
    g.returned(g.dot(g.norm(g.gather(w, g.input_ids())), w))
    reads = reads_of(g.graph())
    assert [(r.vocab, r.width) for r in (*reads.lookups, *reads.readouts)] == [(V, 1), (V, 1)]


def test_a_record_says_where_it_reads_and_by_which_path():
    g = model(head="head.weight")
    assert (lookup_of(g).where, lookup_of(g).name) == ("embed", "embed.weight")
    assert (readout_of(g).where, readout_of(g).name) == ("head", "head.weight")
