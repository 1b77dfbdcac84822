"""The training loop itself: in half precision, and where the weights go out of bounds."""

import math

import numpy as np
import pytest
import torch

from tiebeam.errors import NotFiniteError
from tiebeam.experiments.training import TrainSettings, train
from tiebeam.zoo.torch.minigpt import MiniGPT

IDS = np.random.default_rng(0).integers(0, 64, 400)
SETTINGS = TrainSettings(steps=4, batch=4, warmup=1, validate_every=2, validation_windows=3)


def trained(settings=SETTINGS, on_step=lambda step, loss: None, **how):
    draws = torch.Generator().manual_seed(0)
    model = MiniGPT.from_scheme("C", vocab=64, width=32, layers=1, block_size=16, generator=draws)
    return model, train(model, IDS, IDS, settings, on_step, **how)


def test_in_bfloat16_the_losses_are_near_and_the_weights_stay_float32():
    _, exact = trained()
    model, near = trained(autocast=True)
    assert near.train != exact.train
    assert near.train == pytest.approx(exact.train, abs=0.05)
    assert near.validation[-1][1] == pytest.approx(exact.validation[-1][1], abs=0.05)
    assert {p.dtype for p in model.parameters()} == {torch.float32}


def test_who_watches_is_told_of_a_loss_that_is_no_number_before_it_is_an_error():
    told = []
    with pytest.raises(NotFiniteError):
        trained(TrainSettings(steps=4, batch=4, warmup=1, rate=1e30), lambda step, loss: told.append((step, loss)))
    assert [step for step, _ in told] == [1, 2]
    assert math.isfinite(told[0][1])
    assert math.isnan(told[1][1])
