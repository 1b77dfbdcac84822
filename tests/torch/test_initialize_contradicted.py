"""Logits that are not as the structure says, and those that are: which tables `initialize` draws by their logits."""

import pytest
import torch
from tests.torch.test_initialize import IDS, Model
from torch import Tensor, nn

import tiebeam


class Shards(nn.Module):
    """A table cut along its width: each half gives half of every logit, which no std of one half accounts for."""

    def __init__(self) -> None:
        super().__init__()
        self.halves = nn.ModuleList(nn.Embedding(300, 32) for _ in range(2))
        self.norm = nn.LayerNorm(64)

    def forward(self, ids: Tensor) -> Tensor:
        h = self.norm(torch.cat([half(ids) for half in self.halves], -1))
        parts = zip(h.chunk(2, -1), self.halves, strict=True)
        first, second = (nn.functional.linear(x, half.weight) for x, half in parts)
        return first + second


def test_logits_that_are_not_at_one_are_not_called_settled_whatever_the_formula_says() -> None:
    torch.manual_seed(0)
    model = Shards()
    report = tiebeam.initialize(model, IDS, mode="analytic")
    std = model(IDS).std().item()
    assert std > 1.3
    assert [done.settled for done in report.init] == [False, False]
    assert "not-settled" in {f.code for f in report.findings}


def test_where_the_logits_contradict_the_structure_auto_goes_by_the_logits() -> None:
    torch.manual_seed(0)
    model = Shards()
    report = tiebeam.initialize(model, IDS)
    assert [(done.mode, done.settled) for done in report.init] == [("empirical", True)] * 2
    assert 0.95 < model(IDS).std().item() < 1.05
    assert not {f.code for f in report.findings} & {"not-settled", "adapter-on-readout"}
    once = [half.weight.detach().clone() for half in model.halves]
    tiebeam.initialize(model, IDS)
    assert all(torch.equal(half.weight, was) for half, was in zip(model.halves, once, strict=True))


class Louder(nn.Module):
    """Two tied tables whose logits are added up; one reads the hidden state behind a gain of 3."""

    def __init__(self) -> None:
        super().__init__()
        self.halves = nn.ModuleList(nn.Embedding(300, 64) for _ in range(2))
        self.norms = nn.ModuleList(nn.RMSNorm(64) for _ in range(2))
        nn.init.constant_(self.norms[1].weight, 3.0)  # type: ignore[arg-type]

    def forward(self, ids: Tensor) -> Tensor:
        x = torch.stack([half(ids) for half in self.halves]).sum(0)
        first, second = (norm(x) @ half.weight.T for norm, half in zip(self.norms, self.halves, strict=True))  # type: ignore
        return first + second


def test_a_gain_that_one_of_two_has_to_make_up_for_does_not_shrink_the_other() -> None:
    """The first was divided by what the second had too much, before the second had made up for it."""
    torch.manual_seed(0)
    model = Louder()
    first, second = tiebeam.initialize(model, IDS).init
    assert first.settled
    assert second.settled
    assert first.std == pytest.approx(3 * second.std, rel=0.1)
    assert 0.95 < model(IDS).std().item() < 1.05


class TwoHeads(Shards):
    """Letters with logits of their own beside the words' halves."""

    def __init__(self) -> None:
        super().__init__()
        self.letters = nn.Embedding(65, 64)

    def forward(self, ids: Tensor) -> Tensor:  # type: ignore[override]
        h = self.norm(self.letters(ids % 65) + torch.cat([half(ids) for half in self.halves], -1))
        a, b = h.chunk(2, -1)
        return h @ self.letters.weight.T, a @ self.halves[0].weight.T + b @ self.halves[1].weight.T  # type: ignore


def test_a_table_with_logits_of_its_own_is_left_alone_where_others_are_contradicted() -> None:
    torch.manual_seed(0)
    found = {done.name: done for done in tiebeam.initialize(TwoHeads(), IDS).init}
    assert {name: done.mode for name, done in found.items()} == {
        "letters.weight": "analytic", "halves.0.weight": "empirical", "halves.1.weight": "empirical"
    }  # fmt: skip
    alone = {done.name: done for done in tiebeam.initialize(TwoHeads(), IDS, mode="analytic").init}
    assert found["letters.weight"].std == pytest.approx(alone["letters.weight"].std)
    assert all(done.settled for done in found.values())


