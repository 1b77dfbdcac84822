"""From a lookup forwards: what is passed, what is collected, what ends."""

import math

import pytest
from tests.core.build import B, Build, D, T, V, model
from tests.core.look import lookup_of, readout_of

from tiebeam.ir import Op


def rows_factor(step):
    return lookup_of(model(rows=lambda g, x: g.mul(step(g, g.mul(x, 2.0)), 4.0))).factor


def pad_mask(g):
    """1.0 where a token is no padding: (B, T, 1)."""
    mask = g.cast(g.compare(g.inputs[0], g.constant((), 0.0, "int64")), "float32")
    return g.layout(mask, (B, T, 1), (0, 1, -1))


PASSED = {
    "a reshape": lambda g, x: g.unflatten(g.flatten(x)),
    "a transpose there and back": lambda g, x: g.transpose(g.transpose(x, 0, 1), 0, 1),
    "a cast": lambda g, x: g.cast(x),
    "a slice": lambda g, x: g.slice(x, 1, T - 1),
    "a slice of the width": lambda g, x: g.concat(g.slice(x, 2, D - 4), g.constant((B, T, 4)), axis=2),
    "dropout": lambda g, x: g.dropout(x),
    "dropout written as a product": lambda g, x: g.mul(x, g.random((B, T, D))),
    "a mask": lambda g, x: g.mask(x),
    "a product with a padding mask": lambda g, x: g.mul(x, pad_mask(g)),
    "rows replaced by others": lambda g, x: g.update(x, g.input((B, T, D))),
    "a soft prompt in front": lambda g, x: g.concat(g.leaf("prompt", (B, 2, D)), x, axis=1),
    "a bias": lambda g, x: g.add(x, g.leaf("bias", (D,))),
    "a bias taken away": lambda g, x: g.sub(x, g.leaf("bias", (D,))),
    "learned positions": lambda g, x: g.add(x, g.gather(g.leaf("positions", (T, D)), g.arange(T))),
    "token types": lambda g, x: g.add(x, g.gather(g.leaf("types", (2, D)), g.input_ids())),
    "an image's features": lambda g, x: g.add(g.input((B, T, D)), x),
    "a number added": lambda g, x: g.add(x, 3.0),
}


@pytest.mark.parametrize("step", PASSED.values(), ids=PASSED)
def test_the_walk_from_a_lookup_passes_through(step):
    assert rows_factor(step) == 8.0


COLLECTED = {
    "a number": (lambda g, x: g.mul(x, 3.0), 3.0),
    "a number in front": (lambda g, x: g.mul(3.0, x), 3.0),
    "a negative number": (lambda g, x: g.mul(x, -0.5), -0.5),
    "a divisor": (lambda g, x: g.div(x, 8.0), 0.125),
    "a negation": (lambda g, x: g.neg(x), -1.0),
    "a buffer without axes": (lambda g, x: g.mul(x, g.buffer("scale", (), number=5.0)), 5.0),
    "a buffer of one element": (lambda g, x: g.mul(x, g.buffer("scale", (1,), number=5.0)), 5.0),
    "a buffer cast": (lambda g, x: g.mul(x, g.cast(g.buffer("scale", (), number=5.0))), 5.0),
    "a buffer expanded": (lambda g, x: g.mul(x, g.expand(g.buffer("s", (1,), number=5.0), (D,))), None),
    "a tensor made in forward": (lambda g, x: g.div(x, g.constant((1, 1, 1), 4.0)), 0.25),
    "a parameter": (lambda g, x: g.mul(x, g.leaf("temperature", (), number=7.0)), 7.0),
    "a transformed parameter": (
        lambda g, x: g.mul(x, g.pointwise(g.leaf("log", (), number=1.0), number=math.e, label="exp")),
        math.e,
    ),
    "a vector of equal elements": (lambda g, x: g.mul(x, g.leaf("gain", (D,), number=2.0)), 2.0),
    "the sum of two": (lambda g, x: g.add(x, x), 2.0),
    "a difference of two": (lambda g, x: g.sub(x, x), 0.0),
    "a multiple added": (lambda g, x: g.add(x, g.mul(x, 3.0)), 4.0),
    "a multiple in front": (lambda g, x: g.add(g.mul(x, 3.0), x), 4.0),
    "a multiple taken away": (lambda g, x: g.sub(x, g.mul(x, 0.25)), 0.75),
    "taken away from a multiple": (lambda g, x: g.sub(g.div(x, 0.125), x), 7.0),
    "a multiple of a cast": (lambda g, x: g.add(x, g.mul(g.cast(x), -3.0)), -2.0),
    "itself taken from a bias": (lambda g, x: g.sub(g.leaf("bias", (D,)), x), -1.0),
}


