"""Every figure of figures.toml, computed."""

import importlib
import tomllib
from pathlib import Path

import pytest

FIGURES = tomllib.loads(Path(__file__).with_name("figures.toml").read_text(encoding="utf-8"))["figure"]
FIELDS = {"id", "value", "unit", "tolerance", "source", "derivation", "function", "arguments"}


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure["id"])
def test_the_figure_is_what_the_function_gives(figure):
    module, name = figure["function"].split(":")
    function, arguments = getattr(importlib.import_module(module), name), figure["arguments"]
    value = function(**arguments) if isinstance(arguments, dict) else function(*arguments)
    assert abs(value - figure["value"]) <= figure["tolerance"], f"got {value} {figure['unit']}"


def test_every_figure_says_where_it_comes_from_and_has_an_id_of_its_own():
    assert all(set(figure) == FIELDS for figure in FIGURES)
    assert all(figure["source"] and figure["derivation"] and figure["unit"] for figure in FIGURES)
    assert len({figure["id"] for figure in FIGURES}) == len(FIGURES)
