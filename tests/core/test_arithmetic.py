"""What a pass does with arrays and single numbers: enough to tell that another pass does the same."""

from collections.abc import Callable

from tests.core.build import Build, D, V
from tests.core.look import uses_of

from tiebeam.core.reading.arithmetic import Arithmetic, arithmetic_in_doubt


def in_doubt(look: Callable[[Build, int], int], read: Callable[[Build, int], int]) -> Arithmetic | None:
    g = Build()
    w = g.leaf("embed.weight", (V, D))
    x = g.norm(look(g, g.gather(w, g.input_ids())))
    graph = g.returned(read(g, g.dot(x, w))).graph()
    return arithmetic_in_doubt(graph, uses_of(graph))


def as_it_is(g: Build, x: int) -> int:
    return x


def numbers(found: Arithmetic | None) -> list[float | None]:
    assert found is not None
    return [n for _, n in found.steps]


def test_numbers_stand_in_order_up_to_the_last_in_doubt() -> None:
    found = in_doubt(lambda g, x: g.mul(x, 8.0), lambda g, x: g.mul(g.mul(x, 3.0), 0.5))
    assert found is not None
    mine = [n for n in numbers(found) if n in (8.0, 3.0, 0.5)]
    assert mine == [8.0, 3.0, 0.5]
    assert found.needed == len(found.steps)


def test_what_comes_behind_the_last_in_doubt_is_known_and_not_needed() -> None:
    found = in_doubt(lambda g, x: g.mul(x, 8.0), lambda g, x: g.add(x, 5.0))
    assert found is not None
    assert numbers(found) == [8.0, 5.0]
    assert found.needed == 1


def test_without_a_number_in_doubt_there_is_nothing_to_show() -> None:
    assert in_doubt(as_it_is, as_it_is) is None
    assert in_doubt(lambda g, x: g.mul(x, g.buffer("scale", (), number=8.0)), as_it_is) is None


def test_a_number_in_doubt_that_no_array_meets_by_itself_is_not_shown() -> None:
    spread = in_doubt(lambda g, x: g.mul(x, g.expand(g.literal(8.0), g.values[x].shape)), as_it_is)
    assert spread is None


def test_another_pass_goes_on_alike_where_labels_and_numbers_are_equal() -> None:
    expected = Arithmetic((("Mul", 8.0), ("AddV2", None), ("Mul", 2.0)), 3)
    assert expected.continues([])
    assert expected.continues([("Mul", 8.0 * (1 + 1e-8)), ("AddV2", 5.0)])  # one that is not known may be any
    assert not expected.continues([("Mul", 8.1)])
    assert not expected.continues([("RealDiv", 8.0)])
    assert not expected.continues([("Mul", 8.0), ("AddV2", 5.0), ("Mul", 2.0), ("Mul", 2.0)])
