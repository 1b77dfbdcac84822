"""What other rows do to a small model."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.torch.operations.models import IDS, LM, OPTIMIZERS, everything, gpt, gradient, same
from torch import Tensor, nn

import tiebeam
from tiebeam.core.operations.rows import plan_rows, resized
from tiebeam.errors import TieError
from tiebeam.torch import TiedEmbedding


def test_hooks_and_the_object_stay_through_a_resize() -> None:
    model, seen = LM(), []
    model.embed.weight.register_post_accumulate_grad_hook(lambda p: seen.append(tuple(p.shape)))
    model.embed.weight.register_hook(lambda g: g * 0)
    table = model.embed.weight
    model(IDS).sum().backward()
    tiebeam.resize(model, 60, IDS)
    table.grad = None
    model(IDS).sum().backward()
    assert model.embed.weight is table
    assert seen == [(50, 16), (60, 16)]
    assert not gradient(table).any()


def test_new_rows_are_those_of_the_rule_whatever_the_framework() -> None:
    model = LM()
    old = model.embed.weight.detach().numpy().copy()
    tiebeam.resize(model, 70, IDS, seed=5, parts={51: [1, 2]})
    assert np.array_equal(
        model.embed.weight.detach(), resized(old, 0, plan_rows(50, 70, seed=5, parts={51: [1, 2]}), 0)
    )


def test_a_table_in_half_precision_keeps_its_bits_and_its_dtype() -> None:
    model = LM().to(torch.bfloat16)
    old = model.embed.weight.detach().clone()
    tiebeam.resize(model, 64, IDS)
    assert model.embed.weight.dtype == torch.bfloat16
    assert torch.equal(model.embed.weight[:50], old)


def test_both_ends_and_the_bias_take_their_rows() -> None:
    model = LM(bias=True, tied=False)
    with torch.no_grad():
        model.head.bias.normal_()
    rows, out, bias = (p.detach().clone() for p in (model.embed.weight, model.head.weight, model.head.bias))
    optimizer = OPTIMIZERS["adafactor"](model.parameters())
    model(IDS).sum().backward()
    optimizer.step()
    rows, out, bias = (p.detach().clone() for p in (model.embed.weight, model.head.weight, model.head.bias))
    change = tiebeam.resize(model, 53, IDS, optimizer=optimizer, rows="mean")
    assert torch.equal(model.embed.weight[:50], rows)
    assert torch.equal(model.head.weight[:50], out)
    assert torch.equal(model.head.bias[:50], bias)
    assert torch.allclose(model.embed.weight[50:], rows.mean(0).expand(3, -1), atol=1e-6)
    assert torch.allclose(model.head.weight[50:], out.mean(0).expand(3, -1), atol=1e-6)
    assert torch.allclose(model.head.bias[50:], bias.mean().expand(3), atol=1e-6)
    assert (model.embed.num_embeddings, model.head.out_features, model.embed.embedding_dim) == (53, 53, 16)
    assert optimizer.state[model.head.weight]["row_var"].shape == (53, 1)
    assert optimizer.state[model.head.weight]["col_var"].shape == (1, 16)
    assert {n for names in change.tables for n in names} == {"embed.weight", "head.weight", "head.bias"}
    optimizer.step()


def test_new_rows_have_the_mean_and_covariance_of_the_old_ones_at_each_end() -> None:
    torch.manual_seed(0)
    model = LM(4000, 8, tied=False)
    mix = torch.randn(8, 8)
    with torch.no_grad():
        model.embed.weight.copy_(torch.randn(4000, 8) @ mix + 2)
        model.head.weight.copy_(0.1 * torch.randn(4000, 8) - 1)
    tiebeam.resize(model, 12000, IDS)
    for table in (model.embed.weight.detach(), model.head.weight.detach()):
        old, new = table[:4000].T, table[4000:].T
        assert torch.allclose(new.mean(1), old.mean(1), atol=0.15 * old.std().item())
        assert (torch.cov(new) - torch.cov(old)).norm() < 0.1 * torch.cov(old).norm()
    assert not torch.equal(model.embed.weight[4000:], model.head.weight[4000:])


def test_rows_of_the_tables_std_are_those_that_a_larger_vocabulary_would_have_been_drawn_with() -> None:
    a, b = gpt(97), gpt(130)
    tiebeam.initialize(a, seed=7)
    tiebeam.initialize(b, seed=7)
    tiebeam.resize(a, 130, rows="std", seed=7)
    assert torch.allclose(a.embed.weight, b.embed.weight, rtol=0.02, atol=1e-3)
    assert torch.equal(a.embed.weight[:97], b.embed.weight[:97])


def test_a_new_token_is_the_mean_of_what_the_old_tokenizer_made_of_it() -> None:
    model = LM()
    tokens = {f"t{i}": i for i in range(50)}
    new = {**{t: i + 1 for t, i in tokens.items()}, "t3t5": 0}
    old = model.embed.weight.detach().clone()
    change = tiebeam.resize(model, inputs=IDS, tokens=(tokens, new), parts={0: [3, 5]})
    assert change.vocab == (50, 51)
    assert torch.equal(model.embed.weight[1:], old)
    assert torch.allclose(model.embed.weight[0], (old[3] + old[5]) / 2)


def test_a_smaller_vocabulary_drops_the_last_rows_whatever_ids_were_given() -> None:
    model = LM()
    old = model.embed.weight.detach().clone()
    tiebeam.resize(model, 20, torch.tensor([[1, 49, 30]]))
    assert torch.equal(model.embed.weight, old[:20])
    assert model(torch.tensor([[19]])).shape == (1, 1, 20)


def test_the_padding_row_moves_with_its_id_and_is_never_dropped() -> None:
    model = LM()
    model.embed = nn.Embedding(50, 16, padding_idx=49)
    tiebeam.tie(model, IDS, on_conflict="embedding")
    tiebeam.resize(model, ids=[49, *range(49), -1], inputs=IDS)
    assert model.embed.padding_idx == 0
    assert not model.embed.weight[0].any()
    assert model.embed.weight[50].any()  # the zeros of the padding row are no sample
    before = everything(model)
    with pytest.raises(TieError, match="padding row"):
        tiebeam.resize(model, ids=list(range(1, 51)), inputs=IDS)
    assert same(everything(model), before)


def test_a_table_that_lies_the_other_way_round_is_resized_too() -> None:
    class Turned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.randn(16, 50))
            self.vocab_size = 50

        def forward(self, ids: Tensor) -> Tensor:
            return torch.tanh(self.table.T[ids]) @ self.table

    model = Turned()
    old = model.table.detach().clone()
    tiebeam.resize(model, 64, IDS)
    assert model.table.shape == (16, 64)
    assert torch.equal(model.table[:, :50], old)
    assert model.vocab_size == 64


def test_a_model_on_meta_is_changed_in_structure() -> None:
    with torch.device("meta"):
        model = LM()
    tiebeam.resize(model, 64, IDS.to("meta"))
    assert model.head.weight is model.embed.weight
    assert model.embed.weight.shape == (64, 16)
    assert model.embed.weight.is_meta
    tiebeam.untie(model, IDS.to("meta"))
    assert model.head.weight is not model.embed.weight


def test_a_table_that_is_looked_up_by_the_same_ids_takes_its_rows_too() -> None:
    class PerLayer(LM):
        def __init__(self) -> None:
            super().__init__()
            self.more, self.hashed, self.position = nn.Embedding(50, 8), nn.Embedding(7, 16), nn.Embedding(50, 16)

        def forward(self, ids: Tensor) -> Tensor:
            mixed = self.embed(ids) + self.hashed(ids % 7) + self.position(torch.arange(ids.shape[1]))
            logits: Tensor = self.head(torch.tanh(mixed)) + self.more(ids).sum(-1, keepdim=True)
            return logits

    model = PerLayer()
    tiebeam.resize(model, 60, IDS)
    assert [t.num_embeddings for t in (model.more, model.hashed, model.position)] == [60, 7, 50]
    assert model(torch.tensor([[59]])).shape == (1, 1, 60)


def test_counts_by_token_are_refused_before_an_id_is_not_found_in_them() -> None:
    class Counted(LM):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("counts", torch.ones(50))

        def forward(self, ids: Tensor) -> Tensor:
            return super().forward(ids) * self.counts[ids].unsqueeze(-1)

    with pytest.raises(TieError, match="'counts' is looked up by the ids"):
        tiebeam.resize(Counted(), 60, IDS)


def test_a_mask_over_the_vocabulary_is_named_as_what_does_not_fit() -> None:
    class Masked(LM):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mask", torch.zeros(50, dtype=torch.bool))

        def forward(self, ids: Tensor) -> Tensor:
            return super().forward(ids).masked_fill(self.mask, -1e9)

    model = Masked()
    before = everything(model)
    with pytest.raises(TieError, match="does not run after resize"):
        tiebeam.resize(model, 60, IDS)
    assert same(everything(model), before)


def test_a_context_as_long_as_the_vocabulary_is_left_and_logits_that_are_cut_are_spoken_of() -> None:
    class Holds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.randn(50, 16))
            self.block_size = self.vocab_size = 50

        def forward(self, ids: Tensor) -> Tensor:
            return (torch.tanh(self.table[ids]) @ self.table.T)[..., :44]

    model = Holds()
    change = tiebeam.resize(model, 60, IDS)
    assert (model.block_size, model.vocab_size) == (50, 60)
    assert change.notes == ("the model returns 44 logits still: its code cuts them off",)


def test_ids_in_the_config_follow_their_rows() -> None:
    model = LM()
    model.config = SimpleNamespace(eos_token_id=[2, 49], pad_token_id=0, bos_token_id=None)
    model.generation_config = SimpleNamespace(eos_token_id=2)
    tiebeam.resize(model, ids=list(range(49, -1, -1)), inputs=IDS)
    assert vars(model.config) == {"eos_token_id": [47, 0], "pad_token_id": 49, "bos_token_id": None}
    assert model.generation_config.eos_token_id == 47
    change = tiebeam.resize(model, 48, IDS)
    assert change.notes == ("config.pad_token_id is 49, whose row is gone",)


def test_a_loss_whose_rows_were_moved_says_so_when_it_goes_back() -> None:
    model = LM()
    loss = model(IDS).sum()
    tiebeam.resize(model, ids=list(range(49, -1, -1)), inputs=IDS)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("rows", ["covariance", "std", "mean"])
def test_a_broken_row_does_not_break_new_ones(rows: Any) -> None:
    model = LM()
    model.embed.weight.data[7] = float("nan")
    tiebeam.resize(model, 60, IDS, rows=rows)
    assert model.embed.weight[50:].isfinite().all()


def test_our_own_block_says_its_new_size_and_which_row_is_padding_now() -> None:
    class Blocks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = TiedEmbedding(vocab=50, width=16, padding_idx=3)

        def forward(self, ids: Tensor) -> Tensor:
            return self.table.readout(torch.tanh(self.table(ids)))

    model = Blocks()
    tiebeam.resize(model, ids=[3, *range(3), *range(4, 50), -1], inputs=IDS)
    assert (model.table.settings.vocab, model.table.settings.padding_idx) == (51, 0)
    assert not model.table(torch.tensor([0])).any()
