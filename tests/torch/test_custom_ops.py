"""Operations of other libraries: their bodies are unknown, and the report says so."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

import tiebeam


@pytest.fixture(scope="module", autouse=True)
def library() -> Iterator[None]:
    with torch.library._scoped_library("tiebeam_tests", "DEF") as lib:
        lib.define("fused_head(Tensor hidden, Tensor table) -> Tensor")
        lib.define("mix(Tensor x) -> Tensor")
        lib.impl("fused_head", lambda hidden, table: hidden @ table.T, "CompositeExplicitAutograd")
        lib.impl("mix", lambda x: x * 2, "CompositeExplicitAutograd")
        yield


class Model(nn.Module):
    def __init__(self, *, fused: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(300, 16)
        self.fused = fused

    def forward(self, ids: Tensor) -> Tensor:
        x = torch.ops.tiebeam_tests.mix(self.embed(ids))
        if self.fused:
            return torch.ops.tiebeam_tests.fused_head(x, self.embed.weight)
        return x @ self.embed.weight.T


IDS = torch.arange(8)[None]


def test_a_table_that_a_custom_operation_reads_has_an_unknown_state() -> None:
    report = tiebeam.inspect(Model(fused=True), IDS)
    (table,) = report.tables
    assert table.state == "unknown"
    assert any("tiebeam_tests.fused_head" in note for note in table.notes)
    assert {f.code: f.severity for f in report.findings}["state-unknown"] == "info"


def test_a_custom_operation_ends_the_walk_and_leaves_a_note() -> None:
    report = tiebeam.inspect(Model(fused=False), IDS)
    (table,) = report.tables
    assert (table.state, table.lookup_factor, table.readout_factor) == ("tied", 1.0, 1.0)
    assert any("tiebeam_tests.mix has an unknown body" in note for note in report.notes)
