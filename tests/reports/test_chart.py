import math

import hypothesis.strategies as st
import pytest
from hypothesis import given
from tests.reports.trees import tree

from tiebeam.reports.chart import chart

finite = st.floats(-1e6, 1e6)


def points(polyline):
    return [tuple(map(float, p.split(","))) for p in polyline.attributes["points"].split()]


def ticks(picture):
    """Labels of the loss axis, top last."""
    found = [t for t in picture.all("text") if t.attributes.get("text-anchor") == "end" and t.text != "ln V"]
    return [float(t.text.replace(",", "")) for t in found]


@given(st.lists(st.lists(st.tuples(st.integers(0, 10**6), finite), max_size=8), min_size=1, max_size=8))
def test_every_finite_point_lies_inside_the_axes(curves):
    picture = tree(chart({str(i): c for i, c in enumerate(curves)}))
    drawn = [p for line in picture.all("polyline") for p in points(line)]
    assert len(drawn) == sum(map(len, curves))
    assert all(45.9 <= x <= 470.1 and 13.9 <= y <= 258.1 for x, y in drawn)


def test_a_larger_loss_is_drawn_higher_and_a_later_step_further_right():
    (line,) = tree(chart({"a": [(0, 9.0), (5, 3.0), (10, 2.0)]})).all("polyline")
    assert [y for _, y in points(line)] == sorted(y for _, y in points(line))
    assert [x for x, _ in points(line)] == [46.0, 258.0, 470.0]


def test_losses_far_apart_are_drawn_on_a_logarithmic_axis():
    near, far = chart({"a": [(0, 9.0), (1, 3.0)]}), chart({"a": [(0, 110.0), (1, 4.0)]})
    assert "loss, nats (log scale)" not in near
    assert "loss, nats (log scale)" in far
    assert ticks(tree(far)) == [5, 10, 20, 50, 100]
    assert ticks(tree(near)) == [4, 6, 8]


def test_ln_v_is_dotted_inside_the_axes_even_where_no_loss_comes_near_it():
    picture = tree(chart({"a": [(0, 5.0), (1, 4.0)]}, 10.82))
    (line,) = picture.all("line", "tb-lnv")
    assert 14 <= float(line.attributes["y1"]) < min(y for _, y in points(picture.all("polyline")[0]))
    assert "ln V = 10.82" in picture.all("figcaption")[0].text


def test_a_loss_that_is_not_finite_leaves_a_gap():
    lines = tree(chart({"a": [(0, 5.0), (1, 4.0), (2, math.nan), (3, math.inf), (4, 3.0)]})).all("polyline")
    assert [len(points(line)) for line in lines] == [2, 1]


def test_where_nothing_is_finite_it_says_so():
    assert chart({"a": [(0, math.nan)], "b": []}) == "<p>No finite loss to draw.</p>"


def test_many_points_are_thinned_and_a_spike_stays():
    curve = [(i, 2.0) for i in range(10_000)]
    curve[5000] = (5000, 3.0)
    (line,) = tree(chart({"a": curve})).all("polyline")
    drawn = points(line)
    assert len(drawn) < 1000
    assert drawn[0][0] == 46.0
    assert drawn[-1][0] == 470.0
    assert sum(y < 100 for _, y in drawn) == 1


def test_each_curve_has_its_row_and_its_own_line_style():
    page = tree(chart({"A": [(0, 9.0), (1, 3.0), (2, 4.0)], "B": [(0, 8.0)], "C": []}))
    cells = [[c.text for c in r.walk() if c.tag in ("th", "td")] for r in page.all("tbody")[0].all("tr")]
    assert cells == [["A", "9", "4", "3"], ["B", "8", "8", "8"], ["C", "none", "none", "none"]]
    styles = [(k.attributes["class"], k.attributes.get("stroke-dasharray")) for k in page.all("tbody")[0].all("line")]
    assert len(set(styles)) == 3
    assert "A from 9 to 4; B from 8 to 8" in page.all("title")[0].text


@pytest.mark.parametrize("curve", [[(3, 2.0)], [(0, 2.0), (1, 2.0)], [(0, 0.0), (1, 0.0)]])
def test_a_flat_or_single_curve_can_be_drawn(curve):
    (line,) = tree(chart({"a": curve})).all("polyline")
    assert len(points(line)) == len(curve)
