"""The lookup's gradient weighted: exact, nothing else touched, nothing left behind."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.measure.models import APART, VOCAB, Read, Tied, batch, indexed, next_token_loss, one_hot, plain, two_views
from torch import Tensor, nn

import tiebeam
from tiebeam.torch import TiedEmbedding, mix_roles

pytestmark = pytest.mark.slow

SEEN = [r for r in APART if r.__name__ not in ("one_hot", "two_views")]


def gradients(model: nn.Module, ids: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    next_token_loss(model(ids), ids).backward()
    return {n: p.grad.to_dense().clone() for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("read", SEEN, ids=lambda read: read.__name__)
@pytest.mark.parametrize("weight", [0.0, 0.25, 4.0])
def test_the_tables_gradient_is_the_weighted_sum_and_no_other_changes(read: Read, weight: float) -> None:
    model, ids = Tied(read), batch()
    roles = tiebeam.measure(model, ids, grad=True).roles
    before = gradients(model, ids)
    with mix_roles(model, tiebeam.inspect(model, ids), lookup=weight):
        mixed = gradients(model, ids)
    want = weight * roles["lookup"].grad + roles["readout"].grad
    torch.testing.assert_close(mixed.pop("table"), want, rtol=1e-6, atol=1e-7)
    before.pop("table")
    assert all(torch.equal(before[n], g) for n, g in mixed.items())


@given(st.floats(0, 100))
def test_any_weight_is_exact(weight: float) -> None:
    model, ids = Tied(plain), batch()
    roles = tiebeam.measure(model, ids, grad=True).roles
    with mix_roles(model, tiebeam.inspect(model, ids), lookup=weight):
        mixed = gradients(model, ids)["table"]
    torch.testing.assert_close(mixed, weight * roles["lookup"].grad + roles["readout"].grad, rtol=1e-5, atol=1e-6)


def test_powers_of_two_are_exact_to_the_last_bit_and_the_forward_pass_is_the_same() -> None:
    model, ids = Tied(plain), batch()
    logits = model(ids)
    plain_roles = tiebeam.measure(model, ids, grad=True).roles
    with mix_roles(model, tiebeam.inspect(model, ids), lookup=2.0):
        mixed = tiebeam.measure(model, ids, grad=True).roles
        assert torch.equal(model(ids), logits)
    assert torch.equal(mixed["lookup"].grad, 2 * plain_roles["lookup"].grad)
    assert torch.equal(mixed["readout"].grad, plain_roles["readout"].grad)


def hooks(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def test_a_weight_of_one_installs_nothing_and_the_weight_may_change_on_the_way() -> None:
    model, ids = Tied(plain), batch()
    before = gradients(model, ids)["table"]
    mixing = mix_roles(model, tiebeam.inspect(model, ids), lookup=1.0)
    assert hooks(model) == 0
    assert torch.equal(gradients(model, ids)["table"], before)
    mixing.lookup = 3.0
    assert hooks(model) == 2
    assert not torch.equal(gradients(model, ids)["table"], before)
    mixing.lookup = 1.0
    assert hooks(model) == 0
    assert torch.equal(gradients(model, ids)["table"], before)


def test_modules_blocks_and_wrappers_are_mixed() -> None:
    class Small(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = TiedEmbedding(VOCAB, 8, table_width=4)

        def forward(self, ids: Tensor) -> Tensor:
            return self.embed.readout(torch.tanh(self.embed(ids)))

    model, ids = Small(), batch()
    report = tiebeam.inspect(model, ids)
    roles = tiebeam.measure(model, ids, grad=True).roles
    before = gradients(model, ids)
    with mix_roles(nn.DataParallel(model), report, lookup=8.0):
        mixed = gradients(model, ids)
    want = 8 * roles["lookup"].grad + roles["readout"].grad
    torch.testing.assert_close(mixed["embed.weight"], want, rtol=1e-5, atol=1e-6)
    assert torch.equal(mixed["embed.project_in.weight"], before["embed.project_in.weight"])


def test_a_failure_in_the_forward_pass_leaves_no_mode_behind() -> None:
    model, ids = Tied(indexed), batch()
    with mix_roles(model, tiebeam.inspect(model, ids), lookup=2.0):
        with pytest.raises(IndexError):
            model(torch.full((1, 3), VOCAB))
        assert torch.overrides._get_current_function_mode() is None


def test_a_lookup_that_cannot_be_seen_is_said_and_not_passed_over() -> None:
    model, ids = Tied(two_views), batch()
    with (
        mix_roles(model, tiebeam.inspect(model, ids), lookup=2.0),
        pytest.raises(tiebeam.InputError, match="no lookup"),
    ):
        model(ids)


@pytest.mark.parametrize(
    ("model", "more", "word"),
    [
        (Tied(plain), {"lookup": -1.0}, "0 or more"),
        (Tied(plain), {"lookup": float("nan")}, "0 or more"),
        (Tied(plain), {"lookup": "2"}, "got: '2'"),
        (Tied(plain, split=True), {"lookup": 2.0}, "no table of the report is tied"),
        (Tied(one_hot), {"lookup": 2.0}, "one-hot"),
    ],
)
def test_what_cannot_be_mixed_is_refused(model: nn.Module, more: dict[str, Any], word: str) -> None:
    with pytest.raises((tiebeam.InputError, tiebeam.RangeError), match=word):
        mix_roles(model, tiebeam.inspect(model, batch()), **more)


def test_a_report_of_another_model_is_refused() -> None:
    with pytest.raises(tiebeam.InputError, match="another model"):
        mix_roles(nn.Linear(2, 2), tiebeam.inspect(Tied(plain), batch()), lookup=2.0)


def test_a_lookup_that_is_compiled_is_refused_when_it_is_seen_and_when_it_is_traced() -> None:
    """Traced, the mode that weights is entered twice, and 4 counts as 16; a graph that is there knows of no hook."""
    model, ids = Tied(plain), batch()
    report = tiebeam.inspect(model, ids)
    compiled = torch.compile(model, backend="eager")
    for seen in (report, tiebeam.inspect(compiled, ids)):
        with pytest.raises(tiebeam.InputError, match="compiled"):
            mix_roles(compiled, seen, lookup=4.0)
    assert hooks(model) == 0
    with mix_roles(model, report, lookup=4.0), pytest.raises(tiebeam.InputError, match="compiled"):
        compiled(ids)
    torch.compiler.reset()


def test_blocks_may_be_compiled_where_the_lookup_is_not() -> None:
    class Body(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.block = nn.Embedding(VOCAB, 8), nn.Linear(8, 8)

        def forward(self, ids: Tensor) -> Tensor:
            return torch.tanh(self.block(self.embed(ids))) @ self.embed.weight.T

    model, ids = Body(), batch()
    roles = tiebeam.measure(model, ids, grad=True).roles
    report = tiebeam.inspect(model, ids)
    model.block.compile(backend="eager")
    with mix_roles(model, report, lookup=4.0):
        mixed = gradients(model, ids)["embed.weight"]
    torch.testing.assert_close(mixed, 4 * roles["lookup"].grad + roles["readout"].grad, rtol=1e-5, atol=1e-6)
    torch.compiler.reset()