@pytest.mark.parametrize("rows", [60, 0])
def test_a_padded_vocabulary_is_drawn_by_its_structure(rows: int) -> None:
    """Its zero rows stay, and their logits of 0 are no reason to draw the others larger."""
    model = Model()
    model.embed = nn.Embedding(5000, 64)
    model.head.weight = model.embed.weight
    with torch.no_grad():
        model.embed.weight[5000 - 16 * rows :] = 0
    [done] = tiebeam.initialize(model, IDS).init
    assert (done.mode, done.settled, done.std) == ("analytic", True, pytest.approx(1 / 8, rel=1e-3))


class Summed(nn.Module):
    """Two tied tables whose logits are added up, with something done to one of them before or to the sum behind."""

    def __init__(self, before: str, behind: str) -> None:
        super().__init__()
        self.before, self.behind = before, behind
        self.halves = nn.ModuleList(nn.Embedding(300, 64) for _ in range(2))
        self.norm, self.bias = nn.LayerNorm(64), nn.Parameter(torch.randn(300))

    def sum(self, ids: Tensor) -> Tensor:
        first, second = self.halves
        x = self.norm(first(ids) + second(ids))
        return self.done(x @ first.weight.T, self.before) + x @ second.weight.T

    def done(self, logits: Tensor, what: str) -> Tensor:
        if what == "padding":
            return logits.masked_fill(torch.arange(300) > 290, float("-inf"))
        if what == "cap":
            return 4 * torch.tanh(logits / 4)
        return logits + self.bias if what == "bias" else logits + 0.5 if what == "number" else logits

    def forward(self, ids: Tensor) -> Tensor:
        return self.done(self.sum(ids), self.behind)


@pytest.mark.parametrize("behind", ["bias", "cap", "padding", "number"])
def test_logits_that_are_added_up_are_measured_as_one_whatever_stands_behind_the_sum(behind: str) -> None:
    """Each was measured by itself there, and both were called settled with logits of std 1.4."""
    torch.manual_seed(0)
    model = Summed("", behind)
    assert all(done.settled and done.mode == "empirical" for done in tiebeam.initialize(model, IDS).init)
    assert 0.95 < model.sum(IDS).std().item() < 1.05


@pytest.mark.parametrize("before", ["bias", "number"])
def test_one_of_two_that_has_a_bias_shares_the_logits_with_the_other_all_the_same(before: str) -> None:
    torch.manual_seed(0)
    model = Summed(before, "")
    first, second = tiebeam.initialize(model, IDS).init
    assert first.std == pytest.approx(second.std)
    assert 0.95 < model.sum(IDS).std().item() < 1.05


class Stacked(nn.Module):
    """Three tied tables, one row of the stack each, whose logits are summed or averaged."""

    def __init__(self, mean: bool) -> None:
        super().__init__()
        self.thirds, self.norm = nn.ModuleList(nn.Embedding(300, 64) for _ in range(3)), nn.LayerNorm(64)
        self.mean = mean

    def forward(self, ids: Tensor) -> Tensor:
        x = self.norm(sum(third(ids) for third in self.thirds))
        logits = torch.stack([x @ third.weight.T for third in self.thirds])  # type: ignore[operator]
        return logits.mean(0) if self.mean else logits.sum(0)


@pytest.mark.parametrize("mean", [False, True])
def test_logits_of_three_tables_that_are_stacked_and_summed_are_added_up(mean: bool) -> None:
    """They were measured in the stack: three times 1, of which the sum is 1.7."""
    torch.manual_seed(0)
    model = Stacked(mean)
    report = tiebeam.initialize(model, IDS)
    assert all(done.settled for done in report.init)
    assert 0.95 < model(IDS).std().item() < 1.05
    assert [t.readout_factor for t in report.tables] == [pytest.approx(1 / 3 if mean else 1.0)] * 3


class Late(nn.Module):
    """Two tied tables with logits of their own; one is loud and takes many rounds, and shares the other's stream."""

    def __init__(self) -> None:
        super().__init__()
        self.loud, self.other = nn.Embedding(300, 64), nn.Embedding(300, 64)
        self.norm = nn.LayerNorm(64)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        x = self.loud(ids) + self.other(ids)
        return 10 * (x @ self.loud.weight.T), self.norm(x) @ self.other.weight.T


