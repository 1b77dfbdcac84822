import json
import math
from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import given
from tests.reports.examples import EXAMPLES, HEALTHY, HOSTILE, TIED, UNHEALTHY
from tests.reports.trees import rows, tree

from tiebeam.core.finding import Finding
from tiebeam.reports.html import to_html
from tiebeam.reports.numbers import count, interval, known, number

every_report = pytest.mark.parametrize("report", EXAMPLES.values(), ids=EXAMPLES)


def panels(page):
    """The panels of tables, which are those with a picture of one."""
    return [s for s in page.all("section", "panel") if s.all("svg", "tb-roof")]


@every_report
def test_the_page_is_well_formed_and_needs_nothing_from_elsewhere(report):
    page = tree(to_html(report))
    assert page.all("html")[0].attributes["lang"] == "en"
    assert len(page.all("h1")) == len(page.all("main")) == len(page.all("title")) - len(page.all("svg")) == 1
    for node in page.walk():
        assert node.tag not in ("script", "link", "img", "iframe", "object", "base")
        assert not {"href", "src", "style"} & set(node.attributes)
        assert not any(a.startswith("on") for a in node.attributes)
    css = page.all("style")[0].text
    assert "url(" not in css
    assert "@import" not in css
    assert "prefers-color-scheme: dark" in css
    policies = [m.attributes["content"] for m in page.all("meta") if "http-equiv" in m.attributes]
    assert policies == ["default-src 'none'; style-src 'unsafe-inline'"]


@every_report
def test_the_figures_of_each_table_are_those_of_the_json(report):
    page, data = tree(to_html(report)), json.loads(report.to_json())
    for panel, table in zip(panels(page), data["tables"], strict=True):
        shown, predicted = rows(panel), table["predicted"]
        assert shown["size"].startswith(f"vocab {count(table['vocab'])}, width {count(table['width'])}, ")
        assert shown["std now"].split(" (")[0] == known(table["std"])
        assert shown["target std"].startswith(known(table["target_std"]))
        assert shown["learning-rate ratio"].split(" (")[0] == known(table["lr_ratio"])
        assert shown["state"].startswith(table["state"])
        assert ("lookup factor" in shown) == bool(table["lookups"] and table["lookup_factor"] is None)
        for kind in ("lookup", "readout"):
            for record in table[f"{kind}s"]:
                assert f"factor {known(record['factor'])}" in shown[kind]
        if table["readouts"]:
            assert shown["predicted logit std"].split(" (")[0] == known(predicted["logit_std"])
            bounds = predicted["initial_loss_range"]
            loss = interval(bounds) if bounds else known(predicted["initial_loss"])
            assert shown["predicted initial loss"].startswith(loss)
            assert shown["predicted initial loss"].endswith(f"ln V = {number(predicted['log_vocab'])}")
        assert ("predicted lookup rms" in shown) == bool(table["lookups"])


@every_report
def test_the_picture_of_a_table_shows_the_figures_of_the_json(report):
    page, data = tree(to_html(report)), json.loads(report.to_json())
    for panel, table in zip(panels(page), data["tables"], strict=True):
        drawn = [t.text for t in panel.all("svg", "tb-roof")[0].all("text")]
        assert f"{count(table['vocab'])} × {count(table['width'])}" in drawn
        assert f"std {known(table['std'])}, target {known(table['target_std'])}" in drawn
        assert table["state"] in drawn
        assert drawn.count(f"× {known(table['readout_factor'])}") >= bool(table["readouts"])
        if table["lookups"]:
            assert f"× {known(table['lookup_factor'])}" in drawn
            assert f"rms {known(table['predicted']['lookup_rms'])}" in drawn
        if table["readouts"]:
            at = drawn.index("hidden rms")
            assert drawn[at + 1] == known(table["hidden_rms"])
            assert f"std {known(table['predicted']['logit_std'])}" in drawn
        assert ("soft cap 30" in drawn) == (table["soft_cap"] is not None)
        assert ("+ bias" in drawn) == table["readout_bias"]