@pytest.mark.parametrize(("step", "factor"), COLLECTED.values(), ids=COLLECTED)
def test_the_walk_from_a_lookup_collects(step, factor):
    if factor is None:
        assert rows_factor(step) == pytest.approx(40.0)
    else:
        assert rows_factor(step) == pytest.approx(8.0 * factor, rel=1e-12)


ENDS = {
    "a fused normalisation": lambda g, x: g.norm(x),
    "a decomposed normalisation": lambda g, x: g.decomposed_rms_norm(x),
    "a normalisation with a gain": lambda g, x: g.mul(g.norm(x), g.leaf("gain", (D,))),
    "a product with a weight": lambda g, x: g.dot(x, g.leaf("up.weight", (D, D))),
    "an activation": lambda g, x: g.pointwise(x),
    "a tanh": lambda g, x: g.tanh(x),
    "a gate": lambda g, x: g.mul(x, g.sigmoid(x)),
    "a residual branch": lambda g, x: g.residual(x),
    "a power": lambda g, x: g.pointwise(x, 2.0),
    "a sum": lambda g, x: g.expand(g.reduce(x), (B, T, D)),
    "a reciprocal": lambda g, x: g.div(1.0, x),
    "something unknown": lambda g, x: g.opaque(x),
    "an update with what was made of the rows": lambda g, x: g.update(x, g.pointwise(x)),
}


@pytest.mark.parametrize("step", ENDS.values(), ids=ENDS)
def test_the_walk_from_a_lookup_ends_at(step):
    """Of the two factors the first is before, the second behind."""
    assert rows_factor(step) == 2.0


UNKNOWN = {
    "a vector": (lambda g, x: g.mul(x, g.leaf("gain", (D,))), "is no scalar"),
    "a matrix": (lambda g, x: g.mul(x, g.leaf("gain", (T, D))), "is no scalar"),
    "a number of the inputs": (lambda g, x: g.mul(x, g.input(())), "depends on the inputs"),
    "a number computed from the inputs": (
        lambda g, x: g.div(x, g.pointwise(g.cast(g.select(g.select(g.inputs[0], 0), 0), "float32"))),
        "depends on the inputs",
    ),
    "a vector of the inputs": (lambda g, x: g.mul(x, g.input((B, T, 1))), "depends on the inputs"),
    "a random number": (lambda g, x: g.mul(x, g.random(())), "random"),
    "a division by zero": (lambda g, x: g.div(x, 0.0), "zero"),
}


@pytest.mark.parametrize(("step", "reason"), UNKNOWN.values(), ids=UNKNOWN)
def test_what_is_no_known_constant_makes_the_factor_none_and_says_why(step, reason):
    lookup = lookup_of(model(rows=step))
    assert lookup.factor is None
    assert reason in lookup.notes[0]


def test_a_buffer_that_lost_its_value_on_meta_is_named():
    lookup = lookup_of(model(Build(meta=True), rows=lambda g, x: g.mul(x, g.buffer("embed.scale", (), lost=True))))
    assert lookup.factor is None
    assert "lost on meta" in lookup.notes[0]
    assert "embed.scale" in lookup.notes[0]


def test_a_value_computed_from_a_lost_buffer_is_lost_too_and_names_it():
    def step(g, x):
        return g.mul(x, g.pointwise(g.buffer("embed.log_scale", (), lost=True), lost=True))

    assert "embed.log_scale" in lookup_of(model(Build(meta=True), rows=step)).notes[0]


def test_on_meta_a_learned_vector_is_a_gain_and_ends_the_walk():
    def step(g, x):
        return g.mul(g.mul(g.mul(x, 2.0), g.leaf("gain", (D,))), 4.0)

    assert lookup_of(model(Build(meta=True), rows=step)).factor == 2.0


def test_branches_that_differ_have_no_common_factor():
    def step(g, x):
        return g.add(g.norm(g.mul(x, 2.0)), g.norm(g.mul(x, 3.0)))

    lookup = lookup_of(model(rows=step))
    assert lookup.factor is None
    assert "2" in lookup.notes[0]
    assert "3" in lookup.notes[0]


def test_branches_that_agree_have_their_common_factor():
    def step(g, x):
        return g.add(g.norm(g.mul(x, 3.0)), g.norm(g.div(x, 1 / 3)))

    assert lookup_of(model(rows=step)).factor == pytest.approx(3.0)


def counts(g):
    """How many tokens of each row are no padding: (B, 1, 1)."""
    return g.layout(g.reduce(g.select(pad_mask(g), 2)), (B, 1, 1), (0, 1, -1))


@pytest.mark.parametrize(
    "step",
    [lambda g, x: g.add(g.mul(x, 2.0), g.mul(x, 2.0)), lambda g, x: g.mul(g.add(g.cast(x), g.cast(x)), 2.0)],
    ids=["multiples", "casts"],
)
def test_a_sum_of_terms_that_are_all_made_from_the_rows_is_their_sum_or_unknown(step):
    assert lookup_of(model(rows=step)).factor in (4.0, None)


