"""Constant factors: the very number, its sign kept; and None, with a reason, where no constant is."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.torch.expect import all_of, check, table_of
from tests.torch.models.kit import Base, Builder, ids, load
from torch import nn

import tiebeam


@pytest.mark.parametrize("build", all_of("factors"))
def test_a_constant_is_read_off_wherever_it_stands(build: Builder) -> None:
    check(build())


@pytest.mark.parametrize("build", all_of("softcaps"))
def test_a_soft_cap_is_told_from_a_factor(build: Builder) -> None:
    check(build())


@pytest.mark.parametrize("build", all_of("unknown"))
def test_what_is_no_constant_is_none_with_a_reason(build: Builder) -> None:
    check(build())


@pytest.mark.parametrize(
    ("sum_of", "factor"),
    [
        (lambda x: x + x + x, 3.0),
        (lambda x: (x + x) + (x + x), 4.0),
        (lambda x: x * 2.0 - (x + x) * 3.0, -4.0),
        (lambda x: sum(x * 0.5 for _ in range(6)), 3.0),
        (lambda x: torch.zeros_like(x) + x + x + x, 3.0),
        (lambda x: torch.zeros_like(x) - x - x, -2.0),
        (lambda x: torch.zeros_like(x).add_(x).add_(x), 2.0),
        (lambda x: sum(x for _ in range(x.shape[1])), None),
        (lambda x: torch.stack([x] * x.shape[1]).sum(0), None),
        (lambda x: torch.stack([x] * 4).sum(0), 4.0),
    ],
    ids="three|two and two|a difference|Python's sum|from zeros|down from zeros|in place|a sum over tokens|"
    "a stack over tokens|a stack".split("|"),
)
def test_a_sum_of_equal_terms_counts_them_unless_they_are_as_many_as_tokens(
    sum_of: Callable[[torch.Tensor], Any], factor: float | None
) -> None:
    class Look(Base):
        def look(self, ids: torch.Tensor) -> torch.Tensor:
            return sum_of(super().look(ids))  # type: ignore[no-any-return]

    class Read(Base):
        def read(self, h: torch.Tensor) -> Any:
            return super().read(sum_of(h))

    (looked,) = tiebeam.inspect(Look(), (ids(),)).tables
    (read,) = tiebeam.inspect(Read(), (ids(),)).tables
    assert (looked.lookup_factor, looked.readout_factor) == (factor, 1.0)
    assert (read.lookup_factor, read.readout_factor) == (1.0, factor)


def test_uses_that_differ_keep_their_own_numbers() -> None:
    case = load()["unknown"]["TwoUsesThatDiffer"]()
    table = table_of(tiebeam.inspect(case.model, case.inputs), case.truths[0])
    assert [r.factor for r in table.lookups] == pytest.approx([2.0, 3.0])
    assert table.lookup_factor is None
    assert any("2" in n and "3" in n for n in table.notes)


class Multiplied(Base):
    """Any chain of numbers on the rows, the table, the hidden state and the logits."""

    def __init__(self, rows: list[float], table: float, hidden: list[float], logits: list[float]) -> None:
        super().__init__()
        self.numbers = (rows, table, hidden, logits)

    def look(self, ids: torch.Tensor) -> torch.Tensor:
        return math.prod(self.numbers[0], start=F.embedding(ids, self.table * self.numbers[1]))

    def read(self, h: torch.Tensor) -> torch.Tensor:
        _, table, hidden, logits = self.numbers
        return math.prod(logits, start=F.linear(math.prod(hidden, start=h), self.table * table))


number = st.floats(0.01, 100).flatmap(lambda x: st.sampled_from([x, -x]))
chain = st.lists(number, max_size=3)


@settings(max_examples=25)
@given(rows=chain, table=number, hidden=chain, logits=chain)
def test_factors_multiply_along_any_chain(
    rows: list[float], table: float, hidden: list[float], logits: list[float]
) -> None:
    torch.manual_seed(0)
    found = tiebeam.inspect(Multiplied(rows, table, hidden, logits), ids()).tables[0]
    assert found.lookup_factor == pytest.approx(math.prod(rows) * table, rel=1e-5)
    assert found.readout_factor == pytest.approx(math.prod(hidden) * math.prod(logits) * table, rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_factor_has_the_value_it_had_at_its_dtype(dtype: torch.dtype) -> None:
    """sqrt(3072) is 55.4256, but 55.5 once it is a bf16 tensor."""
    case = load()["factors"]["Buffer"]()
    case.model.by = torch.tensor(3072**0.5)
    model = case.model.to(dtype)
    table = tiebeam.inspect(model, case.inputs).tables[0]
    assert table.lookup_factor == torch.tensor(3072**0.5).to(dtype).item()


MARK = 290


class Pictures(nn.Module):
    """Patches of an image take the places of marks among the ids, as many as the grid says."""

    def __init__(self, factor: Callable[[torch.Tensor], float]) -> None:
        super().__init__()
        self.factor = factor
        self.embed = nn.Embedding(300, 64)
        self.patches = nn.Linear(12, 64)
        self.norm = nn.RMSNorm(64)

    def forward(self, ids: torch.Tensor, patches: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
        marks = ids == MARK
        if not len(patches) == int(grid.prod()) == int(marks.sum()):
            raise ValueError("other patches than marks")
        rows = self.embed(ids).masked_scatter(marks[..., None], self.patches(patches))
        return self.norm(rows * self.factor(ids)) @ self.embed.weight.T * 0.25


@pytest.mark.parametrize(
    ("factor", "known"), [(lambda ids: 10.0, 10.0), (lambda ids: ids.shape[1] ** 0.5, None)], ids=["constant", "length"]
)
def test_factors_are_confirmed_where_a_part_of_the_ids_must_stay(
    factor: Callable[[torch.Tensor], float], known: float | None
) -> None:
    """No crop of ids and grid alike fits the patches; ids that go on longer do."""
    ids = torch.arange(10, 30)[None].clone()
    ids[:, 3:7] = MARK
    [table] = tiebeam.inspect(Pictures(factor), (ids, torch.randn(4, 12), torch.tensor([[1, 2, 2]]))).tables
    assert (table.lookup_factor, table.readout_factor) == (known, 0.25)
    assert known is not None or any("another length" in note for note in table.notes)


class Pieces(nn.Module):
    """Rows or logits that are written into a buffer piece by piece, by `write`."""

    def __init__(self, write: Callable[[torch.Tensor], torch.Tensor], *, of_rows: bool) -> None:
        super().__init__()
        self.write, self.of_rows = write, of_rows
        self.embed = nn.Embedding(300, 64)
        self.norm = nn.RMSNorm(64)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        rows = self.embed(ids) * 8.0
        logits = self.norm(self.write(rows) if self.of_rows else rows) @ self.embed.weight.T
        return logits if self.of_rows else self.write(logits)


def one_by_one(x: torch.Tensor) -> torch.Tensor:
    """Each sequence into zeros, as sequences of other lengths are padded."""
    return nn.utils.rnn.pad_sequence([x[0, :9], x[1]], batch_first=True)


def one_position_on(x: torch.Tensor) -> torch.Tensor:
    moved = x.clone()
    moved[:, 1:] = x[:, :-1]
    return moved


def twice_in_places(x: torch.Tensor) -> torch.Tensor:
    x = x.clone()
    x[:, 0] = 2.0 * x[:, 0]
    return x


def added_to_in_places(x: torch.Tensor) -> torch.Tensor:
    return x.index_add(1, torch.tensor([1, 3]), x[:, :2])


def bent_in_places(x: torch.Tensor) -> torch.Tensor:
    x = x.clone()
    x[..., :9] = x[..., :9].tanh()
    return x


@pytest.mark.parametrize(
    ("write", "known"),
    [(one_by_one, True), (one_position_on, True), (twice_in_places, False), (added_to_in_places, False)],
    ids=lambda a: getattr(a, "__name__", ""),
)
@pytest.mark.parametrize("of_rows", [True, False], ids=["rows", "logits"])
def test_pieces_put_together_have_the_factor_that_all_of_them_have(write: Any, known: bool, of_rows: bool) -> None:
    [table] = tiebeam.inspect(Pieces(write, of_rows=of_rows), torch.arange(24).view(2, 12)).tables
    got = table.lookup_factor if of_rows else table.readout_factor
    assert got == ((8.0 if of_rows else 1.0) if known else None)


def test_pieces_of_which_some_are_bent_have_no_factor() -> None:
    [table] = tiebeam.inspect(Pieces(bent_in_places, of_rows=False), torch.arange(24).view(2, 12)).tables
    assert (table.readout_factor, table.soft_cap) == (None, None)