@every_report
def test_the_findings_are_those_of_the_json_by_severity_with_their_fixes(report):
    shown = tree(to_html(report)).all("section", "finding")
    found = json.loads(report.to_json())["findings"]
    order = ["error", "warning", "info"]
    found.sort(key=lambda f: order.index(f["severity"]))
    assert [s.all("span")[0].text for s in shown] == [f["severity"] for f in found]
    if report is not EXAMPLES["hostile"]:
        assert ["".join(p.text for p in s.all("pre")) for s in shown] == [f["fix"] for f in found]
        assert all(f["code"] in s.all("h3")[0].text for s, f in zip(shown, found, strict=True))


def test_what_initialisation_did_is_shown():
    page = tree(to_html(EXAMPLES["initialised"]))
    assert rows(page)["std"] == "1 before, 0.03608 after"
    assert "not settled within 2 %" in rows(page)["mode"]


@given(st.text(st.characters(), min_size=1, max_size=60))
def test_no_name_changes_the_structure_of_the_page(text):
    def page(name):
        table = replace(TIED, names=(name,), dtype=name, partner=name)
        finding = Finding(name, "error", name, "m", fix=f"x{name}", hint="h")
        report = replace(HEALTHY, model=name, framework=name, tables=(table,), findings=(finding,))
        curves = {name: [(0.0, 3.0), (1.0, 2.0)]}
        return to_html(report, curves=curves, title=name, extra=[(name, name), (name, [(name,), (name,)])])

    hostile = page(text)
    hostile.encode("utf-8")
    shape = [(n.tag, sorted(n.attributes)) for n in tree(hostile).walk() if n.tag != "wbr"]
    assert shape == [(n.tag, sorted(n.attributes)) for n in tree(page("name")).walk() if n.tag != "wbr"]


def test_a_hostile_name_is_text_to_be_read():
    page = to_html(EXAMPLES["hostile"])
    assert "<script" not in page
    assert "\x1b" not in page
    assert tree(page).all("h1")[0].text == HOSTILE.encode("unicode_escape").decode()


def test_title_prose_and_tables_can_be_added():
    page = tree(
        to_html(
            HEALTHY,
            title="The demo",
            extra=[("In short", "a < b"), ("Runs", [("run", "loss"), ("A", "7.1")])],
        )
    )
    assert page.all("title")[0].text == "tiebeam: The demo"
    assert page.all("p", "verdict")[0].text == "MiniGPT: tied, healthy"
    assert [h.text for h in page.all("h2")][:2] == ["In short", "Runs"]
    assert [c.text for c in page.all("thead")[0].all("th")] == ["run", "loss"]
    assert rows(page)["A"] == "7.1"
    assert "a < b" in [p.text for p in page.all("p")]


def test_curves_are_drawn_against_ln_v_of_the_table():
    page = tree(to_html(UNHEALTHY, curves={"before": [(0, 110.0), (10, 6.5)], "after": [(0, 8.6), (10, 4.0)]}))
    chart = page.all("svg", "tb-chart")[0]
    assert len(chart.all("polyline")) == 2
    assert len(chart.all("line", "tb-lnv")) == 1
    assert "ln V = 10.82" in page.all("figcaption")[0].text
    assert not tree(to_html(UNHEALTHY)).all("svg", "tb-chart")
    unknown = replace(TIED, predicted=replace(TIED.predicted, log_vocab=math.nan))
    page = tree(to_html(replace(HEALTHY, tables=(unknown,)), curves={"a": [(0, 1.0)]}))
    assert not page.all("line", "tb-lnv")


def luminance(color):
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_colour_of_text_stands_out_from_every_ground(scheme):
    """WCAG 2.1, 1.4.3: a contrast of 4.5 for text; 1.4.11: 3 for the lines of a chart."""
    import re

    css = tree(to_html(HEALTHY)).all("style")[0].text
    blocks = re.findall(r":root \{(.*?)\}", css, re.DOTALL)
    colors = dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", blocks[scheme == "dark"]))
    inks = ("ink", "soft", "good", "error", "warning", "info", "s0", "s1", "s2", "s3", "s4", "s5")
    for ground in ("ground", "panel", "code"):
        for ink in inks:
            bright, dim = sorted((luminance(colors[ink]), luminance(colors[ground])), reverse=True)
            assert (bright + 0.05) / (dim + 0.05) >= (3 if ink.startswith("s") and ink != "soft" else 4.5), (
                ink,
                ground,
            )
