"""A GPT with tables narrower than its stream: what it costs, what its logits can be, and where its scales start."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F

import tiebeam
from tiebeam.errors import RangeError
from tiebeam.zoo.minigpt import MiniGPTConfig
from tiebeam.zoo.torch.factorised import FactorisedGPT
from tiebeam.zoo.torch.minigpt import MiniGPT

SMALL = MiniGPTConfig(
    vocab=64, width=32, layers=1, heads=2, block_size=16, positions="none", lookup_factor=8**0.5, table_std=8**-0.5
)
UNTIED = dataclasses.replace(SMALL, tie=False, lookup_factor=1.0, table_std=1.0)
IDS = torch.randint(64, (8, 16), generator=torch.Generator().manual_seed(0))


def build(config=SMALL, **widths):
    return FactorisedGPT(config, generator=torch.Generator().manual_seed(0), **widths)


def size(model):
    return sum(p.numel() for p in model.parameters())


def test_without_narrow_tables_it_is_the_plain_model_weight_by_weight():
    plain, same = MiniGPT(UNTIED, generator=torch.Generator().manual_seed(0)), build(UNTIED)
    for (name, a), (other, b) in zip(plain.named_parameters(), same.named_parameters(), strict=True):
        assert name == other
        assert torch.equal(a, b), name


@pytest.mark.parametrize(
    ("config", "widths", "tables"),
    [
        (SMALL, {"lookup_width": 8, "readout_width": 8}, 64 * 8 + 2 * 8 * 32),
        (UNTIED, {"lookup_width": 8}, 64 * 8 + 8 * 32 + 64 * 32),
        (UNTIED, {"readout_width": 4}, 64 * 32 + 32 * 4 + 64 * 4),
    ],
)
def test_a_narrow_table_costs_its_rows_and_one_product(config, widths, tables):
    model, body = build(config, **widths), size(MiniGPT(SMALL)) - 64 * 32
    assert size(model) == body + tables
    logits = model(IDS).flatten(0, 1).detach()
    rank = widths.get("readout_width", 31)  # a fresh LayerNorm leaves one direction of 32 out
    assert torch.linalg.matrix_rank(logits.double(), rtol=1e-5) == rank
    right = F.cross_entropy(model(IDS[:, :-1]).flatten(0, 1), IDS[:, 1:].flatten())
    torch.testing.assert_close(model.loss(IDS), right)


def test_the_narrow_table_is_tied_and_starts_at_unit_logits():
    model = build(lookup_width=8, readout_width=8)
    assert model.head.weight is model.embed.weight
    [table] = tiebeam.inspect(model, IDS).tables
    assert (table.state, table.width, table.lookup_factor) == ("tied", 8, pytest.approx(8**0.5))
    assert table.predicted.logit_std == pytest.approx(1.0, rel=0.25)
    assert float(model(IDS).detach().std()) == pytest.approx(1.0, rel=0.25)


def test_widths_that_do_not_fit_are_refused():
    with pytest.raises(RangeError, match="widths 8 and 16"):
        build(lookup_width=8, readout_width=16)
    with pytest.raises(RangeError, match="1 to 32"):
        build(UNTIED, lookup_width=33)