def test_what_had_settled_is_looked_at_again_when_others_have_moved() -> None:
    """The other settled in the first round, and was at 0.97 when the loud one had left the stream to it."""
    torch.manual_seed(0)
    model = Late()
    assert all(done.settled for done in tiebeam.initialize(model, IDS, mode="empirical").init)
    assert all(0.98 < logits.std().item() < 1.02 for logits in model(IDS))


class Mixed(nn.Module):
    """Two tied tables whose logits are added up, of which one reads the stream without a normalisation."""

    def __init__(self, gain: float, factor: float) -> None:
        super().__init__()
        self.normed, self.plain = nn.Embedding(300, 64), nn.Embedding(300, 64)
        self.norm, self.factor = nn.LayerNorm(64), factor
        nn.init.constant_(self.norm.weight, gain)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.normed(ids) + self.plain(ids)
        return self.norm(x) @ self.normed.weight.T + self.factor * (x @ self.plain.weight.T)


@pytest.mark.parametrize(("gain", "factor"), [(1.0, 1.0), (3.0, 0.1), (10.0, 0.02)])
def test_a_table_that_goes_by_its_logits_takes_those_along_that_share_them(gain: float, factor: float) -> None:
    """The other kept its structure's std, at which no std of the first can bring the sum to 1."""
    torch.manual_seed(0)
    model = Mixed(gain, factor)
    report = tiebeam.initialize(model, IDS)
    assert [(done.mode, done.settled) for done in report.init] == [("empirical", True)] * 2
    assert 0.97 < model(IDS).std().item() < 1.03
    once = [p.detach().clone() for p in model.parameters()]
    tiebeam.initialize(model, IDS)
    assert all(torch.equal(p, was) for p, was in zip(model.parameters(), once, strict=True))


class Adapted(nn.Module):
    """A tied readout with an adapter of a rank as large as the width."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(300, 64), nn.LayerNorm(64)
        self.down, self.up = nn.Parameter(torch.randn(64, 64) / 8), nn.Parameter(torch.zeros(300, 64))

    def forward(self, ids: Tensor) -> Tensor:
        h = self.norm(self.embed(ids))
        return h @ self.embed.weight.T + (h @ self.down.T) @ self.up.T


def test_an_adapter_that_starts_at_zero_stays_at_zero_whatever_its_rank() -> None:
    """One of high rank was taken for a second readout, and drawn."""
    torch.manual_seed(0)
    model = Adapted()
    report = tiebeam.initialize(model, IDS)
    assert [(done.name, done.mode) for done in report.init] == [("embed.weight", "analytic")]
    assert not model.up.any()
    assert any("up was left alone: it is an adapter" in note for note in report.notes)


class OneAlone(nn.Module):
    """A loud table whose logits are added to another's, which are also returned by themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.loud, self.other = nn.Embedding(300, 64), nn.Embedding(300, 64)
        self.norm, self.gain = nn.LayerNorm(64), nn.LayerNorm(64)
        nn.init.constant_(self.gain.weight, 10.0)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        h = self.norm(self.other(ids))
        alone = h @ self.other.weight.T
        return alone, alone + self.gain(h) @ self.loud.weight.T


def test_where_the_logits_follow_a_table_no_further_it_stays_where_they_were_nearest() -> None:
    """It was drawn back to where it began, with logits of std 10."""
    torch.manual_seed(0)
    model = OneAlone()
    tiebeam.initialize(model, IDS, mode="empirical")
    assert model(IDS)[1].std().item() < 1.2


class Biased(nn.Module):
    """A tied head with a bias, which is one operation, behind a soft cap or not."""

    def __init__(self, cap: bool) -> None:
        super().__init__()
        self.embed, self.norm, self.head = nn.Embedding(300, 64), nn.LayerNorm(64), nn.Linear(64, 300)
        self.head.weight, self.cap = self.embed.weight, cap

    def forward(self, ids: Tensor) -> Tensor:
        logits = self.head(self.norm(self.embed(ids)))
        return 1000 * torch.tanh(logits / 1000) if self.cap else logits


@pytest.mark.parametrize("cap", [False, True])
def test_the_logits_of_a_head_with_a_bias_are_measured(cap: bool) -> None:
    """Not told by the formula: the product by itself is never there to be measured."""
    torch.manual_seed(0)
    model = Biased(cap)
    [done] = tiebeam.initialize(model, IDS).init
    assert done.measured_logit_std == pytest.approx(model(IDS).std(correction=0).item(), rel=1e-3)
