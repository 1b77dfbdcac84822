"""What is one table, and what state its tie is in."""

import numpy as np
import pytest
from tests.core.build import Build, D, V, model
from tests.core.look import always, never, table_of, tables_of

SIZE = V * D


def drawn(seed, shape=(V, D), std=1.0):
    return std * np.random.default_rng(seed).standard_normal(shape)


def pair(*, embed=None, head=None, vocab=V, width_first=False, **facts):
    """A lookup and a readout of a leaf each."""
    g = Build()
    shape = (D, vocab) if width_first else (vocab, D)
    w = g.leaf("embed.weight", (V, D), **(embed or {}))
    h = g.leaf("head.weight", shape, **(head or {}))
    with g.at("embed"):
        x = g.gather(w, g.input_ids())
    x = g.norm(g.residual(x))
    with g.at("head"):
        z = g.dot(x, h, 0 if width_first else 1)
    return g.returned(z)


def states(g, of=None, declares=never, **facts):
    return [t.state for t in tables_of(g, of, declares, **facts)]


def test_one_parameter_in_both_roles_is_tied():
    table = table_of(model())
    assert (table.state, table.tied, table.names) == ("tied", True, ("embed.weight",))
    assert (len(table.lookups), len(table.readouts), table.vocab, table.width) == (1, 1, V, D)


def test_a_table_read_in_one_role_is_not_tied():
    g = Build()
    g.returned(g.norm(g.gather(g.leaf("embed.weight", (V, D)), g.input_ids())))
    table = table_of(g)
    assert (table.state, table.tied) == ("untied", False)
    assert table.notes


def test_one_object_under_two_names_is_tied_with_both_names_owner_first():
    g = pair(embed={"key": 7, "aliases": ("head.weight",)}, head={"key": 7, "storage": 0, "aliases": ()})
    table = table_of(g)
    assert (table.state, table.names) == ("tied", ("embed.weight", "head.weight"))


def test_two_parameters_on_one_storage_are_aliased():
    table = table_of(pair(embed={"storage": 3}, head={"storage": 3}))
    assert (table.state, table.tied, table.names) == ("aliased", True, ("embed.weight", "head.weight"))


def test_two_parameters_that_overlap_in_part_are_aliased():
    g = pair(embed={"storage": 3, "span": (0, SIZE)}, head={"storage": 3, "span": (D, SIZE + D)})
    assert states(g) == ["aliased"]


def test_an_alias_stored_transposed_is_the_same_table():
    (table,) = tables_of(pair(embed={"storage": 3}, head={"storage": 3}, width_first=True))
    assert (table.state, table.vocab, table.width) == ("aliased", V, D)


def test_neighbours_in_one_storage_are_two_tables():
    g = pair(embed={"storage": 3, "span": (0, SIZE)}, head={"storage": 3, "span": (SIZE, 2 * SIZE)})
    assert states(g) == ["untied", "untied"]


def test_leaves_without_a_storage_are_not_aliased():
    assert states(pair(embed={"storage": -1}, head={"storage": -1})) == ["untied", "untied"]


def test_a_parameter_that_a_wrapper_fetched_is_no_alias():
    """An optimizer holds the parameter, not the copy that was put in its place for the pass."""
    assert states(pair(embed={"storage": 3}, head={"storage": 3, "fetched": True})) == ["tied"]


@pytest.mark.parametrize("place", ["rows", "table"])
def test_a_role_whose_gradient_does_not_reach_the_table_makes_it_cut(place):
    table = table_of(model(**{place: Build.detach}))
    assert (table.state, table.tied) == ("cut", False)


def test_equal_values_in_separate_memory_are_a_copy():
    w = drawn(0)
    tables = tables_of(pair(), {"embed.weight": w, "head.weight": w.copy()})
    assert [(t.state, t.distance, t.partner) for t in tables] == [
        ("copy", 0.0, "head.weight"),
        ("copy", 0.0, "embed.weight"),
    ]


