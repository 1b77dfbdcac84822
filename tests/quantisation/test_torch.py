"""Each role of a PyTorch model rounded by itself, held against the same model taken apart by hand."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.checkpoints.tiny import tiny
from torch import Tensor, nn

import tiebeam
from tiebeam.core.measuring.quantise import quantised
from tiebeam.errors import BackendError, InputError
from tiebeam.zoo.torch.minigpt import MiniGPT

IDS = torch.randint(0, 300, (2, 12), generator=torch.Generator().manual_seed(0))


def model(scheme: str = "C") -> MiniGPT:
    torch.manual_seed(0)
    return MiniGPT.from_scheme(scheme, vocab=300, width=32, layers=2).eval()


def by_hand(made: MiniGPT, role: str, bits: int, group: int | None) -> Tensor:
    """Logits of a copy whose table was rounded in one role."""
    twin = copy.deepcopy(made)
    twin.config = made.config
    object.__setattr__(twin, "retie", lambda: None)
    for end, name in ((twin.embed, "lookup"), (twin.head, "readout")):
        rows = end.weight.detach().clone()
        if role in (name, "both"):
            rows = torch.from_numpy(quantised(rows.numpy(), bits, group))
        end.weight = nn.Parameter(rows)
    with torch.no_grad():
        return twin(IDS)


@pytest.mark.parametrize("scheme", ["C", "D", "E"])
@pytest.mark.parametrize("role", ["lookup", "readout", "both"])
def test_a_role_rounded_alone_gives_the_logits_of_a_model_taken_apart(scheme: str, role: Any) -> None:
    made = model(scheme)
    found = tiebeam.sensitivity(made, IDS, bits=(4,), group=8)
    with torch.no_grad():
        base = made(IDS).flatten(0, 1)
    for group in (None, 8):
        other = by_hand(made, role, 4, group).flatten(0, 1)
        effect = found.effect(role, 4, group)
        kl = F.kl_div(other.log_softmax(1), base.log_softmax(1), log_target=True, reduction="batchmean")
        assert effect.kl == pytest.approx(float(kl), rel=1e-3)
        assert effect.top1 == pytest.approx(float((base.argmax(1) == other.argmax(1)).float().mean()))
    assert found.tied is (scheme != "E")


def test_the_model_is_left_alone_to_the_bit_and_to_the_version() -> None:
    made = model()
    loss = made.loss(IDS)  # a graph that still waits for its backward pass
    before = {name: (t.clone(), t._version) for name, t in made.state_dict(keep_vars=True).items()}
    random = torch.get_rng_state()
    tiebeam.sensitivity(made, IDS)
    for name, t in made.state_dict(keep_vars=True).items():
        assert torch.equal(t, before[name][0])
        assert t._version == before[name][1]
        assert t.grad is None
    assert torch.equal(torch.get_rng_state(), random)
    loss.backward()


def test_fewer_bits_do_more_and_groups_do_less() -> None:
    found = tiebeam.sensitivity(model(), IDS, group=8)
    for role in ("lookup", "readout", "both"):
        for group in (None, 8):
            errors = [found.effect(role, b, group).kl for b in (8, 6, 4)]
            assert errors == sorted(errors)
        assert found.effect(role, 4, 8).row_error < found.effect(role, 4).row_error
    assert any("freshly drawn" in n for n in found.notes)


def test_dropout_draws_the_same_numbers_in_each_pass() -> None:
    torch.manual_seed(0)
    made = MiniGPT.from_scheme("C", vocab=300, width=32, layers=1).train()
    made.drop.p = 0.5
    found = tiebeam.sensitivity(made, IDS, bits=(16,), group=None)
    assert found.effect("both", 16).kl < 1e-6


@pytest.mark.parametrize(
    "name", ["GPT2LMHeadModel", "LlamaForCausalLM", "T5ForConditionalGeneration", "BertForMaskedLM"]
)
def test_real_architectures_are_measured(name: str) -> None:
    made = tiny(name).eval()
    ids = torch.arange(8)[None]
    batch = {"input_ids": ids, "decoder_input_ids": ids} if name.startswith("T5") else {"input_ids": ids}
    found = tiebeam.sensitivity(made, batch, bits=(8, 4))
    assert found.effect("both", 8).kl <= found.effect("both", 4).kl
    assert found.effect("lookup", 4).kl > 0
    assert found.effect("readout", 4).kl > 0


def test_padding_is_not_compared() -> None:
    made = tiny("GPT2LMHeadModel").eval()
    mask = torch.ones(2, 8, dtype=torch.long)
    mask[1, 5:] = 0
    found = tiebeam.sensitivity(made, {"input_ids": torch.arange(16).view(2, 8), "attention_mask": mask}, bits=(8,))
    assert found.positions == 13


class Transposed(nn.Module):
    """A table kept (width, vocab), half of a larger storage."""

    def __init__(self) -> None:
        super().__init__()
        whole = torch.randn(2, 16, 300, generator=torch.Generator().manual_seed(0))
        self.table = nn.Parameter(whole[1])

    def forward(self, ids: Tensor) -> Tensor:
        return F.layer_norm(self.table.t()[ids], (16,)) @ self.table


def test_a_table_that_lies_otherwise_is_rounded_by_its_rows() -> None:
    made = Transposed()
    found = tiebeam.sensitivity(made, IDS, bits=(4,), group=None)
    rounded = torch.from_numpy(quantised(made.table.detach().T.contiguous().numpy(), 4))
    with torch.no_grad():
        base, read = made(IDS), F.layer_norm(made.table.t()[IDS], (16,)) @ rounded.T
    kl = F.kl_div(
        read.flatten(0, 1).log_softmax(1), base.flatten(0, 1).log_softmax(1), log_target=True, reduction="batchmean"
    )
    assert found.effect("readout", 4).kl == pytest.approx(float(kl), rel=1e-3)
    assert (found.vocab, found.width) == (300, 16)


def test_a_half_precision_table_is_rounded_in_its_own_precision() -> None:
    found = tiebeam.sensitivity(model().bfloat16(), IDS, bits=(8, 4))
    assert found.dtype == "bfloat16"
    assert found.effect("both", 4).kl > found.effect("both", 8).kl


class Copied(nn.Module):
    """One cast of the table, read at both ends."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(300, 16))

    def forward(self, ids: Tensor) -> Tensor:
        cast = self.table.to(torch.bfloat16)
        return F.layer_norm(cast[ids], (16,)) @ cast.T


