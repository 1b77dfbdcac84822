"""Measuring leaves everything as it was, whatever happens."""

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from tests.measure.models import APART, VOCAB, WIDTH, Tied, batch, next_token_loss, plain
from torch import Tensor, nn

import tiebeam


class Moody(nn.Module):
    """Dropout, running statistics, a table whose norm is clipped as it is read, and a cache."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH, max_norm=1.0)
        self.norm = nn.BatchNorm1d(WIDTH)
        self.drop = nn.Dropout(0.5)
        self.register_buffer("steps", torch.zeros(()))
        self.fails = False

    def forward(self, ids: Tensor) -> Tensor:
        self.steps += 1
        h = self.embed(ids)
        if self.fails:
            raise ValueError("not now")
        h = self.norm(self.drop(h).mT).mT
        return h @ self.embed.weight.T


def state_of(model: nn.Module) -> dict[str, Tensor]:
    return {k: v.clone() for k, v in model.state_dict().items()}


def drawn() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), float(torch.rand(()))  # noqa: NPY002


def seed_all() -> None:
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    torch.manual_seed(0)


def bad_loss(out: Tensor, ids: Tensor) -> Tensor:
    return next_token_loss(out, ids) * float("nan")


@pytest.mark.parametrize("fails", ["no", "forward", "loss"])
def test_parameters_buffers_modes_hooks_and_generators_are_as_before(fails: str) -> None:
    model = Moody().train()
    model.norm.eval()
    model.fails = fails == "forward"
    with torch.no_grad():
        model.embed.weight.mul_(3)
    before = state_of(model)
    seed_all()
    want = drawn()
    seed_all()
    if fails == "no":
        tiebeam.measure(model, batch())
    else:
        with pytest.raises(tiebeam.InputError):
            tiebeam.measure(model, batch(), loss=bad_loss if fails == "loss" else None)
    assert drawn() == want
    after = state_of(model)
    assert all(torch.equal(before[k], after[k]) for k in before)
    assert (model.training, model.norm.training, model.drop.training) == (True, False, True)
    assert not any(m._forward_hooks or m._forward_pre_hooks or m._backward_hooks for m in model.modules())
    assert all(p.grad is None for p in model.parameters())


def test_accumulated_gradients_stay_and_a_step_after_measuring_is_the_step_without() -> None:
    models = [Tied(plain), Tied(plain)]
    for model, measuring in zip(models, (True, False), strict=True):
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        for seed in range(4):
            next_token_loss(model(batch(seed=seed)), batch(seed=seed)).backward()
            if measuring:
                held = model.table.grad
                tiebeam.measure(model, batch(seed=9))
                assert model.table.grad is held
            if seed % 2:
                optimizer.step()
                optimizer.zero_grad()
    pairs = zip(models[0].parameters(), models[1].parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_a_step_taken_in_a_hook_on_the_gradient_is_not_taken() -> None:
    model = Tied(plain)
    stepped: list[Tensor] = []
    model.table.register_post_accumulate_grad_hook(stepped.append)
    tiebeam.measure(model, batch())
    assert stepped == []


def test_a_gradient_scaler_changes_nothing() -> None:
    model = Tied(plain)
    want = tiebeam.measure(model, batch()).role_ratio
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaler.scale(next_token_loss(model(batch()), batch())).backward()
    found = tiebeam.measure(model, batch())
    assert found.role_ratio == want
    assert scaler.get_scale() == 1024.0


def test_only_the_table_is_differentiated(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Tied(plain)
    asked: list[int] = []
    grad = torch.autograd.grad

    def counted(outputs: Tensor, inputs: list[Tensor], **more: bool) -> object:
        asked.append(len(inputs))
        assert inputs[0] is model.table
        return grad(outputs, inputs, **more)

    monkeypatch.setattr(torch.autograd, "grad", counted)
    tiebeam.measure(model, batch())
    assert asked == [1]


def test_the_model_runs_forward_once() -> None:
    model = Tied(plain)
    runs: list[int] = []
    model.body.register_forward_hook(lambda *_: runs.append(1))
    tiebeam.measure(model, batch())
    assert runs == [1]


@pytest.mark.parametrize("read", APART, ids=lambda read: read.__name__)
def test_reentrant_checkpoints_are_reentrant_again_afterwards(read: Callable[..., Tensor]) -> None:
    tiebeam.measure(Tied(read), batch())
    assert "apply" not in vars(torch.utils.checkpoint.CheckpointFunction)


def test_threads_may_measure_one_model_at_once() -> None:
    from concurrent.futures import ThreadPoolExecutor

    model = Tied(plain)
    want = tiebeam.measure(model, batch()).role_ratio
    with ThreadPoolExecutor(3) as pool:
        seen = list(pool.map(lambda _: tiebeam.measure(model, batch()).role_ratio, range(9)))
    assert set(seen) == {want}
    assert "apply" not in vars(torch.utils.checkpoint.CheckpointFunction)
