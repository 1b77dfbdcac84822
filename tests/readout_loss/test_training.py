"""The readout loss inside what people train with: compilers, checkpoints, scalers, several processes."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.readout_loss.reference import Problem, cross_entropy
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint

import tiebeam
from tiebeam.blocks.readout_loss.torch.operator import Numbers, readout_loss_op
from tiebeam.errors import GradientError
from tiebeam.torch import TiedEmbedding, readout_loss

pytestmark = pytest.mark.slow

CASES = {
    "plain": {},
    "capped": {"soft_cap": 2.0, "bias": True, "factor": True},
    "smoothed": {"label_smoothing": 0.1, "weight": True, "z_loss": 0.01},
    "not reduced": {"reduction": "none"},
}


class LM(nn.Module):
    """Lookup, a layer, a normalisation, and the loss of the readout."""

    def __init__(self, **options):
        super().__init__()
        draws = torch.Generator().manual_seed(0)
        self.embed = TiedEmbedding(40, 16, **options, generator=draws)
        self.body, self.norm = nn.Linear(16, 16), nn.LayerNorm(16)
        with torch.no_grad():
            self.body.weight.normal_(0.0, 0.25, generator=draws)

    def hidden(self, ids):
        return self.norm(self.body(self.embed(ids)))

    def forward(self, ids):
        return self.embed.loss(self.hidden(ids[:, :-1]), ids[:, 1:])

    def logits_loss(self, ids):
        return nn.functional.cross_entropy(
            self.embed.readout(self.hidden(ids[:, :-1])).flatten(0, 1), ids[:, 1:].flatten()
        )


def ids_of(*shape):
    return torch.randint(0, 40, shape, generator=torch.Generator().manual_seed(1))


def gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters()}


@pytest.mark.parametrize(
    "options",
    [{}, {"readout_factor": -0.5, "soft_cap": 3.0, "bias": True}, {"table_width": 8}, {"padding_idx": 3}],
    ids=str,
)
def test_the_loss_of_a_block_is_that_of_its_logits(options):
    model, ids = LM(**options), ids_of(3, 9)
    torch.testing.assert_close(model(ids), model.logits_loss(ids))
    torch.testing.assert_close(gradients(model, model(ids)), gradients(model, model.logits_loss(ids)))


def test_the_loss_of_a_block_takes_options_and_returns_statistics():
    model, ids = LM(), ids_of(3, 9)
    hidden = model.hidden(ids[:, :-1])
    _, stats = model.embed.loss(hidden, ids[:, 1:], ids=ids[:, :-1], returns="stats", label_smoothing=0.1)
    own = model.embed.readout(hidden).gather(-1, ids[:, :-1, None])[..., 0]
    torch.testing.assert_close(stats.own_logit, own.detach())


def test_a_report_sees_the_readout_of_a_model_that_returns_its_loss_alone():
    model = LM(readout_factor=0.5, soft_cap=3.0, bias=True)
    [table] = tiebeam.inspect(model, ids_of(2, 9)).tables
    assert (table.state, table.readout_factor, table.soft_cap, table.readout_bias) == ("tied", 0.5, 3.0, True)


def test_measuring_splits_the_gradient_of_a_model_that_returns_its_loss_alone():
    model, ids = LM(), ids_of(2, 9)
    measured = tiebeam.measure(model, ids)
    assert measured.initial_loss == pytest.approx(float(model(ids).detach()), rel=1e-5)
    assert measured.role_ratio > 0


# ---- what torch does with a loss


# torch 2.13's compiler does what torch itself says is out of date.
quiet = pytest.mark.filterwarnings(
    "ignore:.*should not be instantiated:DeprecationWarning", "ignore:.*script.* is deprecated:DeprecationWarning"
)


@quiet
@pytest.mark.parametrize(
    "backend", ["eager", "aot_eager", pytest.param("inductor", marks=[pytest.mark.slow, pytest.mark.wide])]
)
@pytest.mark.parametrize("name", CASES)
def test_compilation_breaks_no_graph_and_changes_nothing(name, backend):
    problem = Problem.of(ignored=2, **CASES[name])
    compiled = torch.compile(readout_loss, backend=backend, fullgraph=True)
    for a, b in zip(problem.run(compiled), problem.run(readout_loss), strict=True):
        torch.testing.assert_close(a, b)
    torch.compiler.reset()


@quiet
def test_a_compiled_model_trains_as_it_does_otherwise():
    model, ids = LM(), ids_of(3, 9)
    want = gradients(model, model(ids))
    torch.testing.assert_close(gradients(model, torch.compile(model, backend="aot_eager", fullgraph=True)(ids)), want)
    torch.compiler.reset()


@pytest.mark.parametrize("name", CASES)
def test_the_operator_keeps_what_torch_asks_of_operators(name):
    problem = Problem.of(ignored=2, dtype=torch.float32, **CASES[name])
    given = problem.options
    factor, bias = given.get("factor"), given.get("bias")
    numbers = Numbers(
        constant=1.0,
        soft_cap=given.get("soft_cap"),
        ignore_index=-100,
        smoothing=given.get("label_smoothing", 0.0),
        z_loss=given.get("z_loss", 0.0),
        reduction=given.get("reduction", "mean"),
        chunk=4,
        gradients=[True, True, bias is not None, factor is not None],
        best=True,
        product=torch.float32,
        shape=[9],
        first=0,
        vocab=23,
        group="",
    )
    tensors = (
        problem.hidden,
        problem.table,
        bias,
        factor,
        problem.targets,
        given.get("weight"),
        problem.targets.clamp(0),
        None,
    )
    detached = [t.detach() if isinstance(t, torch.Tensor) else t for t in tensors]
    for hidden in (detached[0], detached[0].T.contiguous().T):  # a compiler relies on how results lie, too
        given = (hidden, *detached[1:], *numbers)
        torch.library.opcheck(readout_loss_op, given, test_utils=("test_schema", "test_faketensor"))


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_around_it_changes_nothing(reentrant):
    problem = Problem.of(bias=True)

    def checkpointed(hidden, table, targets, **options):
        return checkpoint(lambda h: readout_loss(h, table, targets, **options), hidden, use_reentrant=reentrant)

    found = []
    for way in (readout_loss, checkpointed):
        for leaf in problem.leaves:
            leaf.grad = None
        way(problem.hidden, problem.table, problem.targets, **problem.options).backward()
        found.append([leaf.grad for leaf in problem.leaves])
    torch.testing.assert_close(found[1], found[0])


def test_accumulated_parts_are_the_whole():
    model, ids = LM(), ids_of(4, 9)
    whole = gradients(model, model(ids))
    model.zero_grad()
    for part in ids.chunk(2):
        (model(part) / 2).backward()
    torch.testing.assert_close({n: p.grad for n, p in model.named_parameters()}, whole)


def test_a_graph_that_is_kept_gives_its_gradients_again():
    for upstream in (1.0, 0.5):
        problem = Problem.of()
        loss = readout_loss(problem.hidden, problem.table, problem.targets) * upstream
        first = torch.autograd.grad(loss, problem.leaves, retain_graph=True)
        first = [g.clone() for g in first]
        for a, b in zip(first, torch.autograd.grad(loss, problem.leaves), strict=True):
            assert torch.equal(a, b)


def test_the_gradient_of_a_table_is_handed_over_and_not_copied(monkeypatch):
    from tiebeam.blocks.readout_loss.torch import function

    made = []
    op = function.readout_loss_op

    def watched(*args):
        results = op(*args)
        made.append(results[2].data_ptr())
        return results

    monkeypatch.setattr(function, "readout_loss_op", watched)
    for upstream in (1.0, 0.5):
        problem = Problem.of(dtype=torch.float32)
        (readout_loss(problem.hidden, problem.table, problem.targets) * upstream).backward()
        assert problem.table.grad.data_ptr() == made[-1]


def test_a_gradient_scaler_finds_what_it_looks_for():
    model, ids = LM(), ids_of(3, 9)
    plain = gradients(model, model(ids))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    model.zero_grad()
    with torch.autocast("cpu", torch.float16):
        scaler.scale(model(ids)).backward()
    scaler.unscale_(optimizer)
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.grad, plain[name], rtol=2e-2, atol=2e-4)


def test_a_second_derivative_is_refused_with_a_way_out():
    for options in ({}, {"reduction": "none"}):
        problem = Problem.of(**options)
        loss = readout_loss(problem.hidden, problem.table, problem.targets, **problem.options).sum()
        grad = torch.autograd.grad(loss, problem.hidden, create_graph=True)[0]
        exact = torch.autograd.grad(
            cross_entropy(problem.hidden, problem.table, problem.targets, **problem.options).sum(), problem.hidden
        )[0]
        torch.testing.assert_close(grad.detach(), exact)
        with pytest.raises(GradientError, match=r"second derivative of readout_loss(.|\n)*Hint: .*F\.cross_entropy"):
            grad.square().sum().backward()


@pytest.mark.parametrize("options", [{}, {"reduction": "none"}], ids=["mean", "none"])
def test_a_second_derivative_is_refused_of_whatever_tensor_it_is_asked_for(options):
    problem = Problem.of((6,))
    table, targets = problem.table.detach().requires_grad_(), problem.targets
    x, times = torch.randn(6, 6, dtype=torch.float64), torch.ones((), dtype=torch.float64, requires_grad=True)
    weight = torch.randn(6, 6, dtype=torch.float64, requires_grad=True)

    def loss(weight):
        return times * readout_loss(torch.tanh(x @ weight), table, targets, **options).sum()

    for of in (weight, table):
        for by in (weight, table, times):
            grad = torch.autograd.grad(loss(weight), of, create_graph=True)[0]
            with pytest.raises(GradientError, match="second derivative of readout_loss"):
                torch.autograd.grad(grad.square().sum(), by)
    for whole in (torch.autograd.functional.hessian, lambda f, w: torch.autograd.functional.hvp(f, w, w)):
        with pytest.raises(GradientError, match="second derivative of readout_loss"):
            whole(loss, weight)


@pytest.mark.parametrize("options", [{}, {"reduction": "none"}], ids=["mean", "none"])
def test_a_backward_pass_through_a_transform_is_refused_and_parameters_may_be_transformed(options):
    """The gradient that a transform returned had no history: a penalty on it was left out without a word."""
    problem = Problem.of((6,))

    def grad(way):
        return torch.func.grad(lambda h: way(h, problem.table, problem.targets, **options).sum())(problem.hidden)

    found = grad(readout_loss)
    torch.testing.assert_close(found, grad(cross_entropy))
    for leaf in (problem.hidden, problem.table):
        with pytest.raises(GradientError, match="second derivative of readout_loss"):
            torch.autograd.grad(leaf.square().sum() + found.square().sum(), leaf, retain_graph=True)


def test_one_transform_inside_another_is_refused_before_it_finds_zero():
    problem = Problem.of((2,), 5, 3)
    table = problem.table.detach()

    def grad(hidden):
        return torch.func.grad(lambda h: readout_loss(h, table, problem.targets))(hidden)

    for outer in (torch.func.jacrev(grad), torch.func.grad(lambda hidden: grad(hidden).sum())):
        with pytest.raises(GradientError):
            outer(problem.hidden.detach())


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_a_transform_that_it_does_not_know_is_refused_with_a_way_out():
    problem = Problem.of((2, 3), 5, 3)
    hidden, table, targets = problem.hidden.detach(), problem.table.detach(), problem.targets

    def loss(h, t):
        return readout_loss(h, table, t)

    for transformed in (
        torch.func.vmap(loss),
        torch.func.vmap(torch.func.grad(loss)),
        torch.func.jacrev(loss),
        lambda h, t: torch.func.jvp(lambda h: loss(h, t), (h,), (h,)),
    ):
        with pytest.raises(GradientError, match=r"within a transform(.|\n)*Hint: .*F\.cross_entropy"):
            transformed(hidden, targets)


def test_on_meta_tensors_it_has_a_shape_and_gradients():
    hidden, table = (torch.ones(n, 4, device="meta", requires_grad=True) for n in (3, 7))
    loss = readout_loss(hidden, table, torch.zeros(3, dtype=torch.int64, device="meta"), reduction="none")
    loss.sum().backward()
    assert loss.shape == (3,)
    assert table.grad.shape == (7, 4)


def test_on_fake_tensors_it_has_a_shape_and_gradients():
    with FakeTensorMode():
        hidden, table = torch.ones(3, 4, requires_grad=True), torch.ones(7, 4, requires_grad=True)
        readout_loss(hidden, table, torch.zeros(3, dtype=torch.int64)).backward()
    assert table.grad.shape == (7, 4)


def test_functional_gradients_are_the_same():
    problem = Problem.of()
    hidden, table = problem.hidden.detach(), problem.table.detach()
    found = torch.func.grad(lambda h, t: readout_loss(h, t, problem.targets), argnums=(0, 1))(hidden, table)
    want = torch.func.grad(lambda h, t: cross_entropy(h, t, problem.targets), argnums=(0, 1))(hidden, table)
    torch.testing.assert_close(found, want)


@pytest.mark.slow
def test_several_processes_train_as_one_does(tmp_path):
    """DDP, FSDP2, and a table sharded by rows: two processes on a CPU."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.readout_loss.processes", str(tmp_path / "rendezvous")],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_gradients_of_several_passes_over_one_graph_add_up():
    """The first pass had handed out what the second needed."""
    for options in ({}, {"reduction": "none"}):
        found = []
        for way in (readout_loss, cross_entropy):
            problem = Problem.of(dtype=torch.float32, bias=True, **options)
            loss = way(problem.hidden, problem.table, problem.targets, **problem.options).sum()
            for _ in range(3):
                loss.backward(retain_graph=True)
            problem.table.grad.zero_()
            loss.backward()
            found.append([leaf.grad for leaf in problem.leaves])
        torch.testing.assert_close(*found)


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_a_functional_backward_pass_may_come_after_its_transform(reduction):
    problem = Problem.of()
    found = []
    for way in (readout_loss, cross_entropy):
        loss, backward = torch.func.vjp(
            lambda h, way=way: way(h, problem.table.detach(), problem.targets, reduction=reduction),
            problem.hidden.detach(),
        )
        found.append(backward(torch.full_like(loss, 0.3)))
    torch.testing.assert_close(*found)


def test_forward_mode_and_batched_backward_passes_are_refused_with_a_way_out():
    problem = Problem.of()
    hidden, table, targets = problem.hidden, problem.table.detach(), problem.targets
    with torch.autograd.forward_ad.dual_level(), pytest.raises(GradientError, match="forward-mode"):
        readout_loss(hidden.detach(), table, targets)
    losses = readout_loss(hidden, table, targets, reduction="none")
    with pytest.raises(GradientError, match="is_grads_batched"):
        torch.autograd.grad(losses, hidden, torch.eye(9, dtype=torch.float64), is_grads_batched=True)
