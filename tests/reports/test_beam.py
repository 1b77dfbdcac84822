from dataclasses import replace

import pytest
from tests.reports.examples import CUT, EXAMPLES, TIED, UNTIED
from tests.reports.trees import tree

from tiebeam.reports.beam import roof


def drawn(table):
    return tree(roof(table))


def timbers(picture):
    """Widths of the beam's parts that belong to the table."""
    return [float(r.attributes["width"]) for r in picture.all("rect", "tb-wood")]


def test_a_tie_is_one_beam_from_foot_to_foot_with_pegs_at_both():
    picture = drawn(TIED)
    assert timbers(picture) == [440]
    assert len(picture.all("circle", "tb-peg")) == 4
    assert not picture.all("line", "tb-off")
    assert not picture.all("rect", "tb-dash")


@pytest.mark.parametrize(("table", "other"), [(UNTIED.tables[0], "readout by"), (UNTIED.tables[1], "lookup by")])
def test_a_table_with_one_role_is_half_a_beam_beside_its_partner(table, other):
    picture = drawn(table)
    assert timbers(picture) == [210]
    assert len(picture.all("circle", "tb-peg")) == 2
    assert len(picture.all("line", "tb-off")) == 2
    texts = [t.text for t in picture.all("text")]
    assert other in texts
    assert table.partner is not None
    assert any(table.partner.startswith(t[:8]) for t in texts[texts.index(other) + 1 :])


def test_a_role_without_gradient_has_a_dashed_rafter():
    picture = drawn(CUT.tables[0])
    assert len(picture.all("line", "tb-dash")) == 1
    assert [t.text for t in picture.all("text")].count("no gradient") == 1
    assert len(picture.all("rect", "tb-dash")) == 1


def test_a_table_that_nothing_reads_is_a_loose_timber():
    picture = drawn(replace(TIED, lookups=(), readouts=(), state="unknown"))
    assert not picture.all("circle")
    assert len(picture.all("line", "tb-off")) == 4


@pytest.mark.parametrize("report", EXAMPLES.values(), ids=EXAMPLES)
def test_the_picture_says_its_flow_in_words_and_stays_in_its_frame(report):
    for table in report.tables:
        picture = drawn(table)
        (svg,) = picture.all("svg")
        assert svg.attributes["role"] == "img"
        assert "network" in picture.all("title")[0].text
        _, _, width, height = map(float, svg.attributes["viewbox"].split())
        for text in picture.all("text"):
            size = 7.6 * len(text.text)  # pixels, generously
            x, anchor = float(text.attributes["x"]), text.attributes["text-anchor"]
            left = {"start": x, "middle": x - size / 2, "end": x - size}[anchor]
            assert left >= -12, text.text
            assert left + size <= width + 12, text.text
            assert 0 < float(text.attributes["y"]) < height


def test_a_name_with_line_breaks_is_drawn_on_one_line():
    picture = drawn(replace(TIED, names=("a\r\nb",)))
    assert [t.text for t in picture.all("text", "tb-name")] == [r"a\r\nb"]
    assert r"Flow of a\r\nb, tied" in picture.all("title")[0].text


def test_a_long_name_keeps_both_its_ends():
    name = "model." + "layer." * 30 + "weight"
    shown = [t.text for t in drawn(replace(TIED, names=(name,))).all("text", "tb-name")]
    assert len(shown[0]) <= 46
    assert shown[0].startswith("model.")
    assert shown[0].endswith("layer.weight")