class Ends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(300, 16)

    def forward(self, ids: Tensor) -> Tensor:
        return self.embed(ids)


def test_what_cannot_be_told_apart_or_compared_is_refused() -> None:
    with pytest.raises(InputError, match="cannot be rounded in one role alone"):
        tiebeam.sensitivity(Copied(), IDS)
    with pytest.raises(InputError, match="nothing can be compared"):
        tiebeam.sensitivity(Ends(), IDS)
    with pytest.raises(InputError, match="the batch is empty"):
        tiebeam.sensitivity(model(), IDS[:0])
    with pytest.raises(InputError, match="does not run on these inputs"):
        tiebeam.sensitivity(Transposed(), IDS + 10**6)
    with pytest.raises(InputError, match="without values"):
        tiebeam.sensitivity(model().to("meta"), IDS.to("meta"))
    with pytest.raises(BackendError):
        tiebeam.sensitivity(object(), IDS)


def test_a_failed_pass_leaves_the_model_as_it_was() -> None:
    made, passes = model(), 0

    def fail(*_: Any) -> None:
        nonlocal passes
        passes += 1
        if passes == 3:
            raise RuntimeError("out of luck")

    before = made.embed.weight.detach().clone()
    handle = made.norm.register_forward_hook(fail)
    with pytest.raises(RuntimeError, match="out of luck"):
        tiebeam.sensitivity(made, IDS)
    handle.remove()
    assert torch.equal(made.embed.weight, before)
    np.testing.assert_array_equal(made.head.weight.detach(), before)


class Steep(nn.Module):
    """Of the catalogue: a readout whose logits are eight times as large."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Parameter(torch.randn(1000, 64) * 0.05)
        self.hidden = torch.randn(256, 64)

    def forward(self, ids: Tensor) -> Tensor:
        return (self.hidden + 0 * self.table[ids]) @ self.table.T * 8


def test_a_shared_table_takes_the_readouts_precision() -> None:
    found = tiebeam.sensitivity(Steep(), torch.arange(256), group=None)
    for bits, observed in ((8, 0.0001598), (6, 0.002729), (4, 0.05336)):
        assert found.effect("readout", bits).kl == pytest.approx(observed, rel=0.01)
        assert found.effect("lookup", bits).kl == 0
    assert found.bits == {"lookup": 4, "readout": 6}
    assert found.advice == "shared"
    assert "one table at 6 bits" in found.reason


def test_logits_that_are_no_numbers_are_not_taken_for_untouched_ones() -> None:
    """A divergence of NaN read as 0, and four bits were advised."""
    model = torch.nn.Sequential(torch.nn.Embedding(50, 16), torch.nn.Linear(16, 50, bias=False))
    model[1].weight = model[0].weight
    with torch.no_grad():
        model[0].weight[7] = float("nan")
    with pytest.raises(tiebeam.InputError, match="not finite"):
        tiebeam.sensitivity(model, torch.arange(8)[None])
