"""Roles, names and counts, however the table is read."""

import warnings
from typing import Any

import pytest
import torch
from tests.torch.expect import all_of, check, table_of
from tests.torch.models.kit import Builder, load
from torch import nn

import tiebeam


@pytest.mark.parametrize("build", all_of("lookups"))
def test_a_lookup_is_seen_however_it_is_written(build: Builder) -> None:
    check(build())


@pytest.mark.parametrize("build", all_of("readouts"))
def test_a_readout_is_seen_however_it_is_written(build: Builder) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="None of the inputs have requires_grad=True")
        check(build())


@pytest.mark.parametrize("build", all_of("outputs"))
def test_logits_are_found_in_whatever_the_model_returns(build: Builder) -> None:
    check(build())


def test_records_say_where_and_through_which_name_the_table_was_read() -> None:
    case = load()["lookups"]["FourModules"]()
    table = table_of(tiebeam.inspect(case.model, case.inputs), case.truths[0])
    assert table.names[0] == "shared.weight"
    assert [r.where for r in table.lookups] == ["encoder", "decoder"]
    assert [r.where for r in table.readouts] == ["head"]


def test_each_of_two_tied_tables_keeps_to_its_own_roles() -> None:
    case = load()["readouts"]["TwoTiedTables"]()
    report = tiebeam.inspect(case.model, case.inputs)
    words, tags = (table_of(report, t) for t in case.truths)
    assert {r.where for r in (*words.lookups, *words.readouts)} == {"words", "head"}
    assert {r.where for r in (*tags.lookups, *tags.readouts)} == {"tags", "tag_head"}
    assert len(report.tables) == 2


def test_rows_of_a_constant_behind_the_table_leave_it_as_it_is() -> None:
    case = load()["readouts"]["PaddedRowsAddedAtEveryStep"]()
    report = tiebeam.inspect(case.model, case.inputs)
    assert [r.reparametrized for r in report.tables[0].readouts] == [""]
    report.assert_healthy()


def test_positions_are_no_vocabulary_table() -> None:
    case = load()["lookups"]["PositionsThenLayerNorm"]()
    report = tiebeam.inspect(case.model, case.inputs)
    assert [t.name for t in report.tables] == ["table"]


def test_positions_counted_from_a_mask_of_integers_are_no_vocabulary_table() -> None:
    """A third as many as there are tokens: `initialize` would draw them anew."""

    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.positions = nn.Embedding(300, 64), nn.Embedding(100, 64)
            self.norm = nn.LayerNorm(64)

        def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            places = (mask.cumsum(1) * mask - 1).long() + 2
            return self.norm(self.embed(ids) + self.positions(places)) @ self.embed.weight.T

    ids = torch.arange(24).view(2, 12)
    report = tiebeam.inspect(Counting(), (ids, (ids != 3).long()))
    assert [t.name for t in report.tables] == ["embed.weight"]


def test_one_input_may_be_given_bare() -> None:
    case = load()["lookups"]["EmbeddingModule"]()
    assert tiebeam.inspect(case.model, case.inputs[0]).tables == tiebeam.inspect(case.model, case.inputs).tables


def test_a_bias_hides_neither_the_own_token_nor_the_first_loss() -> None:
    class Biased(nn.Module):
        def __init__(self, bias: bool) -> None:
            super().__init__()
            self.embed, self.norm, self.head = nn.Embedding(500, 64), nn.LayerNorm(64), nn.Linear(64, 500, bias)
            nn.init.normal_(self.embed.weight, std=0.125)
            self.head.weight = self.embed.weight

        def forward(self, ids: torch.Tensor) -> Any:
            return self.head(self.norm(8.0 * self.embed(ids)))

    ids = torch.arange(32).view(2, 16)
    for bias in (False, True):
        report = tiebeam.inspect(Biased(bias), ids)
        (table,) = report.tables
        assert table.readouts[0].kappa == pytest.approx(1.0, abs=1e-3)
        assert isinstance(table.predicted.initial_loss, float)
        assert "own-token" in {f.code for f in report.findings}
