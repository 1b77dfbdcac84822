"""Logits that are left uncomputed behave as those of the model, whatever is done to them and around them."""

import copy
import io

import pytest
import torch
import torch.nn.functional as F
from tests.readout_loss.deferred_kit import IDS, LM, gradients, loss_of, report_of
from torch import nn
from torch.utils.checkpoint import checkpoint

import tiebeam
from tiebeam.backends.torch.readout.deferred import Deferred
from tiebeam.errors import InputError
from tiebeam.torch import use_readout_loss


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


def test_a_layer_that_is_kept_in_float32_under_autocast_keeps_its_loss_there():
    """Its products were bfloat16: the loss was off by 4e-4, gradients by 1e-3."""
    model = LM()
    want = loss_of(model(IDS))
    wanted = gradients(model, want)
    with use_readout_loss(model, report_of(model)) as in_use:
        logits = model(IDS)
        with torch.autocast("cpu", torch.bfloat16):
            found = loss_of(logits.float())
        torch.testing.assert_close(found, want)
        torch.testing.assert_close(gradients(model, found), wanted)
    assert in_use.tally.logits == 0


def test_logits_lie_in_memory_as_those_of_the_model():
    model = LM()
    with use_readout_loss(model, report_of(model)) as in_use:
        z, plain = model(IDS), LM()(IDS)
        for way in (
            lambda z: z[:, :-1],
            lambda z: z[:, ::2] * 2.0,
            lambda z: z[1:, 2:].contiguous(),
            lambda z: z[0, 1],
        ):
            assert way(z).stride() == way(plain).stride()
        with pytest.raises(RuntimeError, match="not compatible with input tensor's size and stride"):
            z[:, :-1].view(-1, 31)
        assert in_use.tally.logits == 0
        for mask in (plain > 0, (plain > 0).numpy()):
            torch.testing.assert_close(z[mask], plain[mask])  # an IndexError, for it was taken for one of tokens


@pytest.mark.parametrize("where", ["a factor", "the hidden state"])
def test_what_is_no_number_makes_a_loss_that_is_none(where):
    """It was an error of an argument that nobody had given; a gradient scaler skips such a step, and goes on."""
    model = LM(lambda z: z * float("nan") if where == "a factor" else z)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    with use_readout_loss(model, report_of(model)):
        if where == "the hidden state":
            model.body.register_forward_hook(lambda _, __, out: out * float("inf"))
        loss = loss_of(model(IDS))
        assert loss.isnan()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() == 2.0
    assert model.embed.weight.isfinite().all()


def other_memory(model):
    nn.utils.vector_to_parameters(2.0 * nn.utils.parameters_to_vector(model.parameters()), model.parameters())


def test_logits_are_not_computed_of_weights_that_lie_elsewhere_by_now():
    """They were those of the new weights."""
    model = LM()
    with use_readout_loss(model, report_of(model)):
        for look in (lambda z: z.argmax(-1), loss_of):
            logits = model(IDS)
            other_memory(model)
            with pytest.raises(InputError, match="looked at too late"):
                look(logits)


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


class Sink(torch.autograd.Function):
    """As DDP puts it behind what a model returns, when it looks for parameters without a gradient."""

    @staticmethod
    def forward(ctx, *given):
        return tuple(t.clone() for t in given)

    @staticmethod
    def backward(ctx, *grads):
        return grads


def test_a_wrapper_that_clones_what_a_model_returns_leaves_its_logits_uncomputed():
    """DDP with find_unused_parameters computed them in every step."""
    model = LM()
    wanted = gradients(model, 2.0 * loss_of(model(IDS)))
    with use_readout_loss(model, report_of(model)) as in_use:
        logits = model(IDS)
        loss, logits = Sink.apply(loss_of(logits), logits)
        assert in_use.tally.logits == 0
        torch.testing.assert_close(gradients(model, loss + loss_of(logits)), wanted)


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


@pytest.mark.filterwarnings("ignore:`torch.jit.trace.* is deprecated:DeprecationWarning")
def test_a_trace_holds_the_model_as_it_was():
    """It ended in an AttributeError."""
    model = LM()
    with use_readout_loss(model, report_of(model)):
        traced = torch.jit.trace(model, IDS)
    assert torch.equal(traced(IDS.roll(1)), LM()(IDS.roll(1)))


def test_a_model_without_numbers_computes_none():
    model = LM().to("meta")
    model.head.weight = model.embed.weight
    with use_readout_loss(model, report_of(model)):
        logits = model(IDS.to("meta"))
        assert (type(logits), logits.shape, logits.is_meta) == (torch.Tensor, (3, 9, 31), True)


def test_a_copy_on_another_device_is_refused_with_what_to_do_instead():
    """As `nn.DataParallel` makes them: its head would have read the table of the model itself."""
    model = LM()
    with use_readout_loss(model, report_of(model)):
        replica = model.head._replicate_for_data_parallel()
        with pytest.raises(InputError, match=r"on another device(.|\n)*Hint: DistributedDataParallel"):
            replica(torch.ones(1, 8, device="meta"))
        own = model.head.forward
        del model.head.forward
        model.head.forward = lambda hidden: F.linear(hidden.cpu(), model.head.weight) if hidden.is_cpu else "theirs"
        with use_readout_loss(model, report_of(model)):
            assert model.head(torch.ones(1, 8, device="meta")) == "theirs"
        model.head.forward = own


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