@pytest.mark.parametrize("factors", [(2.0, 3.0), (3.0, 2.0)], ids=str)
def test_parts_that_were_scaled_apart_and_joined_have_no_common_factor(factors):
    def step(g, x):
        return g.concat(*(g.mul(x, f) for f in factors), axis=1)

    assert lookup_of(model(rows=step)).factor is None


@pytest.mark.parametrize("step", [Build.mul, Build.div], ids=["times", "over"])
def test_a_count_of_the_inputs_is_no_mask(step):
    assert lookup_of(model(rows=lambda g, x: step(g, x, counts(g)))).factor is None


def test_where_one_branch_ends_the_walk_ends_for_all():
    """A pre-norm residual stream: what is behind the split belongs to the branches."""

    def step(g, x):
        x = g.mul(x, 2.0)
        return g.add(g.norm(x), g.mul(x, 4.0))

    assert lookup_of(model(rows=step)).factor == 2.0


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_norm_that_casts_first_does_not_move_the_end_of_the_walk(dtype):
    """A norm written for bfloat16 casts to float32 on its branch; in float32 it does not."""

    def step(g, x):
        x = g.mul(x, 2.0)
        y = g.cast(x, "float32") if dtype == "bfloat16" else x
        return g.add(g.cast(g.norm(y), dtype), g.mul(x, 4.0))

    assert lookup_of(model(rows=step)).factor == 2.0


def test_a_branch_that_nobody_reads_does_not_count():
    def step(g, x):
        x = g.mul(x, 2.0)
        g.norm(x)
        return g.mul(x, 4.0)

    assert lookup_of(model(rows=step)).factor == 8.0


def test_rows_that_are_returned_end_the_walk_there():
    g = Build()
    rows = g.mul(g.gather(g.leaf("embed.weight", (V, D)), g.input_ids()), 2.0)
    g.returned(rows, g.mul(rows, 4.0))
    assert lookup_of(g).factor == 2.0


def test_the_rms_of_the_rows_is_that_at_the_end_of_the_walk():
    g = model(rows=lambda g, x: g.mul(x, -8.0))
    gathered = next(n.output for n in g.nodes if n.op.name == "GATHER")
    assert lookup_of(g, rms={gathered: 0.5}).rms == 4.0


def test_without_a_factor_the_rms_of_the_rows_is_not_known_either():
    g = model(rows=lambda g, x: g.mul(x, g.leaf("gain", (D,))))
    gathered = next(n.output for n in g.nodes if n.op.name == "GATHER")
    assert lookup_of(g, rms={gathered: 0.5}).rms is None


def test_copies_of_the_rows_that_are_stacked_and_added_up_are_a_factor():
    def stacked(g, x):
        parts = [(0, 1, 2, -1)] * 4
        return g.reduce(g.node(Op.CONCAT, [x] * 4, parts, (B, T, D, 4), axis=3), keep=False)

    assert lookup_of(model(rows=stacked)).factor == 4.0
    assert lookup_of(model(rows=lambda g, x: g.mul(g.mul(stacked(g, x), 0.25), 8.0))).factor == 8.0
    assert readout_of(model(hidden=stacked)).factor == 4.0


def test_rows_of_different_tokens_that_are_added_up_end_the_walk():
    g = model(rows=lambda g, x: g.mul(g.reduce(x, 1), 8.0))
    assert lookup_of(g).factor == 1.0


@pytest.mark.parametrize(
    "own",
    [lambda g, w: g.reduce(g.reduce(g.pointwise(w, 2.0), 1), 0), lambda g, w: g.select(g.select(w, 0), 0)],
    ids=["its size", "an entry"],
)  # fmt: skip
@pytest.mark.parametrize("place", ["rows", "hidden", "logits", "table"])
def test_a_number_computed_from_the_table_itself_is_no_constant(place, own):
    g = Build()
    w = g.leaf("embed.weight", (V, D))
    x = g.gather(w, g.input_ids())
    number = own(g, w)
    g.values[number] = g.values[number]._replace(number=3.0)
    steps = {"rows": 0, "hidden": 0, "logits": 0, "table": 0, place: 1}
    x = g.div(x, number) if steps["rows"] else x
    x = g.norm(g.residual(x))
    x = g.mul(x, number) if steps["hidden"] else x
    z = g.dot(x, g.div(w, number) if steps["table"] else w)
    g.returned(g.mul(z, number) if steps["logits"] else z)
    record = lookup_of(g) if steps["rows"] else readout_of(g)
    assert record.factor is None
    assert "table itself" in record.notes[0]
