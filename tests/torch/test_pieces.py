"""Tables that are read as a whole through indices, or put together from pieces."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from tests.torch.models.kit import VOCAB, WIDTH, Base, ids
from torch import Tensor, nn

import tiebeam

WHOLE: dict[str, Callable[[Tensor], Tensor]] = {
    "looked up at every id": lambda table: F.embedding(torch.arange(VOCAB), table),
    "indexed in another order": lambda table: table[torch.arange(VOCAB).flip(0)],
    "selected": lambda table: table.index_select(0, torch.arange(VOCAB)),
}


class Whole(Base):
    def __init__(self, rows: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.rows = rows

    def read(self, h: Tensor) -> Tensor:
        return h @ self.rows(self.table).T


@pytest.mark.parametrize("rows", WHOLE.values(), ids=WHOLE)
def test_a_readout_of_all_rows_is_one_however_they_are_fetched(rows: Callable[[Tensor], Tensor]) -> None:
    (table,) = tiebeam.inspect(Whole(rows), ids()).tables
    assert (table.state, table.readout_factor) == ("tied", 1.0)


class Cosine(Base):
    def read(self, h: Tensor) -> Tensor:
        return 10 * F.cosine_similarity(h[:, :, None], self.table[None, None], dim=-1)


def test_cosines_with_every_row_are_a_readout_without_a_constant_factor() -> None:
    (table,) = tiebeam.inspect(Cosine(), ids()).tables
    assert (table.state, table.readout_factor) == ("tied", None)


class Pieces(Base):
    """Two parameters side by side are the table."""

    def __init__(self, axis: int) -> None:
        super().__init__()
        first, second = (part.clone() for part in self.table.detach().tensor_split(2, axis))
        del self.table
        self.first, self.second, self.axis = nn.Parameter(first), nn.Parameter(second), axis

    @property
    def whole(self) -> Tensor:
        return torch.cat([self.first, self.second], self.axis)

    def look(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.whole)

    def read(self, h: Tensor) -> Tensor:
        return F.linear(h, self.whole)


@pytest.mark.parametrize("axis", [0, 1])
def test_every_piece_of_a_concatenated_table_is_found_and_drawn(axis: int) -> None:
    torch.manual_seed(0)
    model = Pieces(axis)
    first, second = (p.detach().clone() for p in (model.first, model.second))
    report = tiebeam.initialize(model, ids(), mode="empirical")
    assert {(t.name, t.state) for t in report.tables} == {("first", "tied"), ("second", "tied")}
    assert not torch.equal(model.first, first)
    assert not torch.equal(model.second, second)
    assert model(ids()).std().item() == pytest.approx(1.0, abs=0.05)


def test_a_few_rows_that_a_table_is_extended_by_are_drawn_with_it() -> None:
    model = Pieces(0)
    with torch.no_grad():
        model.first, model.second = (nn.Parameter(torch.randn(n, WIDTH)) for n in (VOCAB - 2, 2))
    report = tiebeam.inspect(model, ids())
    assert {t.name for t in report.tables} == {"first", "second"}
