"""What MiniGPT writes: token by token, with a cache and without."""

import numpy as np
import pytest
import torch
from tests.zoo.minigpt_torch import POSITIONS, build, random_ids

from tiebeam.errors import RangeError
from tiebeam.zoo.torch.blocks import KVCache
from tiebeam.zoo.torch.sampling import Sampling


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("choice", [{"greedy": True}, {"temperature": 1.5, "top_k": 20, "top_p": 0.9}])
def test_a_cache_changes_no_token_even_past_the_block_size(positions, choice):
    model, prefix = build(positions=positions, table_std=1.0), random_ids(3, 3)
    with_cache, without = (
        model.generate(prefix, 14, generator=torch.Generator().manual_seed(5), use_cache=use, **choice)
        for use in (True, False)
    )
    assert torch.equal(with_cache, without)
    assert with_cache.shape == (3, 17)
    assert torch.equal(with_cache[:, :3], prefix)


@pytest.mark.parametrize("positions", POSITIONS)
def test_each_token_follows_from_the_window_before_it(positions):
    model = build(positions=positions, table_std=1.0)
    ids = model.generate(random_ids(1, 11), 9, greedy=True)
    for end in range(11, 20):
        window = ids[:, max(0, end - 8) : end]
        assert int(model(window)[0, -1].argmax()) == int(ids[0, end])


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("parts", [(8,), (1,) * 8, (3, 1, 4), (5, 3)])
def test_a_cache_fed_in_parts_gives_the_logits_of_one_pass(positions, parts):
    model, ids = build(positions=positions), random_ids(2, 8)
    cache = KVCache(2, 8)
    logits = [model(part, cache) for part in ids.split(parts, dim=1)]
    assert cache.length == 8
    torch.testing.assert_close(torch.cat(logits, dim=1), model(ids), rtol=1e-4, atol=1e-5)
    with pytest.raises(RangeError, match="cache is full"):
        model(ids[:, :1], cache)


def test_generation_leaves_the_modes_of_all_modules_as_they_were():
    model = build(dropout=0.5)
    model.blocks[1].eval()
    modes = [module.training for module in model.modules()]
    a = model.generate(random_ids(1, 3), 5, greedy=True)
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(a, model.generate(random_ids(1, 3), 5, greedy=True))  # no dropout meanwhile
    assert model.generate(random_ids(1, 3), 0).shape == (1, 3)


def test_top_k_and_top_p_keep_what_they_say():
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()[:, [2, 0, 3, 1]]
    for choice, expected in (
        ({}, [0.15, 0.5, 0.05, 0.3]),
        ({"top_k": 2}, [0, 0.625, 0, 0.375]),
        ({"top_k": 99}, [0.15, 0.5, 0.05, 0.3]),
        ({"top_p": 0.4}, [0, 1, 0, 0]),
        ({"top_p": 0.7}, [0, 0.625, 0, 0.375]),
        ({"top_p": 1.0}, [0.15, 0.5, 0.05, 0.3]),
        ({"top_k": 3, "top_p": 0.6}, [0, 0.625, 0, 0.375]),
        ({"greedy": True}, [0, 1, 0, 0]),
        ({"temperature": 0.5}, [0.0225 / 0.365, 0.25 / 0.365, 0.0025 / 0.365, 0.09 / 0.365]),
    ):
        got = Sampling(**choice).probabilities(logits)[0]
        np.testing.assert_allclose(got.numpy(), expected, atol=1e-6, err_msg=str(choice))


def test_draws_follow_the_probabilities():
    sampling = Sampling(temperature=0.7, top_k=3)
    logits = torch.tensor([[1.0, 0.0, 2.0, -1.0]])
    drawn = sampling.pick(logits.expand(20_000, 4), torch.Generator().manual_seed(0))
    shares = drawn.bincount(minlength=4) / 20_000
    np.testing.assert_allclose(shares.numpy(), sampling.probabilities(logits)[0].numpy(), atol=0.015)
