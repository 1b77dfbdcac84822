"""Logits that never leave the model: losses and choices of every kind show that a product was a readout."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from tests.torch.models.kit import VOCAB, Base, ids
from torch import Tensor

import tiebeam

Loss = Callable[[Tensor, Tensor], Tensor]


def rows(n: Tensor) -> Tensor:
    return torch.arange(len(n))


def one_hot(y: Tensor) -> Tensor:
    return F.one_hot(y, VOCAB)


def logp(z: Tensor) -> Tensor:
    return F.log_softmax(z, -1)


LOSSES: dict[str, Loss] = {
    "log-probabilities at two indices": lambda z, y: -logp(z)[rows(y), y].mean(),
    "normaliser less the logits at two indices": lambda z, y: (z.logsumexp(-1) - z[rows(y), y]).mean(),
    "a flat index": lambda z, y: (z.logsumexp(-1) - z.reshape(-1)[rows(y) * VOCAB + y]).mean(),
    "a loop over the labels": lambda z, y: torch.stack([-logp(z)[k, y[k]] for k in range(len(y))]).mean(),
    "a mask of the labels": lambda z, y: -torch.where(one_hot(y) > 0, logp(z), 0.0).sum(-1).mean(),
    "KL divergence": lambda z, y: F.kl_div(logp(z), one_hot(y).float(), reduction="batchmean"),
    "binary cross entropy": lambda z, y: F.binary_cross_entropy_with_logits(z, one_hot(y).float()),
    "binary cross entropy of probabilities": lambda z, y: F.binary_cross_entropy(z.sigmoid(), one_hot(y).float()),
    "squares": lambda z, y: F.mse_loss(z, one_hot(y).float()),
    "a Huber loss": lambda z, y: F.huber_loss(z, one_hot(y).float()),
    "a margin": lambda z, y: F.multi_margin_loss(z, y),
    "soft targets by hand": lambda z, y: -(torch.ones_like(z).softmax(-1) * logp(z)).sum(-1).mean(),
    "the normaliser alone": lambda z, y: z.logsumexp(-1),
}
CHOICES: dict[str, Callable[[Tensor], Tensor]] = {
    "argmax": lambda z: z.argmax(-1),
    "the largest few": lambda z: z.topk(5, -1).values,
    "places of the largest few": lambda z: z.topk(5, -1).indices,
    "the order": lambda z: z.argsort(-1),
    "a sample": lambda z: torch.multinomial(z.softmax(-1), 1),
}


class Lossy(Base):
    def __init__(self, loss: Loss) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        return self.loss(self.read(self.body(self.look(ids))).flatten(0, 1), labels.flatten())


class Choosy(Base):
    def __init__(self, choose: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.choose = choose

    def forward(self, ids: Tensor) -> dict[str, Tensor]:
        h = self.body(self.look(ids))
        return {"next": self.choose(self.read(h).flatten(0, 1)), "hidden": h}


@pytest.mark.parametrize("name", LOSSES)
def test_a_table_whose_logits_end_in_this_loss_is_tied(name: str) -> None:
    (table,) = tiebeam.inspect(Lossy(LOSSES[name]), (ids(), ids())).tables
    slope = 0.25 if "of probabilities" in name else 1.0  # a sigmoid is a cap
    assert (table.state, table.readout_factor) == ("tied", slope)


@pytest.mark.parametrize("choose", CHOICES.values(), ids=CHOICES)
def test_a_table_whose_logits_are_chosen_from_is_tied(choose: Callable[[Tensor], Tensor]) -> None:
    report = tiebeam.inspect(Choosy(choose), ids())
    (table,) = report.tables
    assert (table.state, table.readout_factor) == ("tied", 1.0)
    assert "gradient-cut" not in {f.code for f in report.findings}


def test_a_factor_before_a_loss_of_each_logit_is_known() -> None:
    loss = LOSSES["binary cross entropy"]
    (table,) = tiebeam.inspect(Lossy(lambda z, y: loss(z * 4, y)), (ids(), ids())).tables
    assert table.readout_factor == 4.0


IDS: dict[str, Callable[[Tensor], Tensor]] = {
    "halved": lambda i: i // 2,
    "bins": lambda i: torch.bucketize(i, torch.arange(VOCAB)),
    "places in a sorted list": lambda i: torch.searchsorted(torch.arange(VOCAB), i),
    "the largest": lambda i: i.topk(3, -1).values,
    "the largest along an axis": lambda i: i.max(-1, keepdim=True).values,
    "the largest so far": lambda i: i.cummax(-1).values,
    "each once": lambda i: torch.unique(i)[None],
    "those under a mask": lambda i: torch.masked_select(i, i >= 0).view_as(i),
    "pairs": lambda i: torch.combinations(i[0])[:, 0][None],
    "medians": lambda i: i.median(-1, keepdim=True).values,
    "the most frequent": lambda i: i.mode(-1, keepdim=True).values,
    "sorted": lambda i: i.sort(-1).values,
}
NO_IDS: dict[str, Callable[[Tensor], Tensor]] = {
    "their order": lambda i: i.argsort(-1),
    "places of the largest": lambda i: i.topk(3, -1).indices,
    "counts": lambda i: (i > 3).long().cumsum(-1),
}


class InBlocks(Base):
    """Makes the logits of a part of the vocabulary at a time, and those of the targets from their rows."""

    def __init__(self, *, running: bool) -> None:
        super().__init__()
        self.running = running

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        h = self.body(self.look(ids) * 3)
        target = (h * self.look(labels)).sum(-1)
        return (self.normaliser(h) - target).mean()

    def normaliser(self, h: Tensor) -> Tensor:
        top, total = torch.full(h.shape[:-1], -torch.inf), torch.zeros(h.shape[:-1])
        for rows in self.table.split(10):
            z = h @ rows.T * 0.5
            if self.running:
                above = torch.maximum(top, z.amax(-1))
                total = total * torch.exp(top - above) + torch.exp(z - above[..., None]).sum(-1)
                top = above
            else:
                top = torch.logaddexp(top, z.logsumexp(-1))
        return top + total.log() if self.running else top


@pytest.mark.parametrize("running", [False, True], ids=["logaddexp", "a running maximum"])
def test_a_loss_over_one_part_of_the_vocabulary_at_a_time_reads_the_table_out(running: bool) -> None:
    model, given = InBlocks(running=running), (ids(), ids())
    (table,) = tiebeam.inspect(model, given).tables
    assert (table.state, table.lookup_factor, table.readout_factor) == ("tied", 3.0, 0.5)
    assert [r.count for r in table.readouts] == [4]
    (drawn,) = tiebeam.initialize(model, given).init
    assert drawn.std == pytest.approx(table.target_std, rel=1e-4)


class Looked(Base):
    def __init__(self, change: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.change = change

    def look(self, ids: Tensor) -> Tensor:
        return super().look(self.change(ids))


@pytest.mark.parametrize("change", IDS.values(), ids=IDS)
def test_token_ids_stay_token_ids_through(change: Callable[[Tensor], Tensor]) -> None:
    (table,) = tiebeam.inspect(Looked(change), ids()).tables
    assert table.state == "tied"


@pytest.mark.parametrize("change", NO_IDS.values(), ids=NO_IDS)
def test_these_are_no_token_ids(change: Callable[[Tensor], Tensor]) -> None:
    assert all(not t.lookups for t in tiebeam.inspect(Looked(change), ids()).tables)


class Rounded(Base):
    """Quantisation-aware training: both roles read the table through a rounding that a gradient passes."""

    def rounded(self) -> Tensor:
        return torch.fake_quantize_per_tensor_affine(self.table, 0.01, 0, -128, 127)

    def look(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.rounded())

    def read(self, h: Tensor) -> Tensor:
        return F.linear(h, self.rounded())


def test_a_table_that_is_read_rounded_is_found_and_has_no_constant_factor() -> None:
    (table,) = tiebeam.inspect(Rounded(), ids()).tables
    assert (table.name, table.state, table.lookup_factor, table.readout_factor) == ("table", "tied", None, None)
    assert any("fake_quantize" in note for note in table.notes)
