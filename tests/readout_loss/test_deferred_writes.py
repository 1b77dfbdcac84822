"""Logits that are left uncomputed, what is written to them, and who looks for their gradient."""

import copy
import functools

import pytest
import torch
import torch.nn.functional as F
from tests.readout_loss.deferred_kit import IDS, LM, gradients, loss_of, report_of

from tiebeam.errors import GradientError
from tiebeam.torch import use_readout_loss


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


def looked_at_and_written_by_another_name(z):
    same = z.float()
    same.argmax(-1)
    same[..., 3] = -1e4
    return z


def copied_and_written(z):
    z[:, :-1].contiguous()[..., 3] = -1e4
    return z


def copied_before_it_was_written(z):
    cut = z[:, ::2]
    copy_of_it = cut.contiguous()
    cut.data[..., 3] = -1e4
    return z + F.pad(copy_of_it, (0, 0, 0, 4))


def written_by_way_of_a_copy_of_the_tensor(z):
    other = copy.copy(z)  # of the same memory
    twice = z * 2
    with torch.no_grad():
        other.mul_(0.5)
    return twice + z


def cloned_and_written(z):
    other = z.clone()
    other[..., 3] = -1e4
    return z


def cloned_before_it_was_written(z):
    other = z.clone()
    z.data[..., 3] = -1e4
    return other


def hooked_after_it_was_cloned(z):
    twice = z.clone() * 2.0
    hooked(z, 3.0)
    return twice


def hooked_on_a_clone(z):
    other = z.clone()
    hooked(other, 3.0)
    return z + other * 2.0


def made_before_it_was_rectified(z):
    twice = z * 2
    F.relu(z, inplace=True)
    return twice


def made_of_what_was_written_since(z):
    bias, picked = torch.linspace(0.0, 1.0, 31), torch.arange(3)
    made = z + bias
    with torch.no_grad():
        constant = z[picked]
    bias.mul_(50.0)
    picked.zero_()
    return (made + constant).exp().log()


def hooked(z, by):
    if z.grad_fn is not None:  # asked for, or torch crashes where it is to be made anew
        z.register_hook(lambda g: g * by)


def hooked_after_it_was_used(z):
    twice = z.view(3, 9, 31) * 2.0
    hooked(z, 3.0)
    return twice


def hooked_and_written(z):
    hooked(z, 3.0)
    z[..., 3] = -1e4
    z.mul_(2.0)
    return z


def hooked_on_a_view_that_was_written_since(z):
    rows = z.view(-1, 31)
    z[..., 3] = -1e4
    hooked(rows, 3.0)
    return rows.view(3, 9, 31)


def summed_before_it_was_hooked(z):
    twice = z * 2.0
    total = twice.logsumexp(-1, keepdim=True)
    hooked(z, 3.0)
    return twice + total.square()


def flattened_to_what_they_are(z):
    rows = z.view(-1, 31)
    with torch.no_grad():
        same = rows.flatten(0, 0)
    return same.view(3, 9, 31)


def hooked_after_both_were_looked_at(z):
    twice = z * 2.0
    with torch.no_grad():
        twice.argmax(-1)
        z.argmax(-1)
    hooked(z, 3.0)
    return twice


WRITES = {
    "by another name": looked_at_and_written_by_another_name,
    "a copy": copied_and_written,
    "what was copied before": copied_before_it_was_written,
    "a clone": cloned_and_written,
    "what was cloned before": cloned_before_it_was_written,
    "a hook after it was cloned": hooked_after_it_was_cloned,
    "a hook on a clone": hooked_on_a_clone,
    "rectified in place": made_before_it_was_rectified,
    "what they were made of": made_of_what_was_written_since,
    "by way of their storage": written(lambda z: torch.empty(0).set_(z.untyped_storage()).view(-1, 31)[:, 3].zero_()),
    "by way of a copy of the tensor": written_by_way_of_a_copy_of_the_tensor,
    "a hook after their use": hooked_after_it_was_used,
    "a hook before a write": hooked_and_written,
    "a hook on a view that was written": hooked_on_a_view_that_was_written_since,
    "a hook after a part": summed_before_it_was_hooked,
    "flattened to what they are": flattened_to_what_they_are,
    "a hook after a look": hooked_after_both_were_looked_at,
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
    "a hook": written(lambda z: hooked(z, 2.0)),
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


def test_a_gradient_that_went_past_logits_is_refused_with_a_way_to_have_it():
    """torch said that they do not appear to have been used, and where that was allowed, that there is none."""
    model = LM()
    with use_readout_loss(model, report_of(model)):
        logits = model(IDS)
        with pytest.raises(
            GradientError, match=r"without them(.|\n)*Hint: logits\.retain_grad\(\), or the hook, before"
        ):
            torch.autograd.grad(loss_of(logits), logits, allow_unused=True)
        for late in (lambda: logits.retain_grad(), lambda: logits.register_hook(lambda g: g)):
            with pytest.raises(GradientError, match="after their loss was taken"):
                late()
        logits = model(IDS)
        logits.argmax(-1)
        logits.retain_grad()
        loss_of(logits).backward()
        watched = model(IDS)
        watched.retain_grad()
        [found] = torch.autograd.grad(loss_of(watched), watched)
    plain = LM()(IDS)
    [want] = torch.autograd.grad(loss_of(plain), plain)
    torch.testing.assert_close([found, logits.grad], [want, want])


def test_a_hook_that_is_removed_runs_no_more():
    model, ran = LM(), []
    with use_readout_loss(model, report_of(model)):
        for looked in (False, True):
            logits = model(IDS)
            handles = [logits.register_hook(lambda _, name=name: ran.append(name)) for name in ("first", "second")]
            if looked:
                logits.argmax(-1)
            handles[0].remove()
            loss_of(logits).backward()
    assert ran == ["second", "second"]


def test_a_wrapper_of_torch_may_ask_when_a_backward_pass_comes_by():
    """As FSDP does of what a model returns, its loss among it; a gradient goes past these logits, but not past it."""
    model = LM()
    with use_readout_loss(model, report_of(model)) as in_use:
        logits = model(IDS)
        loss = loss_of(logits)
        for out in (loss, logits):
            out.register_hook(functools.partial(F.relu))
        loss.backward()
    assert in_use.tally.logits == 0
