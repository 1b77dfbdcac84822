"""Logits that are left uncomputed behave as those of the model, whatever is done to them and around them."""

import copy
import io

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import tiebeam
from tiebeam.backends.torch.readout.deferred import Deferred
from tiebeam.errors import InputError
from tiebeam.torch import use_readout_loss

IDS = torch.randint(31, (3, 9), generator=torch.Generator().manual_seed(2))


def as_it_is(z):
    return z


class LM(nn.Module):
    """A tied pair with a layer between, whose logits go through `way`."""

    def __init__(self, way=as_it_is):
        super().__init__()
        draws = torch.Generator().manual_seed(0)
        self.embed, self.body, self.head, self.way = (
            nn.Embedding(31, 8),
            nn.Linear(8, 8, False),
            nn.Linear(8, 31, False),
            way,
        )
        with torch.no_grad():
            for p in (self.embed.weight, self.body.weight):
                p.normal_(0.0, 0.5, generator=draws)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        return self.way(self.head(self.body(self.embed(ids))))


def report_of(model):
    return tiebeam.inspect(LM(), IDS)


def loss_of(logits):
    return F.cross_entropy(logits.flatten(0, 1), IDS.flatten())


def gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters()}


def written(write):
    def way(z):
        write(z)
        return z

    return way


def made_before_it_was_written(z):
    twice = z * 2
    z[..., 3] = -1e4
    return twice


def looked_at_without_gradients(z):
    with torch.no_grad():
        z.argmax(-1)
    return z + torch.ones(9, 1)


def multiplied_without_gradients(z):
    with torch.no_grad():
        constant = z * 2.0
    return z + constant


WRITES = {
    "an item": written(lambda z: z.__setitem__((..., 3), -1e4)),
    "an item of a view": written(lambda z: z.view(-1, 31).__setitem__((slice(None), 3), -1e4)),
    "in place": written(lambda z: z.mul_(3.0)),
    "a mask": written(lambda z: z.masked_fill_(torch.arange(31) % 2 == 0, -9.0)),
    "clamped": written(lambda z: z.clamp_(max=0.3)),
    "by way of .data": written(lambda z: z.data.__setitem__((..., 3), -1e4)),
    "an alias": written(lambda z: z.detach().__setitem__((..., 3), -1e4)),
    "what was made before": made_before_it_was_written,
    "looked at without gradients": looked_at_without_gradients,
    "multiplied without gradients": multiplied_without_gradients,
    "a hook": written(lambda z: z.register_hook(lambda g: g * 2.0) if z.requires_grad else None),
}


@pytest.mark.parametrize("name", WRITES)
def test_what_is_written_to_logits_is_in_their_loss(name):
    """A loss of the logits before they were masked was what came of it."""
    model = LM(WRITES[name])
    want = loss_of(model(IDS))
    wanted = gradients(model, want)
    with use_readout_loss(model, report_of(model)):
        found = loss_of(model(IDS))
        torch.testing.assert_close(found, want)
        torch.testing.assert_close(gradients(model, found), wanted)


def test_logits_that_are_looked_at_later_are_those_of_the_call():
    model = LM()
    with use_readout_loss(model, report_of(model)):
        with torch.autocast("cpu", torch.bfloat16):
            want, found = F.linear(model.body(model.embed(IDS)), model.head.weight), model(IDS)
        assert torch.equal(found + 0, want)
        with torch.no_grad():
            constant = model(IDS)
        for made in (constant, constant + 1.0, loss_of(constant)):
            assert not made.requires_grad
        with torch.inference_mode():
            constant = model(IDS)
        assert not loss_of(constant).requires_grad


def test_logits_are_not_computed_of_weights_that_are_others_by_now():
    model = LM()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with use_readout_loss(model, report_of(model)):
        logits = model(IDS)
        loss_of(logits).backward()
        optimizer.step()
        for look in (lambda: logits.argmax(-1), lambda: loss_of(logits)):
            with pytest.raises(InputError, match=r"looked at too late(.|\n)*Hint: .*before optimizer\.step"):
                look()


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_that_ends_in_logits_loses_no_gradient(reentrant):
    """Under the reentrant one all but the table had none."""
    model = LM()
    wanted = gradients(model, loss_of(model(IDS)))
    with use_readout_loss(model, report_of(model)):
        start = torch.zeros(3, 9, 8, requires_grad=True)
        logits = checkpoint(lambda x: model.head(model.body(model.embed(IDS) + x)), start, use_reentrant=reentrant)
        torch.testing.assert_close(gradients(model, loss_of(logits)), wanted)


