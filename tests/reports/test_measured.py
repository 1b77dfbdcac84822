"""A measurement as text, Markdown, JSON and HTML."""

import dataclasses
import json

import pytest
from jsonschema import Draft202012Validator
from tests.reports.trees import tree

from tiebeam.core.measuring.measurement import Measurement, RoleGradient, TableGradient
from tiebeam.core.measuring.passes import Drift
from tiebeam.core.measuring.spectrum import Spectrum
from tiebeam.reports.measured import schema, to_text

ROLES = {"lookup": RoleGradient("embed|<b>", 100, 0.5, 7), "readout": RoleGradient("embed|<b>", 100, float("inf"), 100)}
FOUND = Measurement(
    model="Tiny|<b>",
    framework="torch",
    initial_loss=4.6,
    targets="labels",
    log_vocab=4.6,
    vocab=100,
    logit_std=1.0,
    hidden_rms=None,
    lookup_rms=0.5,
    kappa=0.9,
    own_logit=3.0,
    own_rank=1.0,
    roles=ROLES,
    role_ratio=0.25,
    role_cosine=float("nan"),
    tables=(
        TableGradient("embed|<b>", "tied", ROLES, 0.1, 0.0, Spectrum((2.0, 1.0), 1.9, 0.8), Drift(0.1, None, 1, 3), 4),
        TableGradient("other", "untied", {}),
    ),
    notes=("`embed` is *frozen* <i>",),
)


def test_its_json_is_what_the_schema_describes_and_knows_no_nan() -> None:
    Draft202012Validator.check_schema(schema())
    written = json.loads(FOUND.to_json())
    Draft202012Validator(schema()).validate(written)
    assert written["role_cosine"] is None
    assert written["schema"] == 1


def test_the_schema_names_every_field_and_no_other() -> None:
    described = schema()
    top = {f.name for f in dataclasses.fields(Measurement)} | {"schema", "chance_rank"}
    table = {f.name for f in dataclasses.fields(TableGradient)}
    role = {f.name for f in dataclasses.fields(RoleGradient)} - {"grad"}
    for place, fields in ((described, top), (described["$defs"]["table"], table), (described["$defs"]["role"], role)):
        assert set(place["properties"]) == set(place["required"]) == fields


@pytest.mark.parametrize(
    ("path", "wrong"),
    [(("schema",), 2), (("roles", "lookup", "rows"), -1), (("tables", 0, "state"), "shared"), (("targets",), None)],
)
def test_the_schema_refuses_what_is_wrong(path: tuple[str | int, ...], wrong: object) -> None:
    written = json.loads(FOUND.to_json())
    place = written
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = wrong
    assert list(Draft202012Validator(schema()).iter_errors(written))


def test_every_rendering_holds_every_figure_and_a_name_forms_no_markup() -> None:
    said = str(FOUND)
    assert "hidden rms          unknown" in said
    assert "drift of embed|<b>" in said
    markdown, html = FOUND.to_markdown(), FOUND.to_html()
    assert r"# Tiny\|\<b\>: one batch, PyTorch" in markdown
    assert all(line.count("|") - line.count(r"\|") == 3 for line in markdown.splitlines() if line.startswith("| "))
    assert "<b>" not in html
    assert "<i>" not in html
    page = tree(html)
    cells = [cell.text for cell in (*page.all("th"), *page.all("td"))]
    for line in said.splitlines()[1:-1]:
        label, value = line.strip().split("  ", 1)
        assert label in cells
        assert value.strip() in cells


def test_a_narrow_terminal_folds_and_escapes_are_spelt_out() -> None:
    odd = dataclasses.replace(FOUND, model="red\x1b[31m")
    shown = to_text(odd, width=40, color=False)
    assert max(map(len, shown.splitlines())) <= 40
    assert "\x1b" not in shown
    assert "\x1b[" in to_text(FOUND, color=True)
