"""`initialize` on PyTorch models: what is written, what is left, what a failure leaves."""

import itertools
import types
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tiebeam
from tiebeam.core.initialising.init import Mode

IDS = torch.arange(16).view(2, 8)


class Model(nn.Module):
    """A tied model; `norm=False` makes the std an equation, `gain` a hidden state of another size than 1."""

    def __init__(self, *, norm: bool = True, gain: float = 1.0, padding: int | None = None, bias: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(300, 64, padding_idx=padding)
        self.mid = nn.Linear(64, 64)
        self.norm = nn.RMSNorm(64) if norm else nn.Identity()
        if norm:
            nn.init.constant_(self.norm.weight, gain)
        self.head = nn.Linear(64, 300, bias=bias)
        self.head.weight = self.embed.weight
        self.runs, self.fail_at = itertools.count(1), 0  # what an attribute is would be put back after each pass

    def forward(self, ids: Tensor) -> Tensor:
        if next(self.runs) == self.fail_at:
            raise ValueError("no more")
        x = self.embed(ids)
        return self.head(self.norm(x + torch.tanh(self.mid(x))))


@pytest.mark.parametrize("settings", [{}, {"gain": 1.02}, {"gain": 3.0}, {"norm": False}], ids=str)
def test_twice_equals_once_whatever_the_table_was(settings: dict[str, float]) -> None:
    model = Model(**settings)
    tiebeam.initialize(model, IDS)
    once = model.embed.weight.detach().clone()
    tiebeam.initialize(model, IDS)
    assert torch.equal(model.embed.weight, once)
    nn.init.normal_(model.embed.weight, std=7.0)
    tiebeam.initialize(model, IDS)
    assert torch.equal(model.embed.weight, once)


@pytest.mark.parametrize("settings", [{}, {"gain": 3.0}, {"norm": False}], ids=str)
def test_logits_start_at_unit_variance(settings: dict[str, float]) -> None:
    model = Model(**settings)
    report = tiebeam.initialize(model, IDS)
    assert report.init[0].settled
    assert 0.85 < model(IDS).std().item() < 1.2


class SideBySide(nn.Module):
    """A narrow tied table and another beside it, in one product over a hidden state of both widths."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.up, self.norm = nn.Embedding(300, 16), nn.Linear(16, 64), nn.LayerNorm(64)
        self.rest = nn.Linear(300, 48, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        h = self.norm(self.up(self.embed(ids)))
        return h @ torch.cat([self.embed.weight.t(), self.rest.weight], 0)


@pytest.mark.parametrize("mode", ["analytic", "empirical", "auto"])
def test_tables_side_by_side_in_one_product_give_logits_of_unit_variance_together(mode: Mode) -> None:
    model = SideBySide()
    report = tiebeam.initialize(model, IDS, mode=mode)
    assert [(t.width, t.terms) for t in report.tables] == [(16, 64), (48, 64)]
    assert all(i.settled and i.std == pytest.approx(1 / 8, rel=0.1) for i in report.init)
    assert all(t.predicted.logit_std == pytest.approx(1, rel=0.1) for t in report.tables)
    assert 0.9 < model(IDS).std().item() < 1.1


class OneBelowTheOther(SideBySide):
    """The rows of new tokens are a parameter of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.rest = nn.Embedding(300, 64), nn.Linear(64, 8, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        return self.norm(self.embed(ids)) @ torch.cat([self.embed.weight, self.rest.weight], 0).t()


def test_the_parts_of_a_vocabulary_are_no_tables_side_by_side() -> None:
    [table] = tiebeam.inspect(OneBelowTheOther(), IDS).tables
    assert (table.names, table.width, table.terms) == (("embed.weight",), 64, 64)


def test_every_row_that_was_zero_stays_zero() -> None:
    model = Model()
    with torch.no_grad():
        model.embed.weight[-20:] = 0
    tiebeam.initialize(model, IDS)
    assert torch.equal(model.embed.weight[-20:], torch.zeros(20, 64))
    assert bool((model.embed.weight[:-20] != 0).all())


def test_a_padding_row_stays_zero_in_a_table_of_zeros() -> None:
    model = Model(padding=0)
    nn.init.zeros_(model.embed.weight)
    tiebeam.initialize(model, IDS)
    assert model.embed.weight[0].abs().sum() == 0
    assert bool((model.embed.weight[1:] != 0).all())


def test_a_trainable_bias_becomes_zero_and_a_frozen_one_is_left() -> None:
    model = Model(bias=True)
    assert tiebeam.initialize(model, IDS).init[0].biases == ("head.bias",)
    assert model.head.bias.abs().sum() == 0
    nn.init.ones_(model.head.bias)
    model.head.bias.requires_grad_(False)
    tiebeam.initialize(model, IDS)
    assert model.head.bias.sum() == 300


def test_an_empirical_plan_that_fails_half_way_leaves_everything_as_it_was() -> None:
    model = Model(norm=False, bias=True)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    model.fail_at = 2
    with pytest.raises(tiebeam.InputError, match="no more"):
        tiebeam.initialize(model, IDS)
    assert all(torch.equal(p, before[n]) for n, p in model.named_parameters())


def test_an_analytic_table_is_right_though_it_could_not_be_measured() -> None:
    model = Model()
    model.fail_at = 2
    report = tiebeam.initialize(model, IDS)
    assert model.embed.weight.std().item() == pytest.approx(0.125, rel=0.02)
    assert "not-settled" in {f.code for f in report.findings}


def test_of_two_overlapping_parameters_the_whole_one_is_drawn() -> None:
    class Aliased(Model):
        def __init__(self) -> None:
            super().__init__()
            whole = nn.Parameter(torch.randn(320, 64))
            self.head.weight = whole
            self.embed.weight = nn.Parameter(whole.data[:300])

    model = Aliased()
    tiebeam.initialize(model, IDS)
    assert model.head.weight[300:].std().item() == pytest.approx(0.125, rel=0.1)


def test_a_copy_that_was_meant_to_be_a_tie_is_tied_first() -> None:
    """Drawn as it is it would be two tables that have nothing in common."""
    model = Model()
    model.head.weight = nn.Parameter(model.embed.weight.detach().clone())
    before = model.embed.weight.detach().clone()
    with pytest.raises(tiebeam.TieError, match=r"tiebeam\.tie\(model, inputs\)"):
        tiebeam.initialize(model, IDS)
    assert torch.equal(model.embed.weight, before)
    tiebeam.tie(model, IDS)
    assert [t.state for t in tiebeam.initialize(model, IDS).tables] == ["tied"]


def test_the_fix_of_a_copys_scale_ties_it_and_then_draws() -> None:
    model = Model()
    model.head.weight = nn.Parameter(model.embed.weight.detach().clone())
    (found,) = [f for f in tiebeam.inspect(model, IDS).findings if f.code == "init-scale"]
    exec(compile(found.fix, "fix of init-scale", "exec"), {"model": model, "inputs": IDS, "tiebeam": tiebeam})
    after = tiebeam.inspect(model, IDS)
    after.assert_healthy()
    assert [t.state for t in after.tables] == ["tied"]


def test_a_pair_that_had_drifted_is_said_to_be_parted_by_the_draw_and_no_longer_close() -> None:
    model = Model()
    values = model.embed.weight.detach()
    model.head.weight = nn.Parameter(
        values + 0.1 * torch.randn(values.shape, generator=torch.Generator().manual_seed(1))
    )
    (before,) = [f for f in tiebeam.inspect(model, IDS).findings if f.code == "drifted"]
    (after,) = [f for f in tiebeam.initialize(model, IDS).findings if f.code == "drifted"]
    assert "differ by" in before.message
    assert "differ by" not in after.message
    assert "two independent ones" in after.message
    assert after.fix == before.fix


def test_a_model_in_which_nothing_is_drawn_is_told_so_and_not_called_healthy() -> None:
    report = tiebeam.initialize(nn.Linear(4, 4), torch.ones(2, 4))
    assert report.notes == ("nothing was drawn: no vocabulary table was seen in this pass",)
    assert str(report).splitlines()[0] == "Linear: no vocabulary table seen, nothing to judge (1 info)"
    with torch.device("meta"):
        planned = tiebeam.initialize(nn.Linear(4, 4), torch.ones(2, 4, device="meta"))
    assert "nothing was drawn: no vocabulary table was seen in this pass" in planned.notes


def test_a_model_that_returns_its_hidden_state_alone_is_not_called_healthy() -> None:
    class Hidden(Model):
        def forward(self, ids: Tensor) -> Tensor:
            return self.norm(self.embed(ids))

    head = str(tiebeam.inspect(Hidden(), IDS)).splitlines()[0]
    assert head.startswith("Hidden: no readout seen, tie not judged")
    silent = Hidden()
    nn.init.zeros_(silent.embed.weight)
    report = tiebeam.initialize(silent, IDS)
    assert report.init == ()
    assert "nothing was drawn: initialize leaves embed.weight alone" in report.notes


def test_two_equal_tables_that_the_config_calls_two_are_drawn_as_two() -> None:
    model = Model()
    model.config = types.SimpleNamespace(tie_word_embeddings=True, vocab_size=300)
    model.head.weight = model.embed.weight
    tiebeam.untie(model, IDS)
    report = tiebeam.initialize(model, IDS)
    assert {t.state for t in report.tables} == {"untied"}


def test_an_offloaded_model_is_refused() -> None:
    from accelerate import cpu_offload

    model = cpu_offload(Model(), execution_device=torch.device("cpu"))
    with pytest.raises(tiebeam.InputError, match="lies elsewhere"):
        tiebeam.initialize(model, IDS)


class Candidates(Model):
    """Logits of some tokens alone: the readout of a sampled softmax."""

    def forward(self, ids: Tensor) -> Tensor:
        h = self.norm(self.mid(self.embed(ids)))
        return (h * self.embed.weight[ids]).sum(-1)


class Fused(Model):
    """A readout inside an operation of unknown body."""

    def forward(self, ids: Tensor) -> Tensor:
        return logits_of(self.norm(self.mid(self.embed(ids))), self.embed.weight).logsumexp(-1)


@torch.library.custom_op("tiebeam_test::logits_of", mutates_args=())
def logits_of(h: Tensor, table: Tensor) -> Tensor:
    return h @ table.T


@logits_of.register_fake
def _(h: Tensor, table: Tensor) -> Tensor:
    return h.new_empty(*h.shape[:-1], table.shape[0])


logits_of.register_autograd(lambda ctx, grad: (None, None))


class Rotated(Model):
    """A readout through a product of the table with another matrix."""

    def forward(self, ids: Tensor) -> Tensor:
        return self.norm(self.embed(ids)) @ (self.embed.weight @ self.mid.weight).T


@pytest.mark.parametrize("made", [Candidates, Fused, Rotated])
def test_a_table_that_could_be_read_out_unseen_is_not_drawn_and_said_to_be_left(made: type[Model]) -> None:
    model = made()
    before = model.embed.weight.detach().clone()
    report = tiebeam.initialize(model, IDS)
    assert report.init == ()
    assert torch.equal(model.embed.weight, before)
    (finding,) = [f for f in report.findings if f.code == "left-alone"]
    assert (finding.where, finding.severity) == ("embed.weight", "warning")
    assert "sqrt(width)" in finding.message
    assert finding.hint


def test_a_table_beside_one_that_is_left_alone_is_drawn() -> None:
    model = Candidates()
    model.extra = nn.Embedding(300, 64)
    model.mid.register_forward_pre_hook(lambda mid, args: (args[0] + model.extra(IDS),))
    report = tiebeam.initialize(model, IDS)
    assert [done.name for done in report.init] == ["extra.weight"]
    assert model.extra.weight.std().item() == pytest.approx(1.0, rel=0.02)


class Encoder(Model):
    """A table that is only looked up, in a model without logits."""

    def forward(self, ids: Tensor) -> Tensor:
        return self.norm(self.mid(self.embed(ids)))


class Attended(Encoder):
    """... whose rows are multiplied with each other, and whose table is a memory that is mixed by its rows."""

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        return self.norm((x @ x.transpose(1, 2)).softmax(-1) @ x)


@pytest.mark.parametrize("made", [Encoder, Attended])
def test_a_table_that_is_a_lookup_alone_is_drawn_at_one(made: type[Model]) -> None:
    report = tiebeam.initialize(made(), IDS)
    assert [(done.name, done.std) for done in report.init] == [("embed.weight", 1.0)]
    assert "left-alone" not in {f.code for f in report.findings}


class Prior(Model):
    """What is trained is the prior; its logarithm is the bias."""

    def __init__(self) -> None:
        super().__init__()
        self.prior = nn.Parameter(torch.full((300,), 0.5))

    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids) + self.prior.log()


def test_a_parameter_whose_function_is_the_bias_is_not_set_to_zero() -> None:
    model = Prior()
    tiebeam.initialize(model, IDS)
    assert torch.equal(model.prior, torch.full((300,), 0.5))
    assert bool(model(IDS).isfinite().all())


class Tagger(Model):
    """A head over 140 tags: no vocabulary, though it is as tall as one could be."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(64, 140)


def test_a_classifier_is_not_drawn_as_a_readout_and_a_note_says_so() -> None:
    model = Tagger()
    before = model.head.weight.detach().clone()
    report = tiebeam.initialize(model, IDS)
    assert [done.name for done in report.init] == ["embed.weight"]
    assert torch.equal(model.head.weight, before)
    assert any("classifier" in note for note in report.notes)


class WordsAndCodes(nn.Module):
    """A large vocabulary goes in, and a small one in and out, whose readout lacks the row of the padding."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(1000, 64)
        self.codes = nn.Embedding(257, 64)
        self.norm = nn.LayerNorm(64)
        self.head = nn.Linear(64, 256, bias=False)

    def forward(self, words: Tensor, codes: Tensor) -> Tensor:
        context = self.words(words).mean(1, keepdim=True)
        return self.head(self.norm(self.codes(codes) + context))


def test_a_readout_that_lacks_a_row_of_its_lookup_is_measured_beside_a_larger_vocabulary() -> None:
    """Its hidden state was only measured if it had as many rows as a lookup or half of the largest: `not-settled`."""
    model, ids = WordsAndCodes(), (IDS, IDS)
    head = tiebeam.inspect(model, ids).tables[-1]
    assert (head.name, head.hidden_rms) == ("head.weight", pytest.approx(1.0, rel=0.02))
    tiebeam.initialize(model, ids).assert_healthy()
    assert model(*ids).std().item() == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"mode": "analytical"}, "did you mean 'analytic'"),
        ({"mode": "fast"}, "leave it out: 'auto'"),
        ({"only": "all"}, "keeps what its own code drew"),
        ({"seed": None}, "seed=0, or another"),
    ],
)
def test_an_option_that_there_is_not_is_refused_with_what_to_do(more: dict[str, Any], says: str) -> None:
    model = nn.Sequential(nn.Embedding(300, 16), nn.LayerNorm(16))
    before = model[0].weight.detach().clone()
    with pytest.raises(tiebeam.RangeError, match=f"(?s)got: .*expected: .*Hint: .*{says}"):
        tiebeam.initialize(model, torch.arange(8)[None], **more)
    assert torch.equal(model[0].weight, before)