def test_a_backward_pass_may_start_at_logits_or_leave_a_gradient_there():
    model = LM()
    plain = model(IDS)
    plain.retain_grad()
    wanted = gradients(model, loss_of(plain))
    with use_readout_loss(model, report_of(model)) as in_use:
        logits = model(IDS)
        assert not logits.is_leaf
        logits.retain_grad()
        torch.testing.assert_close(gradients(model, loss_of(logits)), wanted)
        torch.testing.assert_close(logits.grad, plain.grad)
        logits = (model(IDS) * 2.0) * 0.5
        model.zero_grad()
        torch.autograd.Variable._execution_engine.run_backward(  # as extensions in C++ do
            (logits,), (plain.grad,), False, False, (), allow_unreachable=True, accumulate_grad=True
        )
        torch.testing.assert_close({n: p.grad for n, p in model.named_parameters()}, wanted)
    assert in_use.tally.losses == 0


def test_no_token_has_the_loss_that_it_had():
    model = LM()
    with use_readout_loss(model, report_of(model)):
        none = torch.zeros(3, 9, dtype=torch.bool)
        assert F.cross_entropy(model(IDS)[none], IDS[none], reduction="sum") == 0.0


# ---- the model meanwhile


def saved(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("copied", [copy.deepcopy, saved])
def test_a_copy_of_the_model_reads_its_own_table_and_computes_its_logits(copied):
    """A deep copy read the table of the model that it was made of."""
    model = LM()
    with use_readout_loss(model, report_of(model)):
        other = copied(model)
        assert isinstance(model(IDS), Deferred)
    with torch.no_grad():
        other.embed.weight.zero_()
    assert type(other(IDS)) is torch.Tensor
    assert not other(IDS).any()
    assert type(model(IDS)) is torch.Tensor


@pytest.mark.parametrize("order", [1, -1])
def test_two_in_use_end_in_any_order(order):
    model, report = LM(), report_of(LM())
    both = [use_readout_loss(model, report), use_readout_loss(model, report)]
    torch.testing.assert_close(loss_of(model(IDS)), loss_of(LM()(IDS)))
    for in_use in both[::order]:
        in_use.remove()
    assert "forward" not in vars(model.head)


def test_what_wraps_the_layer_meanwhile_stays():
    model = LM()
    with use_readout_loss(model, report_of(model)):
        ours = model.head.forward
        model.head.forward = lambda hidden: ours(hidden) + 1.0
    assert torch.equal(model(IDS), LM()(IDS) + 1.0)
    assert type(model.head(model.embed(IDS))) is torch.Tensor


def test_a_report_of_a_model_in_use_is_that_of_the_model():
    model, report = LM(), report_of(LM())
    with use_readout_loss(model, report):
        assert tiebeam.inspect(model, IDS).to_dict()["tables"] == tiebeam.inspect(LM(), IDS).to_dict()["tables"]
        assert tiebeam.measure(model, IDS).initial_loss == tiebeam.measure(LM(), IDS).initial_loss


def test_a_functional_call_reads_the_weights_it_is_given():
    model = LM()
    weights = {name: 2.0 * p.detach() for name, p in model.named_parameters()}
    with use_readout_loss(model, report_of(model)):
        logits = torch.func.functional_call(model, weights, (IDS,))
        grads = torch.func.grad(lambda w: loss_of(torch.func.functional_call(model, w, (IDS,))))(weights)
        seen = logits + 0.0
    torch.testing.assert_close(seen, torch.func.functional_call(model, weights, (IDS,)))
    want = torch.func.grad(lambda w: loss_of(torch.func.functional_call(model, w, (IDS,))))(weights)
    torch.testing.assert_close(grads, want)