def test_equal_values_stored_transposed_are_a_copy():
    w = drawn(0)
    tables = tables_of(pair(width_first=True), {"embed.weight": w, "head.weight": np.ascontiguousarray(w.T)})
    assert [(t.state, t.vocab_axis) for t in tables] == [("copy", 0), ("copy", 1)]


def test_the_rows_that_both_have_decide_where_one_is_padded():
    w = drawn(0)
    padded = np.concatenate([w, np.zeros((4, D))])
    assert states(pair(vocab=V + 4), {"embed.weight": w, "head.weight": padded}) == ["copy", "copy"]


def test_close_values_have_drifted():
    w = drawn(0)
    tables = tables_of(pair(), {"embed.weight": w, "head.weight": w + 0.1 * drawn(1)})
    assert {t.state for t in tables} == {"drifted"}
    assert tables[0].distance == pytest.approx(0.1, rel=0.2)


def test_independent_draws_are_untied_at_the_square_root_of_two():
    tables = tables_of(pair(), {"embed.weight": drawn(0), "head.weight": drawn(1)})
    assert {t.state for t in tables} == {"untied"}
    assert tables[0].distance == pytest.approx(2**0.5, rel=0.1)
    assert (tables[0].partner, tables[1].partner) == ("head.weight", "embed.weight")


def test_tables_that_are_declared_tied_and_differ_have_drifted_however_far():
    assert states(pair(), {"embed.weight": drawn(0), "head.weight": drawn(1)}, always) == ["drifted"] * 2


def test_a_declared_tie_without_values_is_unknown_with_the_reason():
    tables = tables_of(pair(), declares=always)
    assert {t.state for t in tables} == {"unknown"}
    assert all("no values" in t.notes[-1] for t in tables)


def test_two_tables_without_values_and_without_a_declaration_are_untied():
    assert states(pair()) == ["untied", "untied"]


def test_an_untied_model_has_a_table_for_each_role():
    lookup, readout = tables_of(pair(), {"embed.weight": drawn(0), "head.weight": drawn(1)})
    assert (len(lookup.lookups), lookup.readouts) == (1, ())
    assert (readout.lookups, len(readout.readouts)) == ((), 1)


def test_a_table_of_another_width_is_no_partner():
    g = Build()
    x = g.gather(g.leaf("embed.weight", (V, 4)), g.input_ids())
    x = g.norm(g.dot(x, g.leaf("up.weight", (D, 4))))
    g.returned(g.dot(x, g.leaf("head.weight", (V, D))))
    assert [(t.state, t.partner) for t in tables_of(g)] == [("untied", None)] * 2


def test_of_several_partners_the_closest_counts():
    g = Build()
    x = g.norm(g.residual(g.gather(g.leaf("embed.weight", (V, D)), g.input_ids())))
    g.returned(g.dot(x, g.leaf("far.weight", (V, D))), g.dot(x, g.leaf("near.weight", (V, D))))
    w = drawn(0)
    tables = tables_of(g, {"embed.weight": w, "far.weight": drawn(1), "near.weight": w})
    assert (tables[0].partner, tables[0].state) == ("near.weight", "copy")


def test_a_second_lookup_beside_a_tied_table_is_its_partner():
    g = Build()
    w, extra = g.leaf("embed.weight", (V, D)), g.leaf("extra.weight", (V, D))
    ids = g.input_ids()
    g.returned(g.dot(g.norm(g.residual(g.add(g.gather(w, ids), g.gather(extra, ids)))), w))
    assert [(t.state, t.partner) for t in tables_of(g)] == [("tied", None), ("untied", "embed.weight")]


def test_two_tied_tables_of_one_model_are_two_tables():
    g = Build()
    for name in ("text", "code"):
        w = g.leaf(f"{name}.weight", (V, D))
        g.outputs += (g.dot(g.norm(g.residual(g.gather(w, g.input_ids()), f"{name}.layers.0")), w),)
    assert [(t.name, t.state) for t in tables_of(g)] == [("text.weight", "tied"), ("code.weight", "tied")]


def test_tables_come_in_order_of_first_use():
    g = pair()
    assert [t.name for t in tables_of(g)] == ["embed.weight", "head.weight"]
