"""In the middle of training: where an operation changes nothing, the run goes on as if it had not been, bit by bit."""

import functools

import pytest
import torch
from tests.torch.operations.models import FAST, OPTIMIZERS, gpt, gradient, train

import tiebeam

pytestmark = pytest.mark.slow

every_optimizer = pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind in FAST else pytest.mark.slow) for kind in OPTIMIZERS]
)


@functools.cache
def uninterrupted(kind: str) -> list[float]:
    model = gpt()
    optimizer = OPTIMIZERS[kind](model.parameters())
    return train(model, optimizer, 4, 1) + train(model, optimizer, 4, 2)


@every_optimizer
def test_a_table_resized_and_back_trains_on_bit_by_bit(kind: str) -> None:
    model = gpt()
    optimizer = OPTIMIZERS[kind](model.parameters())
    losses = train(model, optimizer, 4, 1)
    tiebeam.resize(model, 128, optimizer=optimizer)
    tiebeam.resize(model, 97, optimizer=optimizer)
    assert losses + train(model, optimizer, 4, 2) == uninterrupted(kind)


@every_optimizer
def test_the_next_loss_of_an_untied_model_is_that_of_the_tied_one(kind: str) -> None:
    model = gpt()
    optimizer = OPTIMIZERS[kind](model.parameters())
    losses = train(model, optimizer, 4, 1)
    tiebeam.untie(model, optimizer=optimizer)
    assert model.head.weight is not model.embed.weight
    assert losses + train(model, optimizer, 1, 2) == uninterrupted(kind)[:5]
    assert not torch.equal(model.head.weight, model.embed.weight)  # each is trained by its own role now


@every_optimizer
def test_untied_and_tied_again_it_trains_on_bit_by_bit(kind: str) -> None:
    model = gpt()
    optimizer = OPTIMIZERS[kind](model.parameters())
    losses = train(model, optimizer, 4, 1)
    tiebeam.untie(model, optimizer=optimizer)
    tiebeam.tie(model, optimizer=optimizer)
    assert losses + train(model, optimizer, 4, 2) == uninterrupted(kind)


@every_optimizer
def test_a_resize_that_changes_nothing_touches_nothing(kind: str) -> None:
    model = gpt()
    optimizer = OPTIMIZERS[kind](model.parameters())
    losses = train(model, optimizer, 4, 1)
    table = model.embed.weight.data_ptr()
    change = tiebeam.resize(model, 97, optimizer=optimizer)
    assert change.vocab is None
    assert model.embed.weight.data_ptr() == table
    assert losses + train(model, optimizer, 4, 2) == uninterrupted(kind)


@every_optimizer
def test_ids_turned_about_and_back_leave_the_run_as_it_was(kind: str) -> None:
    model = gpt()
    optimizer = OPTIMIZERS[kind](model.parameters())
    losses = train(model, optimizer, 4, 1)
    turned = torch.randperm(97, generator=torch.Generator().manual_seed(3)).tolist()
    back = [turned.index(i) for i in range(97)]
    first = model.embed.weight[turned].detach().clone()
    tiebeam.resize(model, ids=turned, optimizer=optimizer)
    assert torch.equal(model.embed.weight, first)
    tiebeam.resize(model, ids=back, optimizer=optimizer)
    assert losses + train(model, optimizer, 4, 2) == uninterrupted(kind)


@every_optimizer
def test_a_grown_table_is_trained_and_its_new_rows_move_no_further_than_others(kind: str) -> None:
    model = gpt()
    optimizer = OPTIMIZERS[kind](model.parameters())
    train(model, optimizer, 20, 1)
    tiebeam.resize(model, 104, optimizer=optimizer)
    before = model.embed.weight.detach().clone()
    train(model, optimizer, 1, 2, below=104)
    moved = (model.embed.weight.detach() - before).norm(dim=1)
    assert moved[97:].min() > 0
    assert moved[97:].max() < 3 * moved[:97].max()


def test_accumulated_gradients_stay_with_their_rows() -> None:
    model = gpt()
    model.loss(torch.randint(0, 90, (4, 9))).backward()
    before = gradient(model.embed.weight).clone()
    tiebeam.resize(model, 100)
    assert torch.equal(gradient(model.embed.weight)[:97], before)
    assert not gradient(model.embed.weight)[97:].any()
    tiebeam.untie(model)
    assert torch.equal(gradient(model.head.weight)[:97], before)


def test_a_loss_that_is_held_does_not_keep_the_old_size() -> None:
    """PyTorch's node that takes a gradient in keeps the shape it was made with for as long as any graph holds it."""
    model = gpt()
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    held = model.loss(torch.randint(0, 90, (4, 9)))
    tiebeam.resize(model, 128, optimizer=optimizer)
    model.loss(torch.randint(0, 128, (4, 9))).backward()
    assert gradient(model.embed.weight).shape == (128, 32)
    assert held.item() > 0
